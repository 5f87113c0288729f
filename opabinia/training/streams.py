"""The datasets of a run: those of ``data``, or those of the tasks of a multi-task run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from opabinia.config.build import errors_at
from opabinia.contracts import CombiningTransform, DatasetInfo, Task
from opabinia.data import Data, TrainingStream, ValidationStream
from opabinia.data.missing_labels import MarkMissingLabels
from opabinia.data.streams import SINGLE
from opabinia.data.streams.order import StreamShares, stream_shares

TaskFactory = Callable[[DatasetInfo], Task]


def subtasks(task: TaskFactory) -> Mapping[str, Any]:
    """Return the tasks of a multi-task run by name (:class:`opabinia.tasks.multitask.settings.Subtask`)."""
    tasks: Mapping[str, Any] = getattr(task, "keywords", {}).get("tasks") or {}
    return tasks if all(hasattr(subtask, "batch_share") for subtask in tasks.values()) else {}


def place_of(stream: str) -> str:
    """Return the place in the config of the training data of a stream."""
    return f"task.tasks.{stream}.data.train" if stream else "data.train"


def training_streams(task: TaskFactory, data: Data) -> dict[str, TrainingStream]:
    """Return the training data of each stream by name; that of a run of one task is :data:`SINGLE`. Without training
    data there is no stream.

    Args:
        task: of the config.
        data: that section of the config.

    Raises:
        ConfigError: samples that may lack labels are mixed or combined.
    """
    sections = {name: subtask.data for name, subtask in subtasks(task).items() if subtask.data and subtask.data.train}
    streams = {}
    for name, section in (sections or ({SINGLE: data} if data.train else {})).items():
        stream = TrainingStream(
            source=section.train.source,
            transforms=section.train.transforms,
            shuffle=section.shuffle,
            sampler=section.sampler,
            mix=section.mix,
        )
        with errors_at(f"task.tasks.{name}.data"):
            streams[name] = mark_missing_labels(stream) if name else stream
    return streams


def stream_sharing(task: TaskFactory, streams: Mapping[str, TrainingStream]) -> StreamShares:
    """Return how streams share batches.

    Raises:
        ConfigError: the shares do not sum to 1.
    """
    if SINGLE in streams:
        return StreamShares({SINGLE: 1.0})
    given = {name: subtasks(task)[name].batch_share for name in streams}
    options = {"temperature": 1.0, "alternate": False, **getattr(task, "keywords", {})}
    with errors_at("task"):
        sizes = {name: len(stream.source) for name, stream in streams.items()}
        return StreamShares(stream_shares(sizes, given, options["temperature"]), options["alternate"])


def with_task_data(task: TaskFactory, data: Data) -> Data:
    """Return ``data`` with the validation sets of all tasks; a task without its own has those of its stream."""
    tasks = subtasks(task)
    sets = [
        ValidationStream(
            source=val_set.source,
            transforms=val_set.transforms,
            prefix=f"{name}/{val_set.prefix}",
            task=name,
            every=val_set.every,
        )
        for name in tasks
        for val_set in _validation(tasks, name)
    ]
    with errors_at("data"):
        return replace(data, val=[*data.validation, *sets]) if sets else data


def _validation(tasks: Mapping[str, Any], name: str) -> list[Any]:
    subtask = tasks[name]
    val = subtask.data.val if subtask.data else None
    if val is None and subtask.stream in tasks and subtask.stream != name:
        return _validation(tasks, subtask.stream)
    return val if isinstance(val, list) else [val] if val else []


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
