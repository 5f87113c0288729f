"""The section of a task of a multi-task run."""

from __future__ import annotations

from dataclasses import dataclass

from opabinia.config import register
from opabinia.contracts import Fraction, InputPath, NonNegative, SchedulePart, SubtaskData, TaskPart
from opabinia.optim.schedules import constant


@register.section(name="subtask")
@dataclass(frozen=True, kw_only=True)
class Subtask:
    """A task of a multi-task run.

    Args:
        task: any task, without ``backbone``, ``mean`` and ``std``: those of the run are shared.
        data: its datasets; null: those of ``stream``.
        stream: the task on whose training images this one learns, too, in the same forward pass; their source has the
            labels of both. Null: it has data of its own.
        weight: multiplies its loss.
        weight_schedule: multiplies its weight over time.
        batch_share: share of its data in each batch, or of the steps where tasks take turns; null: by size.
        compare: folder of a single-task run whose scores the report shows next to its own.
    """

    task: TaskPart
    data: SubtaskData | None = None
    stream: str | None = None
    weight: NonNegative = 1.0
    weight_schedule: SchedulePart = constant
    batch_share: Fraction | None = None
    compare: InputPath | None = None
