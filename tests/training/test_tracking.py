"""Trackers from configs."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opabinia.config import ConfigError
from opabinia.contracts.tracking import FrameDetections, TrackerState
from opabinia.training.tracking import resolve_tracking

PLUGIN = '''
import numpy as np
from numpy.typing import NDArray
from opabinia.config import register
from opabinia.contracts.tracking import FrameDetections, TrackerState

@register.tracker
def by_order(state: TrackerState, frame: FrameDetections, /, *, first: int = 0) -> NDArray[np.int64]:
    """The number of a detection is its track.

    Args:
        first: number of the first one.
    """
    return np.arange(len(frame.boxes)) + first
'''


def test_options_reach_the_tracker() -> None:
    tracking = resolve_tracking(
        {"tracker": {"name": "bytetrack", "match_iou": 0.2}}, ["tracker.min_hits=1", "per_class=false"]
    )
    assert tracking.tracker.keywords["match_iou"] == 0.2  # type: ignore[attr-defined]
    assert (tracking.per_class, tracking.camera_motion) == (False, False)
    assert tracking.config["tracker"]["min_hits"] == 1
    assert resolve_tracking(tracking.config).config == tracking.config
    state: TrackerState = {}
    still = FrameDetections(np.array([[0.0, 0, 9, 9]]), np.array([0.9]))
    assert [tracking.tracker(state, still).tolist() for _ in range(2)] == [[-1], [0]]


@pytest.mark.parametrize(
    ("config", "overrides", "message"),
    [
        ({"tracker": "bytetrak"}, [], "did you mean 'bytetrack'"),
        ({"tracker": "sort"}, ["tracker.match_iuo=0.2"], "did you mean 'match_iou'"),
        ({"tracker": "sort"}, ["tracker.match_iou=2"], "expected a number >= 0 and <= 1"),
        ({"tracker": "sort"}, ["per_clas=no"], "did you mean 'per_class'"),
        ({}, [], "tracker: missing"),
        ({"tracker": "sort"}, ["plugins=[no_such_module]"], "no_such_module"),
    ],
)
def test_mistakes_are_named(config: dict[str, Any], overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_tracking(config, overrides)
    assert message in str(error.value)


def test_a_plugin_adds_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "order_tracker.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    for options in ({"plugins": ["order_tracker"]}, {"overrides": ["plugins=[order_tracker]"]}):
        tracking = resolve_tracking({"tracker": {"name": "by_order", "first": 5}}, **options)  # type: ignore[arg-type]
        assert tracking.tracker({}, FrameDetections(np.zeros((2, 4)), np.ones(2))).tolist() == [5, 6]
    sys.modules.pop("order_tracker")
