"""Training on folders with broken videos: they are named in errors, or skipped according to ``data.on_error``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandResult
from tests.data.videos import write, write_sound

Command = Callable[..., CommandResult]

SIZE = {"size": (32, 40)}


def cut(path: Path, **keys: Any) -> Path:
    """Write a video whose file is truncated."""
    content = write(path, 30, gop=5, **SIZE, **keys).read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    return path


def empty(path: Path) -> Path:
    path.touch()
    return path


def text(path: Path) -> Path:
    path.write_text("no video " * 50)
    return path


BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty.mp4": (empty, "is empty: it has 0 bytes"),
    "sound.mp4": (write_sound, "has no video stream, only audio"),
    "text.mp4": (text, "is not a video, but text"),
    "headless.mp4": (cut, "is cut off: an mp4 or mov file whose table (moov) is missing"),
}
"""Files from which no frame can be decoded."""


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Intact videos, one of two frames, and a truncated one whose beginning can be decoded."""
    root = tmp_path_factory.mktemp("videos")
    for number in range(8):
        write(root / ("jump", "run")[number % 2] / f"{number}.mp4", 8 + number, **SIZE)
    write(root / "jump" / "two.mp4", 2, **SIZE)
    cut(root / "run" / "cut.mp4", format_options={"movflags": "faststart"})
    return root


@pytest.fixture
def root(videos: Path, tmp_path: Path) -> Path:
    """A folder with hard links to these videos, which a test may change."""
    for video in videos.glob("*/*"):
        folder = tmp_path / "videos" / video.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / video.name).hardlink_to(video)
    return tmp_path / "videos"


@pytest.fixture
def train(opabinia: Command, root: Path, tmp_path: Path) -> Callable[..., CommandResult]:
    """``train("data.on_error=skip")`` trains a tiny network for two epochs, and evaluates three views of each video."""
    videos = f"{{name: videos, root: {root}}}"
    recipe = tmp_path / "videos.yaml"
    recipe.write_text(
        "base: video/digits\n"
        "task: {backbone: {name: resnet3d, widths: [2], blocks: [1]}, mean: [0.5], std: [0.25]}\n"
        "data:\n"
        f"  train: {{source: {videos}, transforms: [{{name: clip, frames: 4, stride: 2, short_side: 16}}, "
        "{name: scale_jitter, size: 16}]}\n"
        f"  val: {{source: {{name: video_views, source: {videos}, clips: 1, crops: 3}}, "
        "transforms: [{name: clip, frames: 4, stride: 2}, {name: three_crop, size: 16}]}\n"
        "  batch_size: 4\n"
        "  num_workers: 0\n"
        "train: {length: 2ep, num_threads: 1, device: cpu, log_samples: true}\n"
        "loggers: []\n"
    )
    return lambda *overrides: opabinia("train", recipe, "--out", tmp_path / "runs", *overrides)


def lines(tmp_path: Path, name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (tmp_path / "runs" / "videos" / name / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.mark.parametrize("name", ["run/headless.mp4", "jump/+.mp4"], ids=["in the middle", "the first"])
def test_an_undecodable_video_stops_the_run(name: str, train: Command, root: Path) -> None:
    make, reason = BROKEN["headless.mp4" if "headless" in name else "empty.mp4"]
    make(root / name)
    result = train()
    (line,) = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert result.status == 2 and f"{root / name} {reason}" in line and "Traceback" not in result.err


def test_skip_omits_broken_videos_and_keeps_the_order_of_others(train: Command, root: Path, tmp_path: Path) -> None:
    for name, (make, _) in BROKEN.items():
        make(root / "run" / name)
    result = train("data.on_error=skip", "--name=broken")
    assert result.status == 0, result.err
    for name, (_, reason) in BROKEN.items():
        assert result.err.count(f"{root / 'run' / name} {reason}") == 2, "once in training, once in evaluation"
    assert result.err.count(f"{root / 'run' / 'cut.mp4'}: is cut off; the first") == 1
    broken = lines(tmp_path, "broken")
    assert [line["val/skipped"] for line in broken if "val/top1" in line] == [4.0 * 3] * 2

    for name in BROKEN:
        (root / "run" / name).unlink()
        write(root / "run" / name, 5, **SIZE)
    assert train("--name=whole").status == 0
    whole = lines(tmp_path, "whole")
    ids, whole_ids = ([name for line in log for name in line.get("sample_ids", ())] for log in (broken, whole))
    assert len(ids) == len(whole_ids) == 2 * 14 and {"jump/two.mp4", "run/cut.mp4"} < set(ids)
    broken_ids = {f"run/{name}" for name in BROKEN}
    assert not broken_ids & set(ids) and broken_ids < set(whole_ids)
    assert all(
        name == whole or (whole in broken_ids and name.startswith("run/"))
        for name, whole in zip(ids, whole_ids, strict=True)
    )
