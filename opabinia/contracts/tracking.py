"""Tracks: boxes of objects with an identity, in the frames of a video, and the trackers that make them."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Tracks(NamedTuple):
    """The N tracked boxes of a sequence of frames, in any order.

    Attributes:
        frames: number of each box's frame (int64, N).
        ids: the track of each box (int64, N); a track has at most one box in a frame.
        boxes: left, top, right, bottom in pixels (float64, N x 4).
        labels: class labels from 0 (int64, N).
    """

    frames: NDArray[np.int64]
    ids: NDArray[np.int64]
    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]


class Role(IntEnum):
    """The part of a ground-truth box in an evaluation of tracks."""

    COUNTED = 0
    """An object to be tracked."""
    DISTRACTOR = 1
    """An object that may be tracked or not: predicted boxes that match it are ignored."""
    EXCLUDED = 2
    """An object that is not evaluated: a predicted box that matches it and no other one is false."""
    REGION = 3
    """A region in which objects are not annotated: predicted boxes that match no object and lie in it are ignored."""


class TrackGroundTruth(NamedTuple):
    """The N annotated boxes of a sequence of frames, in any order.

    Attributes:
        frames: number of each box's frame (int64, N).
        ids: the track of each box (int64, N); those of regions mean nothing.
        boxes: left, top, right, bottom in pixels (float64, N x 4).
        labels: class labels from 0 (int64, N); -1: boxes that are no object to be tracked, and concern all classes.
        roles: :class:`Role` of each box (int64, N).
    """

    frames: NDArray[np.int64]
    ids: NDArray[np.int64]
    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]
    roles: NDArray[np.int64]

    def select(self, rows: NDArray[Any] | slice) -> TrackGroundTruth:
        """Return some of the boxes, by index, mask or slice."""
        frames, ids, boxes, labels, roles = self
        return TrackGroundTruth(frames[rows], ids[rows], boxes[rows], labels[rows], roles[rows])


class FrameTracks(NamedTuple):
    """A frame of a video, and its annotated boxes with their tracks.

    Attributes:
        sequence: name of the video.
        frame: number of the frame.
        time: seconds since the first frame; None: unknown, then the frames that are read follow each other at a fixed
            rate.
        truth: the boxes as annotated (N), also those that a detector is not trained on; ``frames`` are all ``frame``.
        visibility: visible share of each object (float64, N); None: unknown.
    """

    sequence: str
    frame: int
    time: float | None
    truth: TrackGroundTruth
    visibility: NDArray[np.float64] | None = None

    def relabeled(self, new_labels: NDArray[np.int64]) -> FrameTracks:
        """Return the same boxes with other classes; ``new_labels`` has the new label of each class."""
        labels = np.where(self.truth.labels < 0, -1, new_labels[self.truth.labels])
        return self._replace(truth=self.truth._replace(labels=labels))


class FrameDetections(NamedTuple):
    """The N detections of a frame, of one class or of all.

    Attributes:
        boxes: left, top, right, bottom in pixels (float64, N x 4).
        scores: from 0 to 1 (float64, N).
        embeddings: appearance of each box, of unit length (float64, N x D); None: unknown.
        time: time of the frame in seconds; None: one frame after the frame before.
        camera_shift: by how many pixels the background has moved to the right and down since the frame before.
    """

    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    embeddings: NDArray[np.float64] | None = None
    time: float | None = None
    camera_shift: tuple[float, float] = (0.0, 0.0)


TrackerState = dict[str, Any]
"""What a tracker remembers of a sequence: empty before the first frame, picklable, and read by the tracker only."""

Tracker = Callable[[TrackerState, FrameDetections], NDArray[np.int64]]
"""Updates its state with the next frame and returns the track of each detection, from 0 (int64, N); -1: none (yet)."""
