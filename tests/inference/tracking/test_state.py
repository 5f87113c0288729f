"""State of trackers in plain files."""

import json
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opabinia.contracts.tracking import FrameDetections, Tracker, TrackerState
from opabinia.inference.tracking.state import load_state, save_state
from opabinia.models.trackers.botsort import bot_sort
from opabinia.models.trackers.ocsort import oc_sort
from opabinia.models.trackers.sequences import update
from opabinia.models.trackers.sort import byte_track, sort
from opabinia.runtime.json_files import InvalidFile


def detections(number: int) -> FrameDetections:
    """Objects that move, overlap and vanish now and then, with noise."""
    random = np.random.default_rng(number)
    corners = np.array([[10.0 + 3 * number, 20], [90 - 3 * number, 24], [30, 60], [60 + number, 62]])
    boxes = np.concatenate([corners, corners + np.array([30, 40])], 1) + random.normal(0, 1, (4, 4))
    rows = random.random(4) < 0.7
    embeddings = np.eye(4)[rows]
    return FrameDetections(boxes[rows], random.uniform(0.3, 1, rows.sum()), embeddings, number / 20, (0.5, 0.0))


@pytest.mark.parametrize("tracker", [sort, byte_track, oc_sort, partial(bot_sort, min_hits=1)])
@pytest.mark.parametrize("per_class", [True, False])
def test_trackers_continue_from_a_file(tracker: Tracker, per_class: bool, tmp_path: Path) -> None:
    kept: TrackerState = {}
    loaded: TrackerState = {}
    for number in range(20):
        frame = detections(number)
        labels = np.arange(len(frame.boxes)) % 2
        ids = update(tracker, kept, frame, labels, per_class)
        assert update(tracker, loaded, frame, labels, per_class).tolist() == ids.tolist()
        save_state(tmp_path / "state", loaded)
        loaded = load_state(tmp_path / "state")
    assert len(kept["numbers"]) >= 2


def test_plain_values_are_the_same(tmp_path: Path) -> None:
    state: dict[Any, Any] = {
        "none": None,
        ("a", 1): [True, 2, -0.1, float("inf"), "text\n", (), []],
        3: {"empty": np.zeros((0, 4)), "flags": np.array([True, False]), "count": np.int64(7), "gray": np.uint8([[1]])},
        "strided": np.arange(12.0).reshape(3, 4).T[::2],
    }
    save_state(tmp_path / "state", state)
    loaded = load_state(tmp_path / "state")
    assert repr(loaded) == repr(state)
    assert loaded["strided"].dtype == np.float64 and loaded[3]["gray"].dtype == np.uint8


@pytest.mark.parametrize(
    "value", [deque([1]), {1, 2}, object(), np.array(["text"]), np.array([None]), 1j, lambda: 0, b"bytes", Path("x")]
)
def test_other_values_are_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"is neither a dictionary"):
        save_state(tmp_path / "state", {"a": [value]})
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "state",
    [
        *({"Path": {"path": "x"}}, {"array": "9"}, {"array": []}, {"dict": [[1]]}, {"dict": [[{"list": []}, 1]]}, {}),
        *({"TrackTable": {"ids": 1}}, {"Motion": []}, {"list": 5}),
    ],
)
def test_damaged_files_are_refused(state: Any, tmp_path: Path) -> None:
    """Among them names of other classes."""
    path = tmp_path / "state"
    save_state(path, "placeholder")
    text = json.dumps(json.dumps("placeholder"))
    content = path.read_bytes()
    changed = content.replace(text.encode(), json.dumps(json.dumps(state)).encode())
    length = int.from_bytes(content[:8], "little") + len(changed) - len(content)
    path.write_bytes(length.to_bytes(8, "little") + changed[8:])
    with pytest.raises(InvalidFile, match="state is damaged"):
        load_state(path)


def test_missing_and_cut_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with pytest.raises(InvalidFile):
        load_state(path)
    save_state(path, {"a": np.arange(10)})
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InvalidFile, match="is damaged"):
        load_state(path)
