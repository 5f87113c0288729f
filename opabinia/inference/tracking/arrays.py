"""Detections and tracks of a frame in NumPy alone: the parts of tracking that exports have, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.models.trackers.association import Ints
from opabinia.models.trackers.kalman import Floats
from opabinia.models.trackers.sequences import Frame

DEFAULT_RATE = 30.0
"""Frames per second of folders of frames that do not say it."""

MAX_CROPS = 64
"""Crops in a forward pass."""

STEP = 0.001
"""Seconds from a frame to the next one at least: containers and cameras may repeat times."""

Record = Mapping[str, Any]
"""A line of ``tracks.jsonl``, or one of its ``tracks``."""


def tracked_rows(boxes: Floats, scores: Floats, size: Sequence[int], min_score: float) -> NDArray[np.bool_]:
    """Return which detections of a frame are tracked: those that have area within it, and the score.

    Args:
        boxes: left, top, right, bottom in pixels (N x 4).
        scores: their scores (N).
        size: height and width of the frame.
        min_score: lowest score.
    """
    height, width = size
    corners = boxes.reshape(-1, 2, 2).clip(0, (width, height))
    rows: NDArray[np.bool_] = (scores >= min_score) & (corners[:, 0] < corners[:, 1]).all(1)
    return rows


def crop_corners(boxes: Floats, size: Sequence[int]) -> Ints:
    """Return left, top, right and bottom of the crops of boxes (N x 4): the pixels that a box touches, as in the
    sources of crops, one at least.

    Args:
        boxes: left, top, right, bottom in pixels (N x 4).
        size: height and width of the frame.
    """
    height, width = size
    starts = np.floor(boxes[:, :2]).clip(0, (width - 1, height - 1)).astype(int)
    ends = np.maximum(np.ceil(boxes[:, 2:]).clip(0, (width, height)).astype(int), starts + 1)
    return np.concatenate([starts, ends], 1)


def readable_tracks(frame: Frame, ids: Sequence[int], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the detections that have a track, by their ids."""
    columns = frame.labels.tolist(), frame.detections.scores.tolist(), frame.detections.boxes.tolist()
    rows = [
        {
            "id": track + 1,
            "class": classes[label],
            "score": round(score, 4),
            "box": [round(value, 2) for value in box],
        }
        for track, label, score, box in zip(ids, *columns, strict=True)
        if track >= 0
    ]
    return sorted(rows, key=lambda row: int(row["id"]))


def mot_rows(frame: int, tracks: Sequence[Record]) -> Iterator[str]:
    """Yield rows of MOTChallenge's results: frame, id, left, top, width, height, score, and three unused columns. The
    first pixel has the coordinate 1."""
    for row in tracks:
        left, top, right, bottom = row["box"]
        box = f"{left + 1:.2f},{top + 1:.2f},{right - left:.2f},{bottom - top:.2f}"
        yield f"{frame},{row['id']},{box},{row['score']:.4f},-1,-1,-1\n"
