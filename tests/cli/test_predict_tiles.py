"""``opabinia predict --tile``: overrides of the config of a run, checked like all others."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from opabinia.cli.predict import _overrides
from tests.cli.conftest import CommandResult


def test_invalid_tiles_are_rejected(opabinia: Callable[..., CommandResult], six_steps: Path, tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    Image.new("L", (8, 8)).save(image)
    for words, message in (
        (["--tile", "8"], "task.tiles: unknown key"),
        (["--tile", "8", "--gallery", tmp_path], "--tile: tiles are for object detection, not for --gallery"),
        (["--tile", "8", "--task", "a,b"], "--tile: tiles are for the detector: give it alone as --task, not a,b"),
        (["--overlap", "0.1", "--gallery", tmp_path], "--overlap: tiles are for object detection"),
        (["--set", "task.no_such_key=1"], "task.no_such_key: unknown key"),  # also of a run folder
    ):
        result = opabinia("predict", six_steps, image, *words)
        assert result.status == 2 and message in result.err and result.err.count("\n") == 1, result.err


@pytest.mark.parametrize(
    ("tile", "overlap", "expected"),
    [
        (None, None, []),
        (256, None, ["{}.tiles={{size: 256}}"]),
        (256, 0.1, ["{}.tiles={{size: 256, overlap: 0.1}}"]),
        (None, 0.1, ["{}.tiles.overlap=0.1"]),
    ],
)
def test_options_are_config_overrides(tile: int | None, overlap: float | None, expected: list[str]) -> None:
    for name, section in (("", "task"), ("boxes", "task.tasks.boxes.task")):
        overrides = _overrides(["a=1"], tile, overlap, name, None)
        assert overrides == ["a=1", *(text.format(section) for text in expected)]
