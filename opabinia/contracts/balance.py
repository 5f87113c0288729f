"""Balancing of the losses of several tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from opabinia.contracts.clock import Clock
from opabinia.contracts.training import Hook


class LossBalance(nn.Module):
    """Weighs the losses of the tasks of a multi-task run against each other.

    Args:
        names: of the tasks.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = list(names)

    def forward(self, losses: Mapping[str, Tensor], shared: Sequence[nn.Parameter], clock: Clock) -> dict[str, Tensor]:
        """Return the weighted loss of each task.

        Args:
            losses: of the tasks that take part in this step (0-d), already multiplied by their weights of the config:
                this process's share of the mean over the global batch.
            shared: trainable parameters of the last layer that all tasks share, for methods that compare gradients.
            clock: of the run.
        """
        raise NotImplementedError

    def weights(self) -> dict[str, Tensor]:
        """Return the current weights (0-d) that are logged; empty if they never change."""
        return {}

    def hooks(self) -> list[Hook]:
        """Return hooks that update the state of the method."""
        return []
