"""Image folders with broken files, and with classes without images."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import CommandResult

SMALL = (
    *("task.backbone.model=test_resnet", "data.train.transforms.0.size=32", "vars.size=32", "vars.enlarged=36"),
    *("data.batch_size=4", "train.length=2ep", "train.log_samples=true", "train.num_threads=1", "loggers=[]"),
)


def write_image(path: Path, size: tuple[int, int] = (40, 48), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ten intact images for each class in two splits, with one of each kind of broken file."""
    for split in ("train", "val"):
        for number in range(20):
            write_image(tmp_path / "data" / split / "ab"[number % 2] / f"{number:02d}.jpg", seed=number)
        folder = tmp_path / "data" / split / "a"
        content = write_image(folder / "cut.jpg").read_bytes()
        (folder / "cut.jpg").write_bytes(content[: len(content) // 3])
        (folder / "empty.jpg").touch()
        (folder / "text.jpg").write_text("no image at all")
        write_image(folder / "wide.jpg", size=(8, 20_000))
    return tmp_path / "data"


Train = Callable[..., CommandResult]


@pytest.fixture
def train(opabinia: Callable[..., CommandResult], root: Path, tmp_path: Path) -> Train:
    """Train on that folder, in this process."""
    words = ["train", "classification/image_folder", f"vars.root={root}", f"--out={tmp_path / 'runs'}", *SMALL]
    return partial(opabinia, *words)


@pytest.mark.parametrize("workers", [0, 2])
def test_raise_names_file_and_reason(train: Train, workers: int) -> None:
    result = train(f"data.num_workers={workers}")
    assert result.status == 2
    assert "Traceback" not in result.err
    assert any(f"{name}.jpg cannot be decoded: " in result.err for name in ("cut", "empty", "text"))
    assert result.err.rstrip().endswith(
        "; `opabinia data check` lists all samples that cannot be read, data.on_error=skip omits them"
    )


def test_an_unreadable_validation_image_stops_the_run_with_the_command_that_resumes_it(
    opabinia: Callable[..., CommandResult], train: Train, root: Path, tmp_path: Path
) -> None:
    for name in ("cut", "empty", "text"):
        (root / "train" / "a" / f"{name}.jpg").unlink()
    result = train("data.batch_size=3", "data.num_workers=0")
    assert result.status == 2
    folder = tmp_path / "runs" / "classification" / "image_folder" / "default"
    assert f"opabinia train {folder} --resume data.on_error=skip\n" in result.err
    assert opabinia("train", folder, "--resume", "data.on_error=skip").status == 0


def test_skip_replaces_broken_images_in_training_and_omits_them_in_evaluation(train: Train, tmp_path: Path) -> None:
    result = train("data.on_error=skip", "data.num_workers=2")
    assert result.status == 0, result.err
    assert "skipped: sample" in result.err and "empty.jpg cannot be decoded" in result.err
    folder = tmp_path / "runs" / "classification" / "image_folder" / "default"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ids = [name for line in lines for name in line.get("sample_ids", ())]
    assert len(ids) == 2 * 24, "broken images are replaced"
    assert not {"a/cut.jpg", "a/empty.jpg", "a/text.jpg"} & set(ids) and "a/wide.jpg" in ids
    assert [line["val/skipped"] for line in lines if "val/top1" in line] == [3.0, 3.0]


def test_a_class_folder_without_images_is_reported_before_the_first_step(root: Path, train: Train) -> None:
    (root / "train" / "c").mkdir()
    result = train()
    assert result.status == 2 and "c has no image" in result.err and "Traceback" not in result.err


def test_development_mode_prints_the_traceback_of_a_config_error(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "dev", "-m", "opabinia", "report", tmp_path / "no run"]  # imports no torch
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and "no run" in result.stderr.splitlines()[-1] and "Traceback" in result.stderr
