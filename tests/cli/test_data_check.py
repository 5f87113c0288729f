"""``opabinia data check``, and broken boxes as the other commands tell them: one clear line, exit status 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts import small_data
from tests.cli.conftest import Ended

Command = Callable[..., Ended]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    small_data.coco(tmp_path)
    source = f"{{name: coco, root: {tmp_path}, file: {tmp_path / 'things.json'}, masks: true}}"
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "base: classification/digits\n"
        f"data:\n  train: {{source: {source}, transforms: []}}\n  val: {{source: {source}, transforms: []}}\n"
    )
    return file


def edit(recipe: Path, **values: Any) -> None:
    file = recipe.parent / "things.json"
    content = json.loads(file.read_text())
    content["annotations"][0].update(values)
    file.write_text(json.dumps(content))


def test_a_sound_set(opabinia: Command, recipe: Path) -> None:
    done = opabinia("data", "check", recipe)
    assert done.status == 0, done.err
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines()]
    assert cells.count(["things", "5"]) == cells.count(["of them without things", "1"]) == 2
    assert cells.count(["block", "3", "3"]) == cells.count(["bar", "2", "2"]) == 2 and "broken" not in done.out
    assert done.err == ""


def test_broken_things_are_told_and_end_with_2(opabinia: Command, recipe: Path) -> None:
    edit(recipe, bbox=[9, 5, -4, 6])
    done = opabinia("data", "check", recipe, "data.val=null")
    assert done.status == 2 and "Traceback" not in done.err
    assert done.err == f"error: {recipe}: 1 broken things in the data\n"
    assert "broken: boxes without area" in done.out
    assert "  1.png, annotation 100: left, top, width, height 9, 5, -4, 6 in 64 x 48 pixels" in done.out


def test_json(opabinia: Command, recipe: Path) -> None:
    edit(recipe, category_id=99)
    done = opabinia("data", "check", recipe, "--json")
    found = json.loads(done.out)
    assert done.status == 2 and found.keys() == {"train", "val"}
    assert found["train"]["boxes"]["of_class"] == {"block": 2, "bar": 2}
    (fault,) = found["val"]["problems"]
    assert fault["kind"] == "classes that are not in the list" and fault["count"] == 1
    assert fault["first"] == [{"picture": "1.png", "thing": "annotation 100", "value": "category_id 99"}]


def test_a_set_of_images(opabinia: Command) -> None:
    done = opabinia("data", "check", "classification/digits")
    assert done.status == 0 and done.out.count("pictures") == 4 and "things" not in done.out


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bbox": [9, 5, -4, 6]}, "1 boxes without area: 1.png, annotation 100: "),
        ({"bbox": [9, float("nan"), 4, 6]}, "1 boxes that are not four numbers: 1.png, annotation 100: "),
        ({"category_id": 9}, "1 classes that are not in the list: 1.png, annotation 100: category_id 9"),
        ({"image_id": 9}, "1 pictures that are not in the list: picture 9, annotation 100: image_id 9"),
    ],
)
@pytest.mark.parametrize("command", [("train",), ("config", "check", "--build")], ids=["train", "check"])
def test_nothing_is_trained_on_broken_things(
    opabinia: Command, recipe: Path, command: tuple[str, ...], values: dict[str, Any], message: str
) -> None:
    edit(recipe, **values)
    done = opabinia(
        *command, recipe, "data.val=null", *(["--out", recipe.parent / "runs"] if "train" in command else [])
    )
    assert done.status == 2 and "Traceback" not in done.err
    (line,) = done.err.splitlines()
    assert line.startswith("error: ") and "data.train.source" in line and message in line and "broken: drop" in line


def test_a_cut_file_is_told_by_every_command(opabinia: Command, recipe: Path) -> None:
    file = recipe.parent / "things.json"
    file.write_bytes(file.read_bytes()[:500])
    for command in (("train",), ("data", "check")):
        done = opabinia(*command, recipe, "data.train.source.broken=drop", "data.val=null")
        assert done.status == 2 and "is no whole JSON: " in done.err and "line 1, column 5" in done.err
