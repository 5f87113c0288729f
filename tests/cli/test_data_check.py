"""``opabinia data check``, and broken boxes as the other commands report them: one clear line, exit status 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts import small_data
from tests.cli.conftest import CommandResult
from tests.data.videos import write

Command = Callable[..., CommandResult]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    small_data.coco(tmp_path)
    source = f"{{name: coco, root: {tmp_path}, file: {tmp_path / 'annotations.json'}, masks: true}}"
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "base: classification/digits\n"
        f"data:\n  train: {{source: {source}, transforms: []}}\n  val: {{source: {source}, transforms: []}}\n"
    )
    return file


NO_VAL = "data.val=null"


def edit(recipe: Path, **values: Any) -> None:
    file = recipe.parent / "annotations.json"
    content = json.loads(file.read_text())
    content["annotations"][0].update(values)
    file.write_text(json.dumps(content))


def test_valid_data(opabinia: Command, recipe: Path) -> None:
    result = opabinia("data", "check", recipe, NO_VAL)
    assert result.status == 0, result.err
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.out.splitlines()]
    assert cells.count(["objects", "5"]) == cells.count(["images without objects", "1"]) == 1
    objects = [(row[0], *row[-2:]) for row in cells if len(row) == 5]
    assert objects == [("block", "3", "0.600"), ("bar", "2", "0.400")] and "wrong" not in result.out
    assert result.err == ""


def test_a_recipe_with_task_and_data_only(opabinia: Command, tmp_path: Path) -> None:
    file = tmp_path / "only.yaml"
    task = "task: {name: classification, backbone: {name: timm, model: test_resnet}}"
    file.write_text(f"{task}\ndata: {{train: {{source: {{name: digits, split: val}}}}}}\n")
    result = opabinia("data", "check", file, "--limit", 8, "--workers", 0)
    assert (result.status, result.err) == (0, "")


def test_broken_objects_are_reported_and_end_with_2(opabinia: Command, recipe: Path) -> None:
    edit(recipe, bbox=[9, 5, -4, 6])
    result = opabinia("data", "check", recipe, NO_VAL)
    assert result.status == 2 and "Traceback" not in result.err
    assert result.err == f"error: {recipe}: 1 error in the data\n"
    assert "error: boxes without area" in result.out
    assert "  1.png, annotation 100: left, top, width, height 9, 5, -4, 6 in 64 x 48 pixels" in result.out


def test_json(opabinia: Command, recipe: Path) -> None:
    edit(recipe, category_id=99)
    result = opabinia("data", "check", recipe, "--json", "-")
    report = json.loads(result.out)
    assert result.status == 2 and report["datasets"].keys() == {"train", "val"}
    assert report["datasets"]["train"]["boxes"]["per_class"] == {"block": 2, "bar": 2}
    unknown, leaked, _ = report["findings"]
    assert unknown["kind"] == "unknown classes" and unknown["count"] == 2 and unknown["is_error"]
    case = {"id": "1.png", "annotation": "annotation 100", "value": "category_id 99", "box": None}
    assert unknown["cases"] == [[{"dataset": "train", **case}], [{"dataset": "val", **case}]]
    assert leaked["kind"] == "in training and validation: identical file" and leaked["count"] == 4

    file = recipe.parent / "findings.json"
    again = opabinia("data", "check", recipe, "--json", file)
    assert json.loads(file.read_text()) == report and "error: in training and validation" in again.out


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """A recipe of three videos, one of which is a text file."""
    for number in range(2):
        write(tmp_path / "videos" / "ab"[number] / "0.mp4", 4 + 2 * number, size=(32, 40))
    (tmp_path / "videos" / "b" / "text.mp4").write_text("no video " * 40)
    file = tmp_path / "recipe.yaml"
    source = f"{{name: videos, root: {tmp_path / 'videos'}}}"
    file.write_text(
        "base: video/digits\ntask: {mean: [0.5], std: [0.2]}\n"
        f"data: {{train: {{source: {source}, transforms: [{{name: clip, frames: 2}}]}}, val: null}}\n"
    )
    return file


def test_videos(opabinia: Command, videos: Path) -> None:
    result = opabinia("data", "check", videos)
    assert result.status == 2 and result.err == f"error: {videos}: 1 error in the data\n"
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.out.splitlines()]
    for row in (["videos", "3"], ["largest video", "40 x 32"], ["frames", "4 to 6, median 5"], ["a", "1", "0.333"]):
        assert row in cells
    assert ["error: videos that cannot be read", "train", "1"] in cells and ["b", "2", "0.667"] in cells
    assert f"  b/text.mp4: {videos.parent / 'videos' / 'b' / 'text.mp4'} is not a video, but text" in result.out


def test_packed_videos(opabinia: Command, videos: Path) -> None:
    packed = videos.parent / "packed"
    command = ("data", "pack", videos, "--out", packed, "--size", 16)
    result = opabinia(*command)
    assert result.status == 2 and "Traceback" not in result.err
    assert (
        result.err.splitlines()[-1].startswith("error: video 2: ") and "text.mp4 is not a video, but text" in result.err
    )
    result = opabinia(*command, "data.on_error=skip")
    assert result.status == 0 and result.out.startswith("2 videos, 10 frames, "), result.err
    assert result.out.endswith(f"1 skipped\nsource: {{name: packed_videos, root: {packed}}}\n")
    again = opabinia("data", "check", videos, f"data.train.source={{name: packed_videos, root: {packed}}}")
    assert again.status == 0 and "20 x 16" in again.out
    wrong = opabinia(*command, "--section", "val")
    assert wrong.status == 2 and "--section: there is no 'val'; there is train" in wrong.err


@pytest.mark.parametrize(
    ("command", "values", "message"),
    [
        ("train", {"bbox": [9, 5, -4, 6]}, "1 box without area: 1.png, annotation 100: "),
        ("check", {"bbox": [9, float("nan"), 4, 6]}, "1 box that is not four finite numbers of at most 2^24: 1.png, "),
        ("check", {"category_id": 9}, "1 unknown class: 1.png, annotation 100: category_id 9"),
        ("train", {"image_id": 9}, "1 unknown image: image 9, annotation 100: image_id 9"),
    ],
)
def test_broken_objects_stop_training_and_config_check(
    opabinia: Command, recipe: Path, command: str, values: dict[str, Any], message: str
) -> None:
    edit(recipe, **values)
    words = {"train": ["train", "--out", recipe.parent / "runs"], "check": ["config", "check", "--build"]}
    result = opabinia(*words[command], recipe, NO_VAL)
    assert result.status == 2 and "Traceback" not in result.err
    (line,) = result.err.splitlines()
    assert line.startswith("error: ") and "data.train.source" in line and message in line and "broken: drop" in line


def test_a_truncated_file_is_reported_by_every_command(opabinia: Command, recipe: Path) -> None:
    file = recipe.parent / "annotations.json"
    file.write_bytes(file.read_bytes()[:500])
    for command in (("train",), ("data", "check")):
        result = opabinia(*command, recipe, "data.train.source.broken=drop", "data.val=null")
        assert result.status == 2 and "is not complete JSON: " in result.err and "line 1, column 5" in result.err
