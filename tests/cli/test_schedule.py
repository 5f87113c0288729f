"""``opabinia config show --schedule``: the batch shapes of a run over time, without training."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.conftest import CommandResult

RECIPE = "classification/digits"
Opabinia = Callable[..., CommandResult]
MULTIGRID = ("shapes={name: multigrid, size: 32, milestones: [9, 15, 20]}", "train.length=24ep", "data.batch_size=16")


def rows(result: CommandResult) -> list[list[str]]:
    """Return the cells of the table's body; lines of a row are joined."""
    assert result.status == 0, result.err
    lines = [line for line in result.out.splitlines() if line.startswith("│")]
    cells_by_row: list[list[str]] = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        if cells[0]:
            cells_by_row.append(cells)
        else:
            cells_by_row[-1] = [f"{above} {cell}".strip() for above, cell in zip(cells_by_row[-1], cells, strict=True)]
    return cells_by_row


def test_without_shapes(opabinia: Opabinia) -> None:
    result = opabinia("config", "show", RECIPE, "--schedule", "train.length=3ep", "data.batch_size=479")
    assert rows(result) == [["0 to 3", "9", "479", "x 1", "", "1.00", "100.0%"]]
    assert "times" not in result.out


def test_multigrid(opabinia: Opabinia, tmp_path: Path) -> None:
    plot = tmp_path / "images" / "schedule.png"
    result = opabinia("config", "show", RECIPE, "--schedule", *MULTIGRID, "--out", plot)
    table = rows(result)
    assert table[0][2:5] == ["64 x 16 x 16 32 x 23 x 23 (2 times)", "x 2", "in 4 parts"]
    assert table[-1][0].endswith("to 36")
    assert table[-1][2:5] == ["64 x 16 x 16 32 x 23 x 23 16 x 32 x 32", "x 0.001", "in 2 parts"]
    (reduction,) = re.findall(r"baseline of 24ep: 2160 steps, 34488 samples; (\d\.\d\d) times fewer steps", result.out)
    assert 1.5 < float(reduction) < 1.8
    assert sum(float(row[6].rstrip("%")) for row in table) == pytest.approx(100 / float(reduction), rel=0.05)
    with Image.open(plot) as image:
        assert image.width == 900


def test_world_size(opabinia: Opabinia) -> None:
    result = opabinia("config", "show", RECIPE, "--schedule", *MULTIGRID, "--nproc", 8)
    assert [row[4] for row in rows(result)[:2]] == ["over 2 ranks", "over 4 ranks"]
    result = opabinia("config", "show", RECIPE, "--schedule", *MULTIGRID, "--nproc", 2, "train.sync_batch_norm=true")
    assert {row[4] for row in rows(result)} == {""}, "norms use the whole batch"
    result = opabinia("config", "show", RECIPE, "--schedule", *MULTIGRID, "train.reference_world_size=1", "--nproc", 2)
    assert "for world size 2 instead of 1: data.batch_size: 16 -> 32" in result.err
    assert rows(result)[0][4] == "in 4 parts"
