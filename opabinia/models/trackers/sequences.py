"""Tracks of whole sequences: one state for each class, and one numbering of tracks for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts.tracking import FrameDetections, Tracker, TrackerState, Tracks
from opabinia.models.trackers.association import Ints


class Frame(NamedTuple):
    """A frame of a sequence.

    Attributes:
        number: number of the frame, which the tracks get.
        detections: its detections (N).
        labels: class labels from 0 (int64, N).
    """

    number: int
    detections: FrameDetections
    labels: Ints


def update(
    tracker: Tracker, state: TrackerState, detections: FrameDetections, labels: NDArray[Any], per_class: bool = True
) -> Ints:
    """Return the track of each detection of the next frame, from 0 (N); -1: none, or not confirmed yet.

    Args:
        tracker: the tracker, with its options.
        state: state of the sequence: an empty dictionary before the first frame. It is updated, and can be pickled.
        detections: detections of the frame (N).
        labels: class labels (N).
        per_class: classes are tracked independently of each other; otherwise, a track may change its class.

    Raises:
        ValueError: arrays differ in length, or hold numbers that are not finite; or the tracker refuses the frame.
    """
    _check(detections, labels)
    groups = labels if per_class else np.zeros_like(labels)
    states, numbers = state.setdefault("states", {}), state.setdefault("numbers", {})
    tracks = np.full(len(groups), -1)
    for label in sorted({*states, *groups.tolist()}):
        rows = groups == label
        embeddings = None if detections.embeddings is None else detections.embeddings[rows]
        part = detections._replace(boxes=detections.boxes[rows], scores=detections.scores[rows], embeddings=embeddings)
        local = tracker(states.setdefault(label, {}), part)
        new = [track for track in np.unique(local[local >= 0]).tolist() if (label, track) not in numbers]
        numbers |= {(label, track): len(numbers) + index for index, track in enumerate(new)}
        tracks[rows] = [numbers.get((label, track), -1) for track in local.tolist()]
    return tracks


def track_sequence(tracker: Tracker, frames: Iterable[Frame], per_class: bool = True) -> Tracks:
    """Return the tracks of a sequence: the detections that have one.

    Args:
        tracker: the tracker, with its options.
        frames: the frames in their order.
        per_class: see :func:`update`.
    """
    state: TrackerState = {}
    none = np.zeros(0, np.int64)
    rows = [Tracks(none, none, np.zeros((0, 4)), none)]
    for frame in frames:
        ids = update(tracker, state, frame.detections, frame.labels, per_class)
        tracked = ids >= 0
        numbers = np.full(tracked.sum(), frame.number)
        rows.append(Tracks(numbers, ids[tracked], frame.detections.boxes[tracked], frame.labels[tracked]))
    return Tracks(*(np.concatenate(columns) for columns in zip(*rows, strict=True)))


def _check(detections: FrameDetections, labels: NDArray[Any]) -> None:
    count = len(detections.boxes)
    columns = {"boxes": detections.boxes, "scores": detections.scores, "labels": labels}
    if detections.embeddings is not None:
        columns["embeddings"] = detections.embeddings
    for name, values in columns.items():
        shape = {"boxes": (count, 4), "embeddings": (count, *values.shape[1:])}.get(name, (count,))
        if values.shape != shape:
            raise ValueError(f"{name} have the shape {values.shape}: {count} boxes need {shape}")
        if not np.isfinite(values).all():
            raise ValueError(f"the {name} of a frame are not all finite: {values[~np.isfinite(values)][0]}")
