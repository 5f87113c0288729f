"""The datasets of a run: those of ``data``, or those of the tasks of a multi-task run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from opabinia.config.build import errors_at
from opabinia.config.datasets import task_validation
from opabinia.contracts import (
    SINGLE,
    UNLABELED,
    CombiningTransform,
    DatasetInfo,
    SubtaskData,
    SubtaskStreams,
    Task,
    TrainingStream,
)
from opabinia.data import Data
from opabinia.data.missing_labels import MarkMissingLabels
from opabinia.data.sources.wrapper import Indexed, Unlabeled
from opabinia.data.streams.order import StreamShares, stream_shares
from opabinia.data.strong_views import StrongView

if TYPE_CHECKING:  # predictions do without it
    from opabinia.tasks.semi_supervised.task import SemiSupervised

TaskFactory = Callable[[DatasetInfo], Task]


def subtasks(task: TaskFactory) -> Mapping[str, SubtaskStreams]:
    """Return the tasks of a multi-task run by name."""
    tasks = getattr(task, "keywords", {}).get("tasks") or {}
    return {name: subtask for name, subtask in tasks.items() if isinstance(subtask, SubtaskStreams)}


def training_streams(task: TaskFactory, data: Data) -> dict[str, TrainingStream]:
    """Return the training data of each stream by name; that of a run of one task is :data:`SINGLE`. Without training
    data there is no stream.

    Args:
        task: section ``task`` of the config.
        data: section ``data`` of the config.

    Raises:
        ConfigError: samples that may lack labels are mixed or combined.
    """
    sections: dict[str, Data | SubtaskData] = {
        name: subtask.data for name, subtask in subtasks(task).items() if subtask.data and subtask.data.train
    }
    streams = {}
    for name, section in (sections or {SINGLE: data}).items():
        if section.train is None:
            continue
        stream = TrainingStream(
            source=section.train.source,
            transforms=section.train.transforms,
            shuffle=section.shuffle,
            sampler=section.sampler,
            mix=section.mix,
            place=f"task.tasks.{name}.data.train" if name else "data.train",
        )
        with errors_at(f"task.tasks.{name}.data"):
            streams[name] = mark_missing_labels(stream) if name else stream
    return streams


def with_unlabeled(
    streams: Mapping[str, TrainingStream], semi_supervised: SemiSupervised | None
) -> dict[str, TrainingStream]:
    """Return the streams of a run with that of its unlabeled images, if it is semi-supervised.

    Samples of that stream have both views and their ``index``, and the labels that their source has, if its classes are
    those of the labeled data: these are the ground truth that pseudo-labels are compared with.
    """
    if semi_supervised is None:
        return dict(streams)
    source, transforms = semi_supervised.unlabeled.source, semi_supervised.unlabeled.transforms
    if source.classes != streams[SINGLE].source.classes:
        source = Unlabeled(source=source)
    unlabeled = TrainingStream(
        source=Indexed(source=source),
        transforms=[*transforms, StrongView(semi_supervised.strong)],
        place="semi_supervised.unlabeled",
    )
    return {**streams, UNLABELED: unlabeled}


def stream_sharing(
    task: TaskFactory, streams: Mapping[str, TrainingStream], semi_supervised: SemiSupervised | None = None
) -> StreamShares:
    """Return how streams share batches.

    Raises:
        ConfigError: the shares do not sum to 1.
    """
    if semi_supervised is not None:
        return StreamShares({SINGLE: 1 - semi_supervised.batch_share, UNLABELED: semi_supervised.batch_share})
    if SINGLE in streams:
        return StreamShares({SINGLE: 1.0})
    given = {name: subtasks(task)[name].batch_share for name in streams}
    options = {"temperature": 1.0, "alternate": False, **getattr(task, "keywords", {})}
    with errors_at("task"):
        sizes = {name: len(stream.source) for name, stream in streams.items()}
        return StreamShares(stream_shares(sizes, given, options["temperature"]), options["alternate"])


def with_task_data(task: TaskFactory, data: Data) -> Data:
    """Return ``data`` with the validation sets of all tasks."""
    tasks = subtasks(task)
    task_sets = task_validation(
        {name: (subtask.data and subtask.data.val, subtask.stream) for name, subtask in tasks.items()}
    )
    sets = [replace(val_set, prefix=f"{name}/{val_set.prefix}", task=name) for name, val_set in task_sets]
    with errors_at("data"):
        return replace(data, val=[*data.validation, *sets]) if sets else data


def mark_missing_labels(stream: TrainingStream) -> TrainingStream:
    """Return a stream with the transform that marks missing labels, if some samples lack labels.

    Raises:
        ValueError: its samples are mixed or combined.
    """
    if not stream.source.info.partly_labeled:
        return stream
    if stream.mix:
        raise ValueError("mix: samples that may lack labels cannot be mixed")
    for number, transform in enumerate(stream.transforms):
        if isinstance(transform, CombiningTransform):
            raise ValueError(f"train.transforms.{number}: samples that may lack labels cannot be combined")
    return replace(stream, transforms=[*stream.transforms, MarkMissingLabels(stream.source.info)])
