"""Trackers of the package ``trackers``: a stand-in for it here, and the package itself if it is installed."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from opabinia.config import ConfigError
from opabinia.contracts.tracking import FrameDetections, Tracker, TrackerState
from opabinia.models.trackers.sequences import track_sequence, update
from opabinia.models.trackers.sort import byte_track
from opabinia.training.tracking import resolve_tracking
from tests.models.trackers.streams import stream


@dataclass
class Detections:
    """As ``supervision.Detections``."""

    xyxy: NDArray[np.float64]
    confidence: NDArray[np.float64]
    data: dict[str, NDArray[Any]]
    tracker_id: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.xyxy)


class NearestTracker:
    """Continue the track of the frame before whose left edge is near. Returns good detections, the last one first."""

    tracker_id = "nearest"

    def __init__(
        self, reach: float = 5.0, memory: int = 1, enable_cmc: bool = True, cmc_downscale: int = 2, iou: Any = None
    ) -> None:
        if reach <= 0:
            raise ValueError("reach must be positive")
        assert not enable_cmc
        self.reach, self.next, self.times = reach, 0, list[float | None]()
        self.before: dict[int, float] = {}

    def update(self, detections: Detections, frame: None = None, timestamp: float | None = None) -> Detections:
        self.times.append(timestamp)
        rows = np.flatnonzero(detections.confidence >= 0.5)[::-1]
        now: dict[int, float] = {}
        for left in detections.xyxy[rows, 0].tolist():
            near = [track for track, place in self.before.items() if abs(place - left) <= self.reach]
            now[near[0] if near else self.next] = left
            self.next += not near
        self.before = now
        data = {"row": detections.data["row"][rows]}
        return Detections(detections.xyxy[rows], detections.confidence[rows], data, np.array(list(now), np.int64))


class OldTracker(NearestTracker):
    tracker_id = "old"

    def update(self, detections: Detections) -> Detections:  # type: ignore[override]
        return detections


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    package, supervision = ModuleType("trackers"), ModuleType("supervision")
    vars(package).update(NearestTracker=NearestTracker, OldTracker=OldTracker, load_file=lambda: None, IoU=object)
    vars(supervision).update(Detections=Detections)
    monkeypatch.setitem(sys.modules, "trackers", package)
    monkeypatch.setitem(sys.modules, "supervision", supervision)


def nearest(*words: str, name: str = "NearestTracker") -> Tracker:
    return resolve_tracking({"tracker": {"name": "trackers", "class_name": name}}, words).tracker


def detections(*lefts: float, scores: tuple[float, ...] = (), **fields: Any) -> FrameDetections:
    boxes = np.array([[left, 10, left + 8, 20] for left in lefts], float).reshape(-1, 4)
    return FrameDetections(boxes, np.array(scores or [0.9] * len(lefts)), **fields)


def test_ids_of_a_sequence(stand_in: None) -> None:
    """They belong to the detections in their order, whatever order the class returns, and start again in each state."""
    tracker = nearest()
    for _ in range(2):
        state: TrackerState = {}
        frames = [detections(0, 50), detections(53, 3, 90, scores=(0.9, 0.9, 0.1)), detections(), detections(53)]
        assert [tracker(state, frame).tolist() for frame in frames] == [[1, 0], [0, 1, -1], [], [2]]
        state = pickle.loads(pickle.dumps(state))
        assert tracker(state, detections(54)).tolist() == [2]


def test_classes_times_and_options(stand_in: None) -> None:
    tracker, state = nearest("tracker.options.reach=1"), TrackerState()
    for number, left in enumerate((0, 0, 4)):
        frame = detections(left, left, time=0.5 * number)
        ids = update(tracker, state, frame, np.array([0, 1]))
    assert ids.tolist() == [2, 3]
    assert state["states"][0]["tracker"].times == [0, 0.5, 1]
    with pytest.raises(ValueError, match=r"the time of a frame is 0.9 s: it must be a number after 1.0 s"):
        update(tracker, state, detections(0, time=0.9), np.array([0]))


def test_the_motion_of_the_camera(stand_in: None) -> None:
    tracker, state = nearest(), TrackerState()
    for number in range(4):
        moved = detections(30 * number, camera_shift=(30.0 if number else 0.0, 2.0))
        assert tracker(state, moved).tolist() == [0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tracker.class_name=Nearest"],
            r"tracker.class_name: the package has no tracker 'Nearest'; it has NearestTracker, OldTracker$",
        ),
        (["tracker.class_name=load_file"], "tracker.class_name: the package has no tracker 'load_file'"),
        (["tracker.class_name=OldTracker"], r"the package is too old: pip install 'trackers>=2.6'"),
        (
            ["tracker.options.reech=1"],
            r"tracker.options.reech: NearestTracker has no such option; it has reach=5.0, memory=1$",
        ),
        (["tracker.options.enable_cmc=true"], "tracker.options.enable_cmc: NearestTracker has no such option"),
        (["tracker.options.iou=1"], "tracker.options.iou: NearestTracker has no such option"),
        (["tracker.options.reach=a"], "tracker.options.reach: expected float, found 'a'"),
        (["tracker.options.memory=1.5"], "tracker.options.memory: expected int, found 1.5"),
        (["tracker.options.memory=true"], "tracker.options.memory: expected int, found True"),
        (["tracker.options.reach=-1"], "tracker.options: reach must be positive"),
        (["tracker.keep_lost=1"], "tracker.keep_lost: unknown key"),
    ],
)
def test_mistakes(stand_in: None, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nearest(*words)


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackers", None)
    with pytest.raises(ConfigError, match=r"it needs the package trackers .*: pip install 'trackers>=2.6'"):
        nearest()


@pytest.mark.parametrize("name", ["BoTSORTTracker", "ByteTrackTracker", "CBIoUTracker", "OCSORTTracker", "SORTTracker"])
def test_classes_of_the_package(name: str) -> None:
    pytest.importorskip("trackers")
    frames = stream("crowded", 0, 60).frames
    tracks = track_sequence(nearest(name=name), frames)
    assert 30 < len(np.unique(tracks.ids)) < 60
    if name == "ByteTrackTracker":
        ours = track_sequence(byte_track, frames)
        assert all(np.array_equal(theirs, column) for theirs, column in zip(tracks, ours, strict=True))
