"""Folders as they come: broken files among the pictures, classes without any."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SMALL = (
    *("task.backbone.model=test_resnet", "data.train.transforms.0.size=32", "vars.size=32", "vars.enlarged=36"),
    *("data.batch_size=4", "train.length=2ep", "train.log_samples=true", "train.threads=1", "writers=[]"),
)


def picture(path: Path, size: tuple[int, int] = (40, 48), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ten good pictures a class in each of two sets, and among them one of each kind that goes wrong."""
    for split in ("train", "val"):
        for number in range(20):
            picture(tmp_path / "data" / split / "ab"[number % 2] / f"{number:02d}.jpg", seed=number)
        folder = tmp_path / "data" / split / "a"
        content = picture(folder / "cut.jpg").read_bytes()
        (folder / "cut.jpg").write_bytes(content[: len(content) // 3])
        (folder / "empty.jpg").touch()
        (folder / "text.jpg").write_text("no picture at all")
        picture(folder / "wide.jpg", size=(8, 20_000))
    return tmp_path / "data"


def train(root: Path, out: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    words = ["train", "classification/image_folder", f"vars.root={root}", f"--out={out}", *SMALL, *overrides]
    return subprocess.run([sys.executable, "-m", "opabinia", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_raise_names_file_and_reason(root: Path, tmp_path: Path, workers: int) -> None:
    done = train(root, tmp_path / "runs", f"data.workers={workers}")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert any(f"{name}.jpg cannot be decoded: " in done.stderr for name in ("cut", "empty", "text"))


def test_skip_trains_on_others_and_leaves_out_in_evaluation(root: Path, tmp_path: Path) -> None:
    done = train(root, tmp_path / "runs", "data.on_error=skip", "data.workers=2")
    assert done.returncode == 0, done.stderr
    assert "passed over: sample" in done.stderr and "empty.jpg cannot be decoded" in done.stderr
    folder = tmp_path / "runs" / "classification" / "image_folder" / "default"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ids = [name for line in lines for name in line.get("sample_ids", ())]
    assert len(ids) == 2 * 24, "every place is taken"
    assert not {"a/cut.jpg", "a/empty.jpg", "a/text.jpg"} & set(ids) and "a/wide.jpg" in ids
    assert [line["val/skipped"] for line in lines if "val/top1" in line] == [3.0, 3.0]


def test_a_class_folder_without_pictures_is_told_before_the_first_step(root: Path, tmp_path: Path) -> None:
    (root / "train" / "c").mkdir()
    done = train(root, tmp_path / "runs")
    assert done.returncode == 2 and "c holds no picture" in done.stderr and "Traceback" not in done.stderr
