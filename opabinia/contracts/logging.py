"""The metrics log of a run, the loggers that it goes to, and the manager of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from opabinia.contracts.clock import Clock

Scalars = Mapping[str, Tensor | float]
"""Named numbers. 0-d tensors stay on the device until the metrics log writes them."""


class MetricsLog(Protocol):
    """The metrics log of a run, ``metrics.jsonl``: one JSON object per line, each value once, in the order of steps.

    :class:`opabinia.engine.loggers.metrics_log.MetricsLogger` is the one that a training run has.

    Attributes:
        newest: the last line written: values by name, such as ``{"step": 100, "train/loss": 0.3}``; None before the
            first.
    """

    newest: dict[str, Any] | None

    def add(self, step: int, values: Mapping[str, Tensor | float], ids: Sequence[Any] = ()) -> None:
        """Add the values of one step. Tensors stay on their device until a line is due.

        Args:
            step: optimizer steps done, this one included.
            values: by name.
            ids: ids of the samples of the step.
        """

    def host_values(self) -> dict[str, float]:
        """Return the pending values of the newest step that are in memory of the host; nothing waits for a device."""

    def flush(self, clock: Clock, extra: Mapping[str, Any] | None = None) -> None:
        """Write the pending values as one line.

        Raises:
            NonFiniteError: one of them is infinite or not a number.
        """

    def write(self, clock: Clock, values: Mapping[str, Any]) -> None:
        """Write a separate line, such as the scores of an evaluation."""

    def state_dict(self) -> dict[str, Any]:
        """Return the byte offset of the file and the pending values, as saved in a checkpoint."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Truncate the file to the saved offset and restore the pending values."""

    def close(self) -> None:
        """Write what is pending and close the file and the loggers."""


class Logger(Protocol):
    """Writes each line of the metrics log somewhere: terminal, TensorBoard. Built with the run folder and the clock at
    the start (step 0 of a new run, a later one after a resume)."""

    def write(self, line: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class CheckpointManager(Protocol):
    """Saves the checkpoints of a run and knows which is the best.

    :class:`opabinia.engine.checkpointing.manager.CheckpointManager` is the one that a training run has.
    """

    def save(self) -> Path:
        """Save the current state of the run and return the folder of the checkpoint."""

    def has(self, step: int) -> bool:
        """Return whether there is a checkpoint of this step."""

    def mark_best(self, step: int) -> None:
        """Keep the checkpoint of this step as the best one."""

    def best_step(self) -> int | None:
        """Return the step of the best checkpoint; None without one."""

    def forget_best(self) -> None:
        """Discard the mark of :meth:`mark_best`."""

    def point_to_best(self, step: int) -> None:
        """Write the pointer file ``best``."""

    def check(self) -> None:
        """Raise the error of a save that failed in the background."""
