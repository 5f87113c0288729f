"""``opabinia config show --schedule``: the batches of a run over time, shown before it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.conftest import Ended

RECIPE = "classification/digits"
Opabinia = Callable[..., Ended]
MULTIGRID = ("shapes={name: multigrid, size: 32, milestones: [9, 15, 20]}", "train.length=24ep", "data.batch_size=16")


def rows(ended: Ended) -> list[list[str]]:
    """The cells of the table's body, joined where a row has several lines."""
    assert ended.status == 0, ended.err
    lines = [line for line in ended.out.splitlines() if line.startswith("│")]
    found: list[list[str]] = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        if cells[0]:
            found.append(cells)
        else:
            found[-1] = [f"{one} {other}".strip() for one, other in zip(found[-1], cells, strict=True)]
    return found


def test_without_shapes(opabinia: Opabinia) -> None:
    ended = opabinia("config", "show", RECIPE, "--schedule", "train.length=3ep", "data.batch_size=479")
    assert rows(ended) == [["0 to 3", "9", "479", "x 1", "", "1.00", "100.0%"]]
    assert "times" not in ended.out


def test_multigrid(opabinia: Opabinia, tmp_path: Path) -> None:
    drawing = tmp_path / "images" / "schedule.png"
    ended = opabinia("config", "show", RECIPE, "--schedule", *MULTIGRID, "--out", drawing)
    found = rows(ended)
    assert found[0][2:5] == ["64 x 16 x 16 32 x 23 x 23 (2 times)", "x 2", "in 4 parts"]
    assert found[-1][0].endswith("to 36")
    assert found[-1][2:5] == ["64 x 16 x 16 32 x 23 x 23 16 x 32 x 32", "x 0.001", "in 2 parts"]
    (saved,) = re.findall(r"baseline of 24ep: 2160 steps, 34488 samples; (\d\.\d\d) times fewer steps", ended.out)
    assert 1.5 < float(saved) < 1.8
    assert sum(float(row[6].rstrip("%")) for row in found) == pytest.approx(100 / float(saved), rel=0.05)
    with Image.open(drawing) as drawn:
        assert drawn.width == 900


@pytest.mark.parametrize(
    ("shapes", "first"),
    [
        ("{name: progressive, start: 32, end: 64, until: 0.5}", "64 x 32 x 32"),
        ("{name: multi_scale, sizes: [64, 32]}", "64 x 64 x 64 64 x 32 x 32"),
    ],
)
def test_other_shapes(opabinia: Opabinia, shapes: str, first: str) -> None:
    ended = opabinia("config", "show", RECIPE, "--schedule", f"shapes={shapes}", "train.length=4ep")
    assert rows(ended)[0][2] == first
    assert "1.00 times fewer steps" in ended.out


def test_on_many_processes(opabinia: Opabinia) -> None:
    ended = opabinia("config", "show", RECIPE, "--schedule", *MULTIGRID, "--nproc", 8)
    assert [row[4] for row in rows(ended)[:2]] == ["over 2 ranks", "over 4 ranks"]
    ended = opabinia("config", "show", RECIPE, "--schedule", *MULTIGRID, "--nproc", 2, "train.sync_batch_norm=true")
    assert {row[4] for row in rows(ended)} == {""}, "over the whole batch"
    ended = opabinia("config", "show", RECIPE, "--schedule", *MULTIGRID, "train.reference_world_size=1", "--nproc", 2)
    assert "for world size 2 instead of 1: data.batch_size: 16 -> 32" in ended.err
    assert rows(ended)[0][4] == "in 4 parts"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schedule", "--nproc", "5", *MULTIGRID], "its batch of 64 does not divide by 5 ranks"),
        (["--schedule", *MULTIGRID, "train.length=3ep", "shapes.milestones=[1, 2]"], "it has no epochs; train longer"),
        (["--schedule", *MULTIGRID, "shapes.short_cycle=[2]"], "shapes.short_cycle.0"),
        (["--schedule", *MULTIGRID, "shapes.milestones=[30]"], "[30] must ascend between epoch 0 and 24"),
        (["--schedule", "train.length=0ep"], "train.length: 0ep is a run without a single step"),
        (["--out", "a.png"], "--out: belongs to --schedule"),
        (["--nproc", "2"], "--nproc: belongs to --schedule"),
        (["--schedule", "--out", "/proc/a.png"], "cannot write /proc/a.png"),
        (["--schedule", "--out", "a.jpg"], "a.jpg: the image must be a FILE.png"),
    ],
)
def test_refusals_are_one_line(
    opabinia: Opabinia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = opabinia("config", "show", RECIPE, *arguments)
    assert ended.status == 2 or "/proc" in message
    assert message in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
