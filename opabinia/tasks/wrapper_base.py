"""The base class of tasks around the task that is trained, which only the step calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from opabinia.contracts import Task


class TaskWrapper(Task):
    """A task around the task that is trained: a step calls it in its place, and nothing else does.

    It exists in training only. What is evaluated, saved and exported is ``task``, so names of parameters and
    checkpoints are those of a run without it. Teachers are frozen and in evaluation mode; a hook saves the EMA teacher.

    Args:
        task: the task that is trained, the student.
        average: the teacher that is an EMA of the student; None without.
        teachers: fixed teachers.

    Attributes:
        task, average, teachers: as given.
    """

    def __init__(self, task: Task, average: Task | None, teachers: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.average = average
        self.task = task
        self.teachers = nn.ModuleList(teachers).eval().requires_grad_(False)

    def train(self, mode: bool = True) -> TaskWrapper:
        """Set the mode of the student; teachers stay in evaluation mode."""
        self.training = mode
        self.task.train(mode)
        return self


def combine_losses(losses: Any, weight: float, added: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the losses of a task (a tensor, a sequence or a mapping), weighted, with those that a wrapper adds."""
    if isinstance(losses, Tensor):
        losses = {"loss": losses}
    elif not isinstance(losses, Mapping):
        losses = {f"loss_{number}": loss for number, loss in enumerate(losses)}
    if "total_loss" in losses:
        return {**losses, **added, "total_loss": weight * losses["total_loss"] + sum(added.values())}
    return {**{name: weight * value if "loss" in name else value for name, value in losses.items()}, **added}
