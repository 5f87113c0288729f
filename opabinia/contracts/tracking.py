"""Tracks: boxes of objects with an identity, in the frames of a video."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

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
