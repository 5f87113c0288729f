"""``opabinia predict --tile``: overrides of the config of a run; tests/cli/test_errors.py has the invalid ones."""

import pytest

from opabinia.cli.predict import _overrides


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
