"""The datasets of a run: sections of ``data`` and of the tasks of a multi-task run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts.data import CombiningTransform
from opabinia.contracts.parts import MixPart, SamplerPart, SourcePart, TransformPart
from opabinia.runtime.durations import Duration

SINGLE = ""
"""Name of the stream of section ``data``; a run of one task has no other one, unless it is semi-supervised."""

UNLABELED = "unlabeled"
"""Name of the stream of unlabeled images of a semi-supervised run."""

WEAK_IMAGE = "weak_image"
"""Key of the weak view of an unlabeled image, which the teacher sees; ``image`` is the strong one."""


@register.section
@dataclass(frozen=True, kw_only=True)
class Stream:
    """A source and the transforms of its samples.

    Args:
        source: dataset that is read.
        transforms: applied to each sample, in order.
    """

    source: SourcePart
    transforms: Sequence[TransformPart] = ()


@dataclass(frozen=True, kw_only=True)
class TrainingStream(Stream):
    """A dataset to train on. A config has its values in ``data``, or next to the task that learns from it.

    Attributes:
        source: dataset that is read.
        transforms: applied to each sample, in order.
        shuffle: a new order for each epoch.
        sampler: the samples of an epoch; None takes each sample once.
        mix: applied to the samples of the stream in a batch, in order.
        place: place of the source in the config.
    """

    shuffle: bool = True
    sampler: SamplerPart | None = None
    mix: Sequence[MixPart] = ()
    place: str = "data.train"


@register.section(name="validation")
@dataclass(frozen=True, kw_only=True)
class ValidationStream(Stream):
    """A dataset to evaluate on.

    Args:
        source: dataset that is read.
        transforms: applied to each sample, in order.
        prefix: first part of metric names: ``val`` gives ``val/top1``; for the data of a task it follows the name
            of the task: ``boxes/val/AP``.
        task: in a multi-task run, the name of the task that is evaluated; of the data of a task, that task.
        every: period of its evaluation; null takes ``evaluate.every``.

    Raises:
        ValueError: a transform combines several samples.
    """

    prefix: Annotated[str, MinLen(1)] = "val"
    task: str | None = None
    every: Duration | None = None

    def __post_init__(self) -> None:
        for number, transform in enumerate(self.transforms):
            if isinstance(transform, CombiningTransform):
                name = type(transform).__name__
                raise ValueError(
                    f"transforms.{number}: {name} combines several samples into one, which evaluations do not; it "
                    "belongs into data.train.transforms"
                )


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

    train: Stream | None = None
    val: ValidationStream | list[ValidationStream] | None = None
    shuffle: bool = True
    sampler: SamplerPart | None = None
    mix: Sequence[MixPart] = ()


@runtime_checkable
class SubtaskStreams(Protocol):
    """Settings of a task of a multi-task run about its samples.

    Attributes:
        data: its datasets; None: those of ``stream``.
        stream: the task on whose training images it learns, too; None: it has data of its own.
        batch_share: share of its data in each batch; None: by size.
    """

    @property
    def data(self) -> SubtaskData | None: ...

    @property
    def stream(self) -> str | None: ...

    @property
    def batch_share(self) -> float | None: ...
