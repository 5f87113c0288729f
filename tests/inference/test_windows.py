"""Predictions of windows of long videos."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opabinia
from opabinia.config import ConfigError
from opabinia.data.errors import DataError
from opabinia.data.transforms.frame_sampling import Clip
from opabinia.inference.windows import clip_seconds, predict_windows, window_times
from tests.data.videos import write

RUN = Path(__file__).parents[1] / "compat" / "v0.1" / "video" / "run"


@pytest.mark.parametrize(
    ("seconds", "every", "length", "expected"),
    [
        (10, 4, 5, [(0, 5), (4, 9), (5, 10)]),
        (10, 5, 5, [(0, 5), (5, 10)]),
        (10, 2, 8, [(0, 8), (2, 10)]),
        (3, 1, 5, [(0, 3)]),
        (0.5, 1, 1, [(0, 0.5)]),
    ],
)
def test_windows_cover_the_video_and_are_complete(
    seconds: float, every: float, length: float, expected: list[tuple[float, float]]
) -> None:
    assert list(window_times(seconds, every, length)) == expected


def test_the_length_of_a_clip() -> None:
    assert clip_seconds([Clip(frames=16, stride=4)], 30.5) == 2
    assert clip_seconds([Clip(frames=16, stride=(4, 8), fps=61)], 30.5) == 1
    assert clip_seconds([Clip(frames=8, sampling="uniform")], 30) == clip_seconds([], 30) == 0


def test_windows_are_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "videos" / "long.mp4", 60, size=(32, 32))  # 2.4 seconds; a clip of this run lasts 0.6
    (tmp_path / "videos" / "text.mp4").write_text("no video " * 20)
    with pytest.raises(DataError, match=r"1 of 2 files were skipped:\n.*text\.mp4"):
        predict_windows(
            opabinia.load(RUN), [tmp_path / "videos"], tmp_path / "out", every=1.0, window=1.2, features=True
        )
    lines: list[Any] = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert [(line["start"], line["end"]) for line in lines] == [(0.0, 1.2), (1.0, 2.2), (1.2, 2.4)]
    assert all(line["path"].endswith("long.mp4") and len(line["top"]) == 5 for line in lines)
    features = np.load(tmp_path / "out" / "features.npy")
    assert len(features) == 3 and np.allclose(np.linalg.norm(features, axis=1), 1, atol=1e-5)
    assert "long.mp4  1.00 to 2.20 s  " in capsys.readouterr().out


def test_windows_of_an_image_model_are_refused(tmp_path: Path) -> None:
    image_run = RUN.parents[1] / "classification" / "run"
    with pytest.raises(ConfigError, match="takes images: give videos, URLs"):
        predict_windows(opabinia.load(image_run), [tmp_path], tmp_path / "out", every=1.0)
