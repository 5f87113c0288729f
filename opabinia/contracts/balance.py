"""Balancing of the losses of several tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from opabinia.contracts.clock import Clock
from opabinia.contracts.training import Hook

SharedLayer = Callable[[], Sequence[nn.Parameter]]
"""Returns the trainable weights of the last layer that all tasks share; none while the backbone is frozen."""


class LossBalance(nn.Module):
    """Weighs the losses of the tasks of a multi-task run against each other.

    State that changes during a run belongs in buffers, so that a resumed run is exact, and changes in hooks
    (``after_backward``), so that an update that is skipped, or a forward pass outside of a step, leaves no trace.

    Args:
        names: of the tasks.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = list(names)

    def forward(
        self, losses: Mapping[str, Tensor], share: float, shared: SharedLayer, clock: Clock
    ) -> dict[str, Tensor]:
        """Return the weighted loss of each task.

        Called once for each micro-batch. Times ``share``, summed over the micro-batches of a step and averaged over
        processes, the losses are those of the global batch.

        Args:
            losses: of the tasks that take part in this step (0-d), before the weights of the config.
            share: of the micro-batch in the batch of an average process; 1 for a single process without gradient
                accumulation.
            shared: for methods that compare gradients.
            clock: of the run.
        """
        raise NotImplementedError

    def weights(self) -> dict[str, Tensor]:
        """Return the current weights (0-d) that are logged; empty if they never change."""
        return {}

    def hooks(self) -> list[Hook]:
        """Return hooks that update the state of the method."""
        return []
