"""The four programs of docs/comparison.md train and resume."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from opabinia.training.launch import train

COMPARISON = Path(__file__).resolve().parents[2] / "docs" / "examples" / "comparison"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Light and dark images: 32 for training and 20 for validation of each class."""
    root = tmp_path_factory.mktemp("data")
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 32), ("validation", 20)):
        for name, lowest in (("dark", 0), ("light", 128)):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = torch.randint(lowest, lowest + 128, (24, 24, 3), generator=generator, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(root / split / name / f"{i}.png")
    return root


def test_the_config_trains(folder: Path, tmp_path: Path) -> None:
    small = ["task.backbone.model=test_resnet", "task.backbone.pretrained=false", "vars.size=24", "vars.enlarged=27"]
    short = ["train.length=1ep", "schedule.warmup=1it", "data.num_workers=0", "train.precision=fp32"]
    _, scores = train(
        str(COMPARISON / "opabinia.yaml"), [f"vars.root={folder}", *small, *short], out=tmp_path, name="run"
    )
    assert "val/top1" in scores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "library"),
    [("plain_pytorch", "torch"), ("with_lightning", "lightning"), ("with_hf_trainer", "accelerate")],
)
def test_the_other_programs_train_and_resume(program: str, library: str, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip(library)
    if program == "with_hf_trainer":
        pytest.importorskip("transformers")
    command = [sys.executable, str(COMPARISON / f"{program}.py"), str(folder), "--out", str(tmp_path)]
    for more in (["--epochs", "1"], ["--epochs", "2", "--resume"]):
        options = ["--model", "test_resnet", "--no-pretrained", "--size", "24", *more]
        result = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
