"""The description of a dataset, its first samples, and a text that changes with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np

from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.contracts import (
    IGNORE_LABEL,
    Batch,
    DataMismatch,
    DatasetInfo,
    GlobalBatch,
    Source,
    SourceInfo,
    channel_count,
)
from opabinia.data import Stream, TrainingStream, ValidationStream
from opabinia.data.errors import DataError
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import Request
from opabinia.data.transforms.channels import check_transforms
from opabinia.runtime.log import log
from opabinia.runtime.text import plural


def first_samples(
    stream: Stream,
    count: int,
    *,
    skip: bool = False,
    size_multiple: int | None = None,
    shape: tuple[int, ...] | None = None,
) -> Batch:
    """Return the first samples of a dataset as a batch, after the transforms.

    Args:
        stream: the dataset; it is not empty.
        count: number of samples.
        skip: skip samples that cannot be read.
        size_multiple: as in :class:`opabinia.contracts.Task`.
        shape: as in :class:`opabinia.contracts.GlobalBatch`.

    Raises:
        DataError: one of them cannot be read; with ``skip``, none of the dataset can.
    """
    on_error: Literal["raise", "skip"] = "skip" if skip else "raise"
    task = stream.task if isinstance(stream, ValidationStream) else None
    reader = BatchReader(stream.source, stream.transforms, on_error=on_error, size_multiple=size_multiple, task=task)
    samples = len(stream.source)
    for first in range(0, samples, count):
        indices = np.arange(first, min(first + count, samples))
        global_batch = GlobalBatch(step=0, epoch=0, first=first, count=len(indices), shape=shape)
        batch = reader.read(Request(global_batch, indices, indices)).batch
        if batch is not None:
            return batch
    raise DataError(f"none of the {samples} samples can be read")


@contextmanager
def batch_errors(batch: Batch, key: str) -> Iterator[None]:
    """Report a batch that a task does not take, with its shape, as an error of the config at ``key``.

    Raises:
        ConfigError: the block has raised an error about the batch.
    """
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        images = [batch["image"]] if "image" in batch else batch.get("views", ())
        shape = " and ".join(dict.fromkeys(str(tuple(image.shape)) for image in images))
        text = str(error) if isinstance(error, DataMismatch) else f"{type(error).__name__}: {error}"
        inner, _, reason = text.partition(": ")
        if inner.startswith("task.tasks."):  # named by a multi-task run
            key, text = inner if key == "task" else key, reason
        shown = f"a batch of shape {shape}" if shape else "a batch"
        raise ConfigError(Problem("", key, f"{shown} does not go through: {text}")) from error


def read_dataset_info(stream: Stream, *, skip: bool = False) -> DatasetInfo:
    """Describe a dataset. The channels are those of its first sample after the transforms.

    Raises:
        ConfigError: a label of the source is not one of its classes, or a transform is not defined for its channels.
    """
    source, info = stream.source, stream.source.info
    _check_labels(source)
    place = stream.place if isinstance(stream, TrainingStream) else "data.val"
    with errors_at(f"{place}.transforms"):
        check_transforms(stream.transforms, info.channels)
    channels = channel_count(info.channels)
    if len(source):
        batch = first_samples(stream, 1, skip=skip)
        if info.maps:
            _warn_of_unlabeled_pixels(stream, batch, skip)
        image = batch["views"][0] if "views" in batch else batch.get("image")
        channels = image.shape[-3 if image.ndim > 3 else 1] if image is not None else channels
    queries = () if info.queries is None else info.queries
    labels = info.labels if info.multi_label and len(source) else None
    return DatasetInfo(
        samples=len(source),
        **{**info.facts(), "channels": channels},
        label_shares=() if labels is None else tuple(labels.mean(0, dtype=np.float64).tolist()),
        cameras=info.camera_count,
        views=info.view_count,
        queries=len(np.unique(queries)) == 2,  # all are queries, or none: there is no gallery
        image_counts=_image_counts(info),
        task=(stream.task or "") if isinstance(stream, ValidationStream) else "",
    )


def _warn_of_unlabeled_pixels(stream: Stream, first: Batch, skip: bool) -> None:
    """Log a warning if none of the first samples has a labeled pixel in its segmentation map.

    Args:
        stream: the dataset.
        first: its first sample as a batch.
        skip: see :func:`first_samples`.
    """
    count = min(16, len(stream.source))
    if (first["mask"] == IGNORE_LABEL).all():
        batch = first_samples(stream, count, skip=skip)
        if (batch["mask"] == IGNORE_LABEL).all():
            message = "data: the segmentation maps of the first %s have no labeled pixel (%s ...): their loss is 0"
            log.warning(message, plural(count, "sample"), batch["id"][0])


def _image_counts(info: SourceInfo) -> tuple[int, ...]:
    if info.present is None:
        return ()
    present = np.concatenate([np.zeros(0, dtype=np.int64), *info.present])
    return tuple(np.bincount(present, minlength=len(info.classes)).tolist())


def _check_labels(source: Source) -> None:
    """Check the labels of a source that knows them.

    Raises:
        ConfigError: some are not one of the classes; the first of them is named.
    """
    labels, classes = np.asarray(() if source.info.labels is None else source.info.labels), len(source.classes)
    if not labels.size or not classes:
        return
    if labels.ndim == 1 and labels.min() >= 0 and labels.max() < classes:
        return  # without an array of the length of the dataset
    valid = (labels >= 0) & (labels < classes) if labels.ndim == 1 else (labels == 0) | (labels == 1)
    if labels.ndim == 2 and labels.shape[1] != classes:
        message = f"its samples have {labels.shape[1]} labels each, there are {classes} classes"
        raise ConfigError(Problem("", "data", f"{type(source).__name__}: {message}"))
    if not valid.all():
        index = tuple(int(number) for number in np.argwhere(~valid)[0])
        expected = f"0 to {classes - 1} for {classes} classes" if labels.ndim == 1 else "0 or 1"
        wrong = int((~valid).sum())
        message = f"sample {index[0]} has the label {labels[index]}, expected {expected} ({wrong} are wrong)"
        raise ConfigError(Problem("", "data", f"{type(source).__name__}: {message}"))
