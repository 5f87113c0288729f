"""``opabinia train FOLDER``: a folder of data is recognised, and the commands that are named train on it."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from opabinia.cli.folder_recipes import check_no_data
from opabinia.config import ConfigError
from opabinia.training.run_folder import build_parts, resolve
from scripts import small_data
from tests.cli.conftest import CommandResult


def photos(root: Path) -> None:
    for shot in small_data.shots(range(3)):
        small_data.save(root / f"{shot.identity}_{shot.number}.PNG", shot)


def classes_of_splits(root: Path) -> None:
    for split in ("train", "valid"):
        small_data.class_folders(root / split)


def masks(root: Path) -> None:
    small_data.label_maps(root)
    for split in ("train", "val"):
        (root / split / "labels").rename(root / split / "masks")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (small_data.yolo, ["YOLO", "detection/coco_format", "name: yolo", "split: train", "data.val=null"]),
        (small_data.roboflow, ["Roboflow", "detection/coco_format", "split: train", "split: valid"]),
        (small_data.coco2017, ["COCO files", "detection/coco_format", "vars.train=train2017", "vars.val=val2017"]),
        (small_data.coco_folders, ["COCO files", "detection/coco_format", "detection/finetune"]),
        (small_data.coco, ["a COCO file", "detection/coco_format", "annotations.json", "data.val=null"]),
        (small_data.voc, ["Pascal VOC", "detection/coco_format", "name: voc", "data.val=null"]),
        (small_data.market1501, ["identities", "reid/grocery", "reid/market1501/bot", ".source.cameras="]),
        (small_data.label_maps, ["label maps", "segmentation/image_folder", "vars.classes=[class_0,class_1]"]),
        (masks, ["label maps", "segmentation/image_folder", "data.val.source.labels=masks"]),
        (small_data.class_folders, ["for each class", "classification/image_folder", "vars.train=.", "data.val=null"]),
        (classes_of_splits, ["for each class", "classification/image_folder", "vars.val=valid"]),
        (small_data.kinetics, ["videos in a folder", "video/folder"]),
        (photos, ["without labels", "selfsup/images"]),
    ],
)
def test_the_commands_fit_the_folder(write: Callable[[Path], None], words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "my data, too"
    write(folder)
    with pytest.raises(ConfigError) as error:
        check_no_data(str(folder))
    message, *commands = str(error.value).splitlines()
    assert message.startswith(f"{folder}: is a folder of data (")
    assert not [word for word in words if word not in str(error.value)], str(error.value)
    for command in commands:
        program, train, recipe, *overrides = shlex.split(command)
        assert (program, train) == ("opabinia", "train")
        run = build_parts(resolve(recipe, [*overrides, "train.device=cpu"])).keywords
        assert len(run["data"].train.source) and all(len(val.source) for val in run["data"].validation)


@pytest.mark.parametrize("inside", ["", "config.yaml", "note.txt", "folder.json"])
def test_other_folders_are_left_to_the_config(inside: str, tmp_path: Path) -> None:
    if inside == "folder.json":
        (tmp_path / inside).mkdir()
    elif inside:
        (tmp_path / inside).write_text("{}")
    check_no_data(str(tmp_path))


def test_train_prints_the_commands(opabinia: Callable[..., CommandResult], tmp_path: Path) -> None:
    classes_of_splits(tmp_path / "birds")
    result = opabinia("train", tmp_path / "birds")
    assert result.status == 2
    first, command = result.err.splitlines()
    assert first.endswith("neither a recipe nor a run folder; train on it with")
    assert command == f"  opabinia train classification/image_folder vars.root={tmp_path}/birds vars.val=valid"
