"""The sections of a multi-task config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import (
    Fraction,
    InputPath,
    MixPart,
    NonNegative,
    SamplerPart,
    SchedulePart,
    SourcePart,
    TaskPart,
    TransformPart,
)
from opabinia.optim.schedules import constant
from opabinia.runtime.durations import Duration


@register.section(name="subtask_training")
@dataclass(frozen=True, kw_only=True)
class SubtaskTraining:
    """Training data of one task.

    Args:
        source: of the samples.
        transforms: applied to each sample, in order.
    """

    source: SourcePart
    transforms: Sequence[TransformPart] = ()


@register.section(name="subtask_validation")
@dataclass(frozen=True, kw_only=True)
class SubtaskValidation(SubtaskTraining):
    """Validation data of one task.

    Args:
        source: of the samples.
        transforms: applied to each sample, in order.
        prefix: of the metrics, after the name of the task: ``val`` gives ``boxes/val/AP``.
        every: period of its evaluation; null takes ``evaluate.every``.
    """

    prefix: Annotated[str, MinLen(1)] = "val"
    every: Duration | None = None


@register.section(name="subtask_data")
@dataclass(frozen=True, kw_only=True)
class SubtaskData:
    """Datasets of one task.

    Args:
        train: training samples; null for a task that learns from those of ``stream``.
        val: samples to evaluate on, or a list of several datasets with a ``prefix`` each; null: those of ``stream``; an
            empty list: none.
        shuffle: a new order for each epoch.
        sampler: the samples of an epoch; null takes each sample once.
        mix: applied to the samples of the task in a batch, in order.
    """

    train: SubtaskTraining | None = None
    val: SubtaskValidation | list[SubtaskValidation] | None = None
    shuffle: bool = True
    sampler: SamplerPart | None = None
    mix: Sequence[MixPart] = ()


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
