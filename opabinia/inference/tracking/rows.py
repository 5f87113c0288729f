"""Tracks of a frame as JSON values, and as rows of MOTChallenge's results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opabinia.models.trackers.sequences import Frame

Record = Mapping[str, Any]
"""A line of ``tracks.jsonl``, or one of its ``tracks``."""


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
