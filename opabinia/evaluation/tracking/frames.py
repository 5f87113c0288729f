"""Ground truth of videos from that of their frames."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from opabinia.contracts import DataMismatch, FrameTracks
from opabinia.contracts.tracking import TrackGroundTruth


def join_frames(frames: Iterable[FrameTracks | None]) -> dict[str, TrackGroundTruth]:
    """Return the ground truth of each sequence by its name, from its frames in any order.

    A sequence without any box is one, too; those of frames are ``GroundTruth.track``.

    Raises:
        DataMismatch: an image is no frame of a video (None), or a frame is given twice.
    """
    sequences: dict[str, dict[int, TrackGroundTruth]] = {}
    for frame in frames:
        if frame is None:
            raise DataMismatch("the ground truth of an image has no tracks: the source has no videos with tracks")
        parts = sequences.setdefault(frame.sequence, {})
        if frame.frame in parts:
            raise DataMismatch(f"{frame.sequence}: there are two frames with the number {frame.frame}")
        parts[frame.frame] = frame.truth
    return {
        name: TrackGroundTruth(*(np.concatenate(columns) for columns in zip(*parts.values(), strict=True)))
        for name, parts in sequences.items()
    }
