"""The images of README are those that scripts/docs_images.py draws."""

from collections.abc import Callable
from pathlib import Path

import pytest

import opabinia
from scripts import docs_images
from tests.data.videos import write


def test_the_logo_is_up_to_date() -> None:
    assert (docs_images.OUT / "opabinia.svg").read_text(encoding="utf-8") == docs_images.logo()


def test_images_are_small() -> None:
    large = [path for path in docs_images.OUT.rglob("*.*") if path.stat().st_size > 150_000]
    assert not large


def test_frames_of_tracked_videos(tmp_path: Path) -> None:
    for name in ("motion.mp4", "appearance.mp4"):
        write(tmp_path / name, 24, size=(32, 32))
    sheet = docs_images.tracks(sorted(tmp_path.glob("*.mp4")), shown=(0, 9, 23), side=40)
    assert sheet.size == (120, 80) and len({sheet.crop((40 * x, 0, 40 * x + 40, 40)).tobytes() for x in range(3)}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "detection", "selfsup"])
def test_an_image_can_be_drawn(task: str, workspace: Callable[..., Path]) -> None:
    runs = {"selfsup": "runs/selfsup/digits_vicreg/default"}
    run = runs.get(task, f"runs/{task}/digits/default")
    workspace(run)
    drawn = docs_images.TASKS[task](opabinia.load(run))
    assert drawn.width <= 400 and len(set(drawn.convert("L").get_flattened_data())) > 10
