"""The commands of docs/video.md run as they stand there, on films and a short run."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from opabinia import launch
from opabinia.cli import app
from opabinia.config.compose import packaged_names
from tests.config.test_paddlevideo import MULTIGRID
from tests.data.films import write

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "video.md").read_text(encoding="utf-8")


def commands(heading: str) -> list[list[str]]:
    """The words of the commands in the section below a heading, without what is written to files."""
    section = TEXT.partition(f"## {heading}")[2].partition("\n## ")[0]
    lines = [line.partition("#")[0].partition(">")[0] for line in section.splitlines() if line.startswith("opabinia ")]
    return [shlex.split(line)[1:] for line in lines]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the commands name."""
    place = tmp_path_factory.mktemp("place")
    for number in range(4):
        write(place / "folder" / ("to" if number % 2 else "fro") / f"{number}.mp4", 18 + number, size=(32, 32))
    write(place / "film.mp4", 18, size=(32, 32))
    (place / "slowfast_multigrid.yaml").write_text(MULTIGRID, encoding="utf-8")
    films = f"{{name: videos, root: {json.dumps(str(place / 'folder'))}, channels: 1}}"
    small = ["train.length=2it", "data.workers=0", "data.batch_size=4", "writers=[]", "schedule.warmup=1it"]
    sources = [f"data.train.source={films}", f"data.val.source={films}"]
    launch.train("video/digits", [*sources, *small], out=place / "runs")
    return place


@pytest.mark.parametrize("words", [*commands("Looking"), *commands("From PaddleVideo")], ids=" ".join)
def test_the_command_runs(words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    done: Any = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


def test_the_recipes_are_those_that_there_are() -> None:
    table = TEXT.partition("## Recipes")[2].partition("\n## ")[0]
    told = set()
    for row in re.findall(r"^\| (`[a-z_]+/.+`) \|", table, re.M):
        first, *others = (name.strip("` ") for name in row.split(","))
        told |= {first, *(f"{first.partition('/')[0]}/{name}" for name in others)} if "/" in first else set()
    large = ("video/kinetics/", "video/something_something/", "video/charades/")
    assert {f"video/{name}" for name in told} == {name for name in packaged_names() if name.startswith(large)}
