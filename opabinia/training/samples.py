"""What a data set holds: its facts, its first samples, and a text that changes with it."""

from __future__ import annotations

from typing import Literal

import numpy as np

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Batch, DatasetInfo, Row, Source
from opabinia.data import Stream
from opabinia.data.loader import DataError, Reader, Request


def first_samples(
    stream: Stream,
    count: int,
    *,
    skip: bool = False,
    size_multiple: int | None = None,
    shape: tuple[int, ...] | None = None,
) -> Batch:
    """The first samples of a data set as a batch, as they come out of the transforms.

    Args:
        stream: the data set; it is not empty.
        count: how many.
        skip: pass over samples that cannot be read.
        size_multiple: as in :class:`opabinia.contracts.Task`.
        shape: as in :class:`opabinia.contracts.Row`.

    Raises:
        DataError: one of them cannot be read; with ``skip``, none of all can.
    """
    on_error: Literal["raise", "leave_out"] = "leave_out" if skip else "raise"
    reader = Reader(stream.source, stream.transforms, on_error=on_error, size_multiple=size_multiple)
    samples = len(stream.source)
    for first in range(0, samples, count):
        numbers = np.arange(first, min(first + count, samples))
        row = Row(step=0, epoch=0, first=first, count=len(numbers), shape=shape)
        batch = reader.read(Request(row, numbers, numbers)).batch
        if batch is not None:
            return batch
    raise DataError(f"none of the {samples} samples can be read")


def read_dataset_info(stream: Stream, *, skip: bool = False) -> DatasetInfo:
    """What parts may know of a data set. Channels are those of its first sample, as it comes out of the transforms."""
    source = stream.source
    _refuse_wrong_labels(source)
    channels = source.channels
    if len(source):
        first = first_samples(stream, 1, skip=skip)
        image = first["views"][0] if "views" in first else first.get("image")
        channels = image.shape[-3 if image.ndim > 3 else 1] if image is not None else channels
    return DatasetInfo(
        samples=len(source),
        channels=channels,
        classes=tuple(source.classes),
        multi_label=bool(getattr(source, "multi_label", False)),
        cameras=int(getattr(source, "camera_count", 0)),
        views=int(getattr(source, "view_count", 0)),
        queries=len(np.unique(getattr(source, "queries", ()))) == 2,  # all are queries, or none: nothing is set apart
        boxes=bool(getattr(source, "has_boxes", False)),
        masks=bool(getattr(source, "has_masks", False)),
        keypoints=tuple(getattr(source, "keypoints", ())),
        category_ids=tuple(getattr(source, "category_ids", ())),
        frequencies=tuple(getattr(source, "frequencies", ())),
    )


def _refuse_wrong_labels(source: Source) -> None:
    """Tell labels that are no class, where a source tells its labels.

    Raises:
        ConfigError: there are some; the first of them is named.
    """
    labels = np.asarray(getattr(source, "labels", ()))
    classes = len(source.classes)
    if not labels.size or not classes:
        return
    right = (labels >= 0) & (labels < classes) if labels.ndim == 1 else (labels == 0) | (labels == 1)
    if labels.ndim == 2 and labels.shape[1] != classes:
        message = f"its samples have {labels.shape[1]} labels each, there are {classes} classes"
        raise ConfigError(Problem("", "data", f"{type(source).__name__}: {message}"))
    if not right.all():
        at = tuple(int(place) for place in np.argwhere(~right)[0])
        expected = f"0 to {classes - 1} for {classes} classes" if labels.ndim == 1 else "0 or 1"
        message = f"sample {at[0]} has the label {labels[at]}, expected {expected} ({int((~right).sum())} are wrong)"
        raise ConfigError(Problem("", "data", f"{type(source).__name__}: {message}"))


def fingerprint(source: Source) -> str:
    """Tells whether two sources hold the same samples in the same order, as far as the source can say."""
    own = getattr(source, "fingerprint", None)
    return str(own() if callable(own) else f"{len(source)} samples, {len(source.classes)} classes")
