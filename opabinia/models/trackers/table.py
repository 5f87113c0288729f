"""The tracks that a tracker keeps, as columns of a table, and the events in the life of a track."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts.tracking import FrameDetections, TrackerState
from opabinia.models.trackers.association import Ints
from opabinia.models.trackers.kalman import Floats, Motion

_SLACK = 1e-6
"""Frames by which times may be rounded."""


@dataclass
class TrackTable:
    """N tracks; a row of each array is a track.

    Attributes:
        motion: estimates of the boxes.
        ids: number of each confirmed track, from 0; -1: not confirmed yet (N).
        hits: matches that count for the confirmation (N).
        missed: frames since the last match (N).
        time: time since the last match, in frames of the nominal rate (N).
        extra: further columns of the tracker by name.
    """

    motion: Motion
    ids: Ints
    hits: Ints
    missed: Ints
    time: Floats
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def new(cls, motion: Motion, hits: int, **extra: NDArray[Any]) -> TrackTable:
        """Return tracks that begin in this frame."""
        count = len(motion.position)
        whole = np.zeros(count, np.int64)
        return cls(motion, whole - 1, whole + hits, whole, np.zeros(count), extra)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Any) -> TrackTable:
        """Return a copy of some tracks: their indices, or a bool for each."""
        columns = (self.ids[rows], self.hits[rows], self.missed[rows], self.time[rows])
        return TrackTable(self.motion.take(rows), *columns, {name: values[rows] for name, values in self.extra.items()})

    def joined(self, new: TrackTable) -> TrackTable:
        """Return these tracks, and new ones behind them."""
        return TrackTable(
            Motion(*(np.concatenate(pair) for pair in zip(self.motion, new.motion, strict=True))),
            np.concatenate([self.ids, new.ids]),
            np.concatenate([self.hits, new.hits]),
            np.concatenate([self.missed, new.missed]),
            np.concatenate([self.time, new.time]),
            {name: np.concatenate([values, new.extra[name]]) for name, values in self.extra.items()},
        )

    def wait(self, step: float) -> None:
        """Count a frame without a match, ``step`` frames of the nominal rate after the one before."""
        self.missed += 1
        self.time += step

    def hit(self, rows: Ints, motion: Motion) -> None:
        """Count a match of some tracks, whose estimates become ``motion``."""
        self.motion.put(rows, motion)
        self.hits[rows] += 1
        self.missed[rows] = 0
        self.time[rows] = 0

    def confirm(self, state: TrackerState, rows: Ints, hits: int) -> None:
        """Give the next numbers to those of some tracks that have none, and at least so many hits."""
        rows = rows[(self.ids[rows] < 0) & (self.hits[rows] >= hits)]
        first = state.get("next_id", 0)
        self.ids[rows] = first + np.arange(len(rows))
        state["next_id"] = first + len(rows)

    def matched_within(self, frames: float) -> NDArray[np.bool_]:
        """Return for each track whether its last match is at most so many frames of the nominal rate ago."""
        return self.time <= frames + _SLACK


def elapsed(state: TrackerState, frame: FrameDetections, frame_rate: float) -> float:
    """Return the time since the frame before, in frames of the nominal rate, and keep the time of this one.

    Raises:
        ValueError: the time is not finite, or not after that of the frame before.
    """
    before, state["seconds"] = state.get("seconds"), frame.time
    if frame.time is None:
        return 1.0
    if not np.isfinite(frame.time) or (before is not None and frame.time <= before):
        state["seconds"] = before
        after = "" if before is None else f" after {before} s, the time of the frame before"
        raise ValueError(f"the time of a frame is {frame.time} s: it must be a number{after}")
    return 1.0 if before is None else float(frame.time - before) * frame_rate
