"""Videos as they come, through whole runs: broken ones are named, and what ``data.on_error`` says is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended
from tests.data.videos import write, write_sound

Command = Callable[..., Ended]

SIZE = {"size": (32, 40)}


def cut(path: Path, **keys: Any) -> Path:
    """A video whose file ends in the middle."""
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
"""What no frame can be had of."""


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole ones, one with two frames only, and one that is cut off but begins well."""
    root = tmp_path_factory.mktemp("videos")
    for number in range(8):
        write(root / ("jump", "run")[number % 2] / f"{number}.mp4", 8 + number, **SIZE)
    write(root / "jump" / "two.mp4", 2, **SIZE)
    cut(root / "run" / "cut.mp4", format_options={"movflags": "faststart"})
    return root


@pytest.fixture
def root(videos: Path, tmp_path: Path) -> Path:
    """A folder of its own with these videos."""
    for video in videos.glob("*/*"):
        folder = tmp_path / "videos" / video.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / video.name).hardlink_to(video)
    return tmp_path / "videos"


@pytest.fixture
def train(opabinia: Command, root: Path, tmp_path: Path) -> Callable[..., Ended]:
    """``train("data.on_error=skip")``: two epochs of a tiny network; three views of each video are evaluated."""
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


@pytest.mark.parametrize("name", BROKEN)
def test_a_video_that_gives_nothing_ends_the_run(name: str, train: Command, root: Path) -> None:
    make, reason = BROKEN[name]
    video = make(root / "run" / name)
    done = train()
    assert done.status == 2 and "Traceback" not in done.err
    *_, line = done.err.splitlines()
    assert line.startswith("error: sample ") and f"(run/{name}), Clip: ValueError: {video} {reason}" in line


def test_the_first_video_too(train: Command, root: Path) -> None:
    empty(root / "jump" / "+.mp4")
    done = train()
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert done.status == 2 and "jump/+.mp4 is empty" in line and "Traceback" not in done.err


def test_skip_passes_over_them_and_the_others_keep_their_order(train: Command, root: Path, tmp_path: Path) -> None:
    for name, (make, _) in BROKEN.items():
        make(root / "run" / name)
    done = train("data.on_error=skip", "--name=broken")
    assert done.status == 0, done.err
    for name, (_, reason) in BROKEN.items():
        assert done.err.count(f"{root / 'run' / name} {reason}") == 2, "once in training, once in evaluations"
    assert done.err.count(f"{root / 'run' / 'cut.mp4'}: is cut off; the first") == 1
    broken = lines(tmp_path, "broken")
    assert [line["val/skipped"] for line in broken if "val/top1" in line] == [4.0 * 3] * 2

    for name in BROKEN:
        (root / "run" / name).unlink()
        write(root / "run" / name, 5, **SIZE)
    assert train("--name=whole").status == 0
    whole = lines(tmp_path, "whole")
    ids, others = ([name for line in some for name in line.get("sample_ids", ())] for some in (broken, whole))
    assert len(ids) == len(others) == 2 * 14 and {"jump/two.mp4", "run/cut.mp4"} < set(ids)
    lost = {f"run/{name}" for name in BROKEN}
    assert not lost & set(ids) and lost < set(others)
    assert all(
        one == other or (other in lost and one.startswith("run/")) for one, other in zip(ids, others, strict=True)
    )
