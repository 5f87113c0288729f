"""Trackers: ids by hand, rules of each, resuming, variable frame rates, classes, appearance, errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from opabinia.config import live_catalog
from opabinia.contracts.tracking import FrameDetections, Tracker, TrackerState
from opabinia.evaluation.tracking.scores import evaluate_tracks
from opabinia.models.trackers.botsort import bot_sort
from opabinia.models.trackers.ocsort import oc_sort
from opabinia.models.trackers.sequences import Frame, track_sequence, update
from opabinia.models.trackers.sort import byte_track, sort
from tests.models.trackers.streams import KINDS, stream

TRACKERS = {"sort": sort, "bytetrack": byte_track, "ocsort": oc_sort, "botsort": bot_sort}
LEAST_MOTA = {"linear": 0.954, "occlusion": 0.937, "nonlinear": 0.932, "crowded": 0.882}
"""The best numbers of a permissive peer on streams of these kinds (Geti's pull request 7068)."""


def each(test: Callable[..., None]) -> Any:
    return pytest.mark.parametrize("tracker", TRACKERS.values(), ids=list(TRACKERS))(test)


def detections(*lefts: float, score: float = 0.9, **fields: Any) -> FrameDetections:
    """Boxes of 20 x 40 pixels at these places."""
    boxes = np.array([[left, 100, left + 20, 140] for left in lefts], float).reshape(-1, 4)
    return FrameDetections(boxes, np.full(len(boxes), score), **fields)


def run(tracker: Tracker, frames: list[FrameDetections]) -> list[list[int]]:
    state: TrackerState = {}
    return [tracker(state, frame).tolist() for frame in frames]


def test_the_built_in_trackers_are_registered() -> None:
    assert set(TRACKERS) <= live_catalog().entries["tracker"].keys()


@each
def test_two_objects_keep_their_tracks_in_any_order_of_detections(tracker: Tracker) -> None:
    frames = [detections(*((3 * t, 200 - 2 * t) if t % 2 else (200 - 2 * t, 3 * t))) for t in range(10)]
    ids = run(tracker, frames)
    assert {tuple(row[::-1] if t % 2 else row) for t, row in enumerate(ids) if t > 4} in ({(0, 1)}, {(1, 0)})


@pytest.mark.parametrize(
    ("tracker", "expected"),
    [
        pytest.param(sort, [-1, -1, 0, 0], id="sort: the third detection confirms"),
        pytest.param(byte_track, [-1, 0, 0, 0], id="bytetrack: the second"),
        pytest.param(oc_sort, [-1, 0, 0, 0], id="ocsort: at the start, the second"),
        pytest.param(bot_sort, [0, 0, 0, 0], id="botsort: in the first frame at once"),
        pytest.param(partial(sort, min_hits=1), [-1, 0, 0, 0], id="a track is reported from its first match on"),
    ],
)
def test_when_a_track_is_reported(tracker: Tracker, expected: list[int]) -> None:
    assert [ids[0] for ids in run(tracker, [detections(50)] * 4)] == expected


@each
def test_a_lost_track_is_found_again_until_its_time_is_over(tracker: Any) -> None:
    seen = [detections(50)] * 6
    for gap, found in ((20, True), (31, False)):
        ids = [row for row in run(tracker, seen + [detections()] * gap + seen) if row]
        assert (ids[-1] == ids[5]) is found
    short = partial(tracker, keep_lost=0.1)
    ids = [row for row in run(short, seen + [detections()] * 4 + seen) if row]
    assert ids[-1] != ids[5]


def test_detections_of_low_score_continue_tracks_but_begin_none() -> None:
    faint = [detections(50, score=0.3)] * 4
    assert run(byte_track, faint) == [[-1]] * 4
    assert run(byte_track, [detections(50)] * 3 + faint)[-1] == [0]
    assert run(oc_sort, [detections(50)] * 3 + faint)[-1] == [-1]


def test_the_direction_decides_between_two_detections() -> None:
    """Both boxes overlap the prediction equally; the one ahead of it continues the motion."""
    frames = [detections(100 + 4 * t) for t in range(8)]
    between = [detections(132 - 8, 132 + 8)]
    ids = run(oc_sort, frames + between)
    assert ids[-1] == [-1, 0]


@each
def test_the_time_of_a_frame_moves_the_prediction(tracker: Tracker) -> None:
    """An object moves 4 pixels in a frame of 1/30 s; then 10 frames are missing, and it is 40 pixels ahead."""
    frames = [detections(4 * t, time=t / 30) for t in range(12)]
    late = [detections(4 * t, time=t / 30) for t in range(21, 26)]
    assert run(tracker, frames + late)[-5:] == [[0]] * 5
    without_times = [frame._replace(time=None) for frame in frames + late]
    assert run(tracker, without_times)[12] != [0]


@each
def test_the_motion_of_the_camera_moves_the_prediction(tracker: Tracker) -> None:
    still = [detections(50)] * 6
    assert run(tracker, [*still, detections(120, camera_shift=(70, 0)), detections(120)])[-2:] == [[0], [0]]
    assert run(tracker, [*still, detections(120), detections(120)])[-2] != [0]


@each
def test_a_stream_is_resumed_from_a_pickled_state(tracker: Tracker) -> None:
    frames = [frame.detections for frame in stream("crowded", 0, 60).frames]
    state: TrackerState = {}
    for frame in frames[:30]:
        tracker(state, frame)
    saved = pickle.dumps(state)
    first = [tracker(state, frame).tolist() for frame in frames[30:]]
    again = pickle.loads(saved)
    assert [tracker(again, frame).tolist() for frame in frames[30:]] == first
    assert run(tracker, frames)[30:] == first


@pytest.mark.parametrize("kind", KINDS)
def test_synthetic_streams(kind: str) -> None:
    for tracker in (sort, byte_track, bot_sort):
        data = stream(kind, 0, 120)
        tables = evaluate_tracks({"": data.truth}, {"": track_sequence(tracker, data.frames)}, ["object"])
        assert (
            tables["class_averaged"]["MOTA"] > LEAST_MOTA[kind] - 0.03
        )  # the first frames of a short stream miss more


# --- appearance -------------------------------------------------------------------------------------------------------


def crossing(embeddings: bool) -> list[FrameDetections]:
    """Two objects meet at one place, stop there unseen for 10 frames, and go back to where they came from."""
    ways = [(4.0 * t, 160 - 4.0 * t) for t in range(17)]
    kinds = np.eye(2)
    seen = [detections(*way, embeddings=kinds if embeddings else None) for way in ways]
    hidden = [detections(embeddings=kinds[:0] if embeddings else None)] * 10
    return seen + hidden + seen[::-1]


def test_appearance_finds_objects_where_motion_is_wrong() -> None:
    by_appearance = partial(bot_sort, min_appearance_iou=0.0)
    assert run(by_appearance, crossing(True))[-1] == [0, 1]
    assert run(by_appearance, crossing(False))[-1] != [0, 1]


def test_appearance_of_an_object_that_looks_different_does_not_count() -> None:
    near = [detections(50, embeddings=np.array([[1.0, 0.0]]))] * 4
    far = detections(300, embeddings=np.array([[0.0, 1.0]]))
    by_appearance = partial(bot_sort, min_appearance_iou=0.0)
    assert run(by_appearance, [*near, far, far])[-1] == [1]


def test_embeddings_of_another_width() -> None:
    frames = [detections(50, embeddings=np.ones((1, 2))), detections(50, embeddings=np.ones((1, 3)))]
    with pytest.raises(ValueError, match="embeddings have 3 values, in the frames before 2"):
        run(bot_sort, frames)


# --- sequences --------------------------------------------------------------------------------------------------------


def test_classes_are_tracked_independently() -> None:
    """Two objects of different classes at one place; one vanishes, and its class alone loses the track."""
    both, labels = detections(50, 52), np.array([3, 1])
    state: TrackerState = {}
    for _ in range(4):
        ids = update(byte_track, state, both, labels)
    assert sorted(ids.tolist()) == [0, 1]
    one = both._replace(boxes=both.boxes[:1], scores=both.scores[:1])
    assert update(byte_track, state, one, labels[:1]).tolist() == ids[:1].tolist()
    assert update(byte_track, state, one, labels[1:]).tolist() == ids[1:].tolist()


def test_a_track_may_change_its_class_if_classes_are_not_separated() -> None:
    state: TrackerState = {}
    ids = [update(byte_track, state, detections(50), np.array([t % 2]), per_class=False).tolist() for t in range(4)]
    assert ids == [[-1], [0], [0], [0]]


def test_tracks_of_a_sequence() -> None:
    frames = [Frame(10 + t, detections(50, 150), np.array([0, 1])) for t in range(3)]
    tracks = track_sequence(byte_track, frames)
    assert tracks.frames.tolist() == [11, 11, 12, 12] and tracks.labels.tolist() == [0, 1] * 2
    assert tracks.ids.tolist() == [0, 1] * 2 and tracks.boxes[0].tolist() == [50, 100, 70, 140]
    assert len(track_sequence(byte_track, []).ids) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"boxes": np.array([[0.0, 0, np.nan, 4]])}, "the boxes of a frame are not all finite"),
        ({"scores": np.array([np.inf])}, "the scores of a frame are not all finite"),
        ({"scores": np.zeros(2)}, r"scores have the shape \(2,\): 1 boxes need \(1,\)"),
        ({"boxes": np.zeros((1, 5))}, r"boxes have the shape \(1, 5\): 1 boxes need \(1, 4\)"),
        ({"embeddings": np.zeros((2, 3))}, r"embeddings have the shape \(2, 3\): 1 boxes need \(1, 3\)"),
    ],
)
def test_damaged_detections(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        update(sort, {}, detections(50)._replace(**changes), np.zeros(1, int))


@each
@pytest.mark.parametrize("time", [0.5, 0.2, np.nan])
def test_times_must_increase(tracker: Tracker, time: float) -> None:
    state: TrackerState = {}
    tracker(state, detections(50, time=0.5))
    with pytest.raises(ValueError, match=r"must be a number after 0\.5 s"):
        tracker(state, detections(50, time=time))
