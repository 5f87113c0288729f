"""Every command that a finished run suggests works on that run, on any kind of data."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.cli.outcome import next_commands
from tests.cli.conftest import SIX_STEPS

TINY = ["train.length=2it", *SIX_STEPS[1:], "task.backbone.model=test_resnet"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of 24 images without labels, of different sizes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(24):
        pixels = generator.integers(0, 256, (40 + number, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


def suggestions(run: Path, photos: Path) -> list[list[str]]:
    """Return the suggested commands, with the photos as the user's images and a short length."""
    words = {
        "IMAGES/": str(photos),
        "QUERIES/": str(photos),
        "GALLERY/": str(photos),
        "train.length=LONGER": "train.length=3it",
    }
    return [[words.get(word, word) for word in command.words] for command in next_commands(run)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("selfsup/images", ["vars.size=32", "vars.batch=4"]),
        ("selfsup/images", ["vars.size=32", "vars.batch=4", "data.val=null", "checkpoint.best=null"]),
        ("classification/digits", ["data.batch_size=16"]),
        ("detection/digits", ["data.batch_size=4"]),
        ("reid/digits", ["data.batch_size=16"]),
    ],
    ids=["images", "images-without-validation", "classification", "detection", "reid"],
)
def test_suggested_commands_work(
    opabinia: Callable[..., Any], tmp_path: Path, photos: Path, recipe: str, overrides: list[str]
) -> None:
    root = [f"vars.root={photos}"] if recipe == "selfsup/images" else []
    assert opabinia("train", recipe, *root, *TINY, *overrides, "--out", tmp_path).status == 0
    for words in suggestions(tmp_path / recipe / "default", photos):
        if words[0] == "opabinia":
            result = opabinia(*words[1:])
            assert result.status == 0 or "pip install" in result.err, f"{shlex.join(words)}: {result.err}"


def test_unlabeled_images_have_a_validation_loss(opabinia: Callable[..., Any], tmp_path: Path, photos: Path) -> None:
    train = ("train", "selfsup/images", f"vars.root={photos}", "vars.size=32", "vars.batch=4", *TINY, "--out", tmp_path)
    result = opabinia(*train)
    run = tmp_path / "selfsup" / "images" / "default"
    assert result.status == 0 and "val/loss" in result.out
    assert "linear_probe" not in result.out and f"opabinia map {run}" in result.out
    result = opabinia(*train, "data.val=null", "checkpoint.best=null", "--name", "blind")
    assert result.status == 0 and "train/loss" in result.out
    assert "opabinia eval" not in result.out.partition("next:")[2] and "opabinia map" not in result.out
