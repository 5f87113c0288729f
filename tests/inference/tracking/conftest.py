"""The detector and the re-identification model of version 0.1, on frames of digits."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import opabinia
from opabinia.data.decoding.sequential import TimedFrame
from opabinia.data.sources.digit_tracks import DigitTracks
from opabinia.inference.frames import write_frames
from opabinia.inference.predictor import Predictor
from opabinia.visualization.drawing import to_pil

RUNS = Path(__file__).parents[2] / "compat" / "v0.1"
EAGER = ["tracker.high_score=0.05", "tracker.new_track_score=0.05", "tracker.min_hits=1"]
BOTSORT = ["tracker.match_similarity=0.01", "tracker.new_match_similarity=0.01"]
"""The scores of the detector, which had seven steps of training, are about 0.09."""


@pytest.fixture(scope="session")
def detector() -> Predictor:
    return opabinia.load(RUNS / "detection" / "run")


@pytest.fixture(scope="session")
def embedder() -> Predictor:
    return opabinia.load(RUNS / "reid" / "run")


@pytest.fixture(scope="session")
def frames() -> list[TimedFrame]:
    source = DigitTracks(split="val")
    return [TimedFrame(number, number / 25, source[number]["image"]) for number in range(8)]


@pytest.fixture(scope="session")
def video(tmp_path_factory: pytest.TempPathFactory, frames: Sequence[TimedFrame]) -> Path:
    """A video of the frames."""
    path = tmp_path_factory.mktemp("videos") / "digits.mp4"
    with write_frames(path) as write:
        for frame in frames:
            write(to_pil(frame.image), frame.seconds)
    return path
