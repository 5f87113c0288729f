"""The trackers of the package ``trackers`` (extra ``parity``) on our frames, with our default options."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts.tracking import Tracker, TrackerState, Tracks
from opabinia.models.trackers.botsort import bot_sort
from opabinia.models.trackers.ocsort import oc_sort
from opabinia.models.trackers.sequences import Frame, update
from opabinia.models.trackers.sort import byte_track, sort

TRACKERS: dict[str, Tracker] = {"sort": sort, "bytetrack": byte_track, "ocsort": oc_sort, "botsort": bot_sort}

Ids = NDArray[np.int64]


def ids_of_both(name: str, frames: Sequence[Frame]) -> tuple[Ids, Ids]:
    """Return the tracks of all detections, frame by frame, by our tracker and by theirs."""
    state: TrackerState = {}
    ours = [update(TRACKERS[name], state, frame.detections, frame.labels) for frame in frames]
    return np.concatenate(ours), peer_ids(name, frames)


def peer_ids(name: str, frames: Sequence[Frame]) -> Ids:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its deprecations
        import supervision
        import trackers

        tracker: Any = {
            "sort": trackers.SORTTracker,
            "bytetrack": trackers.ByteTrackTracker,
            "ocsort": trackers.OCSORTTracker,
            "botsort": lambda: trackers.BoTSORTTracker(enable_cmc=False),
        }[name]()
        result = []
        for frame in frames:
            ids = np.full(len(frame.labels), -1)
            boxes = supervision.Detections(
                xyxy=frame.detections.boxes, confidence=frame.detections.scores, data={"row": np.arange(len(ids))}
            )
            if len(tracked := tracker.update(boxes)):
                ids[tracked.data["row"]] = tracked.tracker_id
            result.append(ids)
    return np.concatenate(result)


def as_tracks(frames: Sequence[Frame], ids: Ids) -> Tracks:
    """Return the detections that have a track."""
    numbers = np.concatenate([np.full(len(frame.labels), frame.number) for frame in frames])
    boxes = np.concatenate([frame.detections.boxes for frame in frames])
    labels = np.concatenate([frame.labels for frame in frames])
    tracked = ids >= 0
    return Tracks(numbers[tracked], ids[tracked], boxes[tracked], labels[tracked])
