"""Objects in the formats of Pascal VOC and YOLO."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.contracts import Source
from opabinia.data.sources import coco, voc, yolo
from opabinia.data.sources.voc import CLASSES, parse_xml
from scripts import small_data
from tests.data.sources.hostile import bounded


def corners(objects: list[tuple[int, int, int, int, int]]) -> list[list[float]]:
    return [[left, top, left + width, top + height] for _, left, top, width, height in objects]


# --- Pascal VOC -------------------------------------------------------------------------------------------------------


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    small_data.voc(tmp_path)
    return tmp_path


def edit(root: Path, name: str, old: str, new: str) -> None:
    file = root / "Annotations" / f"{name}.xml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_voc_boxes_start_at_pixel_1(devkit: Path) -> None:
    source = voc(root=devkit)
    assert isinstance(source, Source)
    assert source.classes == ("bar", "block") and source.info.category_ids == (1, 2) and len(source) == 4
    for number, scene in enumerate(small_data.scenes()):
        sample = source[number]
        assert sample["id"] == f"JPEGImages/{scene.name}.png" == sample["ground_truth"].image_id
        assert sample["boxes"].tolist() == corners(scene.objects[:2]), "the third is difficult"
        assert sample["labels"].tolist() == [1 - label for label, *_ in scene.objects[:2]]
        assert sample["ground_truth"].crowd.tolist() == [False, False, True][:number]
        assert sample["ground_truth"].boxes.tolist() == [list(box) for _, *box in scene.objects]
        assert sample["ground_truth"].ids.tolist() == [1, 2, 3][:number]
    learned = voc(root=devkit, difficult="learn")[3]
    assert len(learned["boxes"]) == 3 and learned["ground_truth"].crowd.tolist() == [False, False, True]
    assert voc(root=devkit, difficult="learn", empty="drop", classes=["block"])[1]["boxes"].shape == (1, 4)


def test_voc_boxes_match_detectron2(devkit: Path) -> None:
    """detectron2 subtracts 1 from xmin and ymin, so a box of 1 to 10 is 10 pixels wide."""
    (devkit / "Annotations" / "1.xml").write_text(
        "<annotation><size><width>64</width><height>48</height></size><object><name>bar</name><bndbox><ymax>20</ymax>"
        "<xmin>1</xmin><xmax>10</xmax><ymin>11.5</ymin></bndbox><part><name>head</name><bndbox><xmin>1</xmin>"
        "<ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object></annotation>"
    )
    sample = voc(root=devkit)[1]
    assert sample["boxes"].tolist() == [[0, 10.5, 10, 20]] and sample["ground_truth"].areas.tolist() == [95]


def test_rotated_boxes_of_rolabelimg(devkit: Path) -> None:
    """The angle is clockwise, in radians; other objects are upright."""
    rotated = "<cx>30</cx><cy>20</cy><w>20</w><h>10</h><angle>0.5235987755982988</angle>"
    (devkit / "Annotations" / "1.xml").write_text(
        "<annotation><size><width>64</width><height>48</height></size>"
        f"<object><type>robndbox</type><name>bar</name><robndbox>{rotated}</robndbox></object>"
        "<object><name>bar</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>20</xmax><ymax>10</ymax></bndbox></object>"
        "</annotation>"
    )
    sample = voc(root=devkit, oriented=True)[1]
    expected = torch.tensor([[30.0, 20, 20, 10, -30], [10, 5, 20, 10, 0]])  # counterclockwise, in degrees
    assert torch.allclose(sample["boxes"], expected, atol=1e-4)
    boxes = voc(root=devkit)[1]["boxes"]
    half = np.array([10 * np.cos(np.pi / 6) + 2.5, 10 * np.sin(np.pi / 6) + 5 * np.cos(np.pi / 6)])
    center = np.array([30, 20])
    np.testing.assert_allclose(boxes[0], np.concatenate([center - half, center + half]), atol=1e-4)
    assert boxes[1].tolist() == [0, 0, 20, 10]
    edit(devkit, "1", "<w>20", "<w>-20")
    with pytest.raises(ValueError, match=r"1 box without area: JPEGImages/1\.png, object 1"):
        voc(root=devkit, oriented=True)
    edit(devkit, "1", "<angle>0.5", "<angle>x")
    with pytest.raises(ValueError, match=r"object 'bar' has no box of five numbers \(cx, cy, w, h, angle\)"):
        voc(root=devkit, oriented=True)


def test_the_classes_of_voc_are_those_of_all_splits(devkit: Path) -> None:
    (devkit / "ImageSets" / "Main" / "first.txt").write_text("0\n1\n")
    first = voc(root=devkit, split="first")
    assert len(first) == 2 and first.classes == ("bar", "block"), "as in the other splits"
    assert voc(root=devkit, split="first", classes=["block", "bar"])[1]["labels"].tolist() == [0]
    for number in (1, 2, 3):
        file = devkit / "Annotations" / f"{number}.xml"
        file.write_text(file.read_text().replace("block", "cat").replace("bar", "dog"))
    assert voc(root=devkit, split="first").classes == CLASSES and len(CLASSES) == 20


def test_xml_files_next_to_their_images(devkit: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit(devkit, "1", "<width>64</width><height>48</height>", "<width>0</width><height>0</height>")
    edit(devkit, "2", "<size><width>64</width><height>48</height><depth>3</depth></size>", "")
    folder = devkit / "flat"
    folder.mkdir()
    for file in [*(devkit / "Annotations").iterdir(), *(devkit / "JPEGImages").iterdir()]:
        file.rename(folder / file.name)
    (folder / "0.xml").unlink()
    source = voc(root=folder, split=None)
    assert len(source) == 3 and source[0]["id"] == "1.png"
    assert source.info.sizes.tolist() == [[48, 64]] * 3, "missing sizes are read from the images"
    assert "1 image without an XML file skipped" in caplog.text


NO_BOX = r"1\.xml: object 'block' has no box of four numbers \(xmin, ymin, xmax, ymax\): "


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("</object>", "", r"1 label file that cannot be read: 1\.xml: not complete XML: mismatched tag: line 1"),
        ("<xmin>", "<xmin>x", NO_BOX),
        ("<xmax>12", "<xmax>1e300", rf"{NO_BOX}'1e300' is not a number"),
        ("<name>block</name>", "", r"1\.xml: the object with the box 3, 17, 12, 22: name or difficult: '' is not a n"),
        ("</name>", "</name><difficult>no</difficult>", "1.xml: the object with the box .*'no' is none of 0, 1"),
        ("<width>64", "<width>99999999999999999999999", "1.xml: '9999.*' is not an integer of 64 bits"),
        ("<width>64", "<width>1099511627776", "1.xml: 1099511627776 x 48 is not a size in pixels"),
        ("<xmin>3<", "<xmin>40<", r"1 box without area: JPEGImages/1\.png, object 1: .* 39, "),
        ("<ymin>", "<ymin>-9", r"1 box that extends beyond the image: JPEGImages/1\.png, object 1"),
        ("<annotation>", "<!DOCTYPE a><annotation>", r"1\.xml: it declares a document type"),
        ("<annotation>", '<?xml version="1.0" encoding="no"?><annotation>', r"1\.xml: not complete XML: unknown enc"),
    ],
)
def test_broken_voc_annotations_are_reported(devkit: Path, old: str, new: str, message: str) -> None:
    edit(devkit, "1", old, new)
    with pytest.raises(ValueError, match=message):
        voc(root=devkit)
    source = voc(root=devkit, broken="drop")
    assert len(source.info.errors) == 1 and sum(len(source[number]["boxes"]) for number in range(len(source))) == 4


def test_entities_are_refused_in_any_encoding() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;">]><a>&c;</a>'
    for content in (bomb.encode(), bomb.encode("utf-16")):
        with pytest.raises(ValueError, match="declares a document type"):
            parse_xml(content)
    assert parse_xml("<a>\u00fc</a>".encode("utf-16")).text == "\u00fc"


def test_missing_files_of_voc_are_reported(devkit: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*val\.txt; .* which holds .*\.txt"):
        voc(root=devkit, split="val")
    (devkit / "ImageSets" / "Main" / "train.txt").write_text("1\n2\n2\n7\n")
    message = r"1 image that is listed more than once, 1 label file .*2: in the list; 7\.xml: No "
    with pytest.raises(ValueError, match=message):
        voc(root=devkit)
    (devkit / "JPEGImages" / "1.png").unlink()
    with pytest.raises(ValueError, match=r"1 missing image: JPEGImages/1\.jpg"):
        voc(root=devkit, split=None)
    assert len(voc(root=devkit, split=None, broken="drop")) == 3
    with pytest.raises(ValueError, match="has no XML files"):
        voc(root=devkit / "JPEGImages")
    (devkit / "ImageSets").rename(devkit / "other")
    with pytest.raises(ValueError, match="no folder ImageSets/Main with lists; split: null reads all XML files"):
        voc(root=devkit)
    for file in (devkit / "Annotations").iterdir():
        file.write_text("<annotation>")
    with pytest.raises(ValueError, match=r"4 label files that cannot be read: 0\.xml: "):
        voc(root=devkit, split=None)


# --- YOLO -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def export(tmp_path: Path) -> Path:
    small_data.yolo(tmp_path)
    return tmp_path


def test_boxes_and_polygons_of_yolo(export: Path) -> None:
    source = yolo(data=export / "data.yaml")
    assert isinstance(source, Source)
    assert source.classes == ("block", "bar") and source.info.category_ids == (0, 1) and not source.info.masks
    small_data.coco(export / "coco")
    same = coco(root=export / "coco", file=export / "coco" / "annotations.json")
    for number, scene in enumerate(small_data.scenes()):
        sample, expected = source[number], same[number]["ground_truth"]
        assert sample["id"] == f"images/train/{scene.name}.png" and sample["original_size"] == (48, 64)
        assert torch.allclose(sample["boxes"], torch.tensor(corners(scene.objects)).float().view(-1, 4), atol=1e-4)
        assert sample["labels"].tolist() == [label for label, *_ in scene.objects]
        assert sample["ground_truth"].ids.tolist() == [1, 2, 3][:number] and not sample["ground_truth"].crowd.any()
        np.testing.assert_allclose(sample["ground_truth"].boxes, expected.boxes, atol=1e-9)
        np.testing.assert_allclose(sample["ground_truth"].areas, expected.areas, atol=1e-9)


def test_polygons_are_optional_masks(export: Path) -> None:
    with pytest.raises(ValueError, match=r"4 objects without a segmentation: labels/train/1\.txt, line 1: 0 0\.1"):
        yolo(data=export / "data.yaml", masks=True)
    source = yolo(data=export / "data.yaml", masks=True, classes=["bar"], broken="drop")
    bar = source[2]
    assert source.info.masks and bar["masks"].shape == (1, 48, 64)
    assert bar["masks"].sum() == bar["ground_truth"].areas.round()[0]


@pytest.mark.parametrize(
    "text",
    [
        "path: .\ntrain: images/train\nnames: {0: block, 1: bar}\n",
        "train: ../images/train\nnc: 2\nnames: [block, bar]\nfirst: &first cell\nother: *first\n",
        "train: [images/train]\nnames: [block, bar]\n",
        "train: list.txt\nnames: [block, bar]\n",
        "train: images/list.txt\nnames: [block, bar]\n",
    ],
)
def test_all_ways_to_list_images(export: Path, text: str) -> None:
    (export / "data.yaml").write_text(text)
    (export / "list.txt").write_text("".join(f"images/train/{number}.png\n" for number in range(4)))
    (export / "images" / "list.txt").write_text("".join(f"./train/{number}.png\n\n" for number in range(4)))
    source = yolo(data=export / "data.yaml")
    assert [source[number]["id"] for number in range(4)] == [f"images/train/{number}.png" for number in range(4)]
    assert [len(source[number]["boxes"]) for number in range(4)] == [0, 1, 2, 3]


def test_the_root_can_be_overridden(export: Path) -> None:
    (export / "other").mkdir()
    file = (export / "data.yaml").rename(export / "other" / "data.yaml")
    file.write_text("path: /nowhere\ntrain: images/train\nnames: {2: bar, 0: block}\n")
    with pytest.raises(ValueError, match=r"path '/nowhere' leads to /nowhere, which is not a folder; set root"):
        yolo(data=file)
    with pytest.raises(ValueError, match=r"2 unknown classes: labels/train/2\.txt, line 2: class 1"):
        yolo(data=file, root=export)
    source = yolo(data=file, root=export, broken="drop")
    assert source.info.category_ids == (0, 2) and source.classes == ("block", "bar")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.1", r"1 line that is neither .*: labels/train/1\.txt, line 2: 0 0\.5 0\.5 0\.1"),
        ("0 0.5 0.5 0.1 0.1 0.9", "neither a box nor a polygon"),
        ("0 nan 0.5 0.1 0.1", "neither a box nor a polygon"),
        ("2 0.5 0.5 0.1 0.1", r"1 unknown class: labels/train/1\.txt, line 2: class 2"),
        ("0.5 0.5 0.5 0.1 0.1", r"unknown class: labels/train/1\.txt, line 2: class 0\.5"),
        ("0 0.5 0.5 -0.1 0.1", r"1 box without area: images/train/1\.png, line 2"),
        ("0 320 240 20 20", r"1 box outside the image: images/train/1\.png, line 2"),
        ("0 0.9 0.5 0.4 0.1", r"1 box that extends beyond the image: images/train/1\.png, line 2"),
        ("1 0.5 0.5 0.5 0.5 0.5 0.5", r"1 box without area"),
    ],
)
def test_broken_yolo_annotations_are_reported(export: Path, line: str, message: str) -> None:
    with (export / "labels" / "train" / "1.txt").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=message):
        yolo(data=export / "data.yaml")
    source = yolo(data=export / "data.yaml", broken="drop")
    assert source[1]["ground_truth"].ids.tolist() == [1] and [error.count for error in source.info.errors] == [1]


def bomb(first: str, rest: Callable[[str], str]) -> str:
    """Return YAML in which the alias ``a8`` stands for 10^9 values."""
    levels = [f"a{level}: &a{level} {rest(', '.join([f'*a{level - 1}'] * 10))}\n" for level in range(1, 9)]
    return f"a0: &a0 {first}\n" + "".join(levels)


SPLIT = "train: images/train\nnames: [block, bar]\n"
LISTS, MERGES = bomb("[x]", lambda aliases: f"[{aliases}]"), bomb("{x: 1}", lambda aliases: f"{{<<: [{aliases}]}}")
HUGE = "0x" + "f" * 5000  # YAML reads it; Python does not write it
DIGITS = "number of thousands of digits"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names: [block, bar]\nval: images/train\n", "has no split 'train'; splits: val"),
        ("train: images/no\nnames: [block, bar]\n", r"there is no .*images/no; .* which holds "),
        ("train: labels\nnames: [block, bar]\n", "labels has no image"),
        ("train: images/train\n", "has no 'names'"),
        ("train: images/train\nnames: {a: b}\n", "names is {'a': 'b'}; expected a list of names, or names by number"),
        ("train: images/train\nnames: [a, a]\n", "has two classes called 'a'"),
        ("train: images/train\nnames: [block, bar]\nnc: 3\n", "nc is 3, but 2 classes have names"),
        (f"{SPLIT}kpt_shape: [17, 4]", r"kpt_shape is \[17, 4\]; expected the number of keypoints, and 2 or 3"),
        (f"{SPLIT}kpt_shape: [a, 3]", "kpt_shape is "),
        (f"{SPLIT}kpt_shape: [0, 3]", "kpt_shape is "),
        (f"{SPLIT}kpt_shape: 17", "kpt_shape is 17; expected"),
        (f"{SPLIT}kpt_shape: [2, 3]\nflip_idx: [0, 0]", r"flip_idx is \[0, 0\]; expected each index from 0 to 1 once"),
        (f"{SPLIT}kpt_shape: [2, 3]\nkpt_names: [a]", r"kpt_names is \['a'\]; expected 2 names"),
        ("train: [images/train, images]\nnames: [a, b]\n", "4 images that are listed more than once: images/train/0"),
        ("names: !!python/object/apply:os.getcwd []\n", "is not YAML"),
        (f"{LISTS}names: [*a8]\ntrain: images", r"is not YAML: \*a0 stands for a list or mapping; write it out"),
        (f"{MERGES}names: [a]\ntrain: images", "write it out"),
        ("[" * 60, "is not YAML: lists and mappings are nested more than 50 times"),
        ("names: [[a]]\ntrain: images", r"names\.0: \['a'\] is neither text nor a number; write it in quotes"),
        ("names: [yes]\ntrain: images", r"names\.0: True is neither text nor a number; write it in quotes"),
        ("names: {2000000: a}\ntrain: images", "names is {2000000: 'a'}; expected"),
        ("names: [a]\ntrain: {a: 1}", "train: {'a': 1} is neither text"),
        ("names: [a]\ntrain: images\npath: [a]", r"path: \['a'\] is neither text"),
        ("names: [a]\ntrain: images\npath: ~nosuchuser", "path '~nosuchuser' leads to .*not a folder"),
        ("names: [a]\nd: 2020-13-45\ntrain: images", "is not YAML: month must be in 1..12"),
        (f"names: {HUGE}\ntrain: images", rf"names is .*{DIGITS}"),
        (f"names: [{HUGE}]\ntrain: images", rf"names\.0: .*{DIGITS}"),
        (f"names: [a]\nnc: {HUGE}\ntrain: images", rf"nc is .*{DIGITS}"),
        (f"names: [a]\npath: {HUGE}\ntrain: images", rf"path: .*{DIGITS}"),
    ],
)
def test_an_invalid_data_yaml_is_reported(export: Path, text: str, message: str) -> None:
    (export / "data.yaml").write_text(text)
    with bounded(), pytest.raises(ValueError, match=message) as error:
        yolo(data=export / "data.yaml")
    assert str(error.value).startswith(str(export / "data.yaml"))


def test_data_yaml_that_cannot_be_read(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ValueError, match=r"data\.yaml cannot be read: Permission denied"):
        yolo(data=export / "data.yaml")


def test_missing_images_and_labels_of_yolo_are_reported(export: Path) -> None:
    (export / "list.txt").write_text("images/train/1.png\nimages/train/9.png\n")
    (export / "data.yaml").write_text("train: list.txt\nnames: [block, bar]\n")
    with pytest.raises(ValueError, match=r"1 missing image: images/train/9\.png"):
        yolo(data=export / "data.yaml")
    assert len(yolo(data=export / "data.yaml", broken="drop")) == 1
    (export / "images" / "train" / "1.png").write_bytes(b"no picture")
    (export / "list.txt").write_text("images/train/1.png\nimages/train/2.png\n")
    with pytest.raises(ValueError, match=r"1 image that cannot be read: images/train/1\.png: .*it is no image"):
        yolo(data=export / "data.yaml")
    (export / "labels").rename(export / "annotations")
    with pytest.raises(ValueError, match=r"no image has labels; expected labels/train/1\.txt in "):
        yolo(data=export / "data.yaml", broken="drop")


POSE = "0 0.5 0.5 0.5 0.5 0.25 0.5 2 0.75 0.25 1 0 0 0\n"
"""An object with three keypoints in 64 x 48 pixels, of which the last is not labeled."""


def write_pose(export: Path, line: str, options: str) -> None:
    """Write the keypoints of one object in image 1, the others have none."""
    (export / "data.yaml").write_text(f"{SPLIT}{options}\n")
    for file in (export / "labels" / "train").iterdir():
        file.write_text("")
    (export / "labels" / "train" / "1.txt").write_text(line)


@pytest.mark.parametrize(
    ("line", "options", "names", "pairs", "visibility"),
    [
        (POSE, "kpt_shape: [3, 3]", ("keypoint_0", "keypoint_1", "keypoint_2"), [0, 1, 2], [2, 1, 0]),
        (POSE, "kpt_shape: [3, 3]\nflip_idx: [0, 2, 1]", None, [0, 2, 1], [2, 1, 0]),
        (POSE, "kpt_shape: [3, 3]\nkpt_names: {0: [nose, left_ear, right_ear]}", None, [0, 2, 1], [2, 1, 0]),
        ("0 0.5 0.5 0.5 0.5 0.25 0.5 0.75 0.25 0 0\n", "kpt_shape: [3, 2]", None, [0, 1, 2], [2, 2, 0]),
        ("0 0.5 0.5 0.5 0.5 0.25 0.5 0.75 0.25 -1 -1\n", "kpt_shape: [3, 2]", None, [0, 1, 2], [2, 2, 0]),
    ],
)
def test_keypoints_of_yolo(
    line: str, options: str, names: tuple[str, ...] | None, pairs: list[int], visibility: list[int], export: Path
) -> None:
    write_pose(export, line, options)
    source = yolo(data=export / "data.yaml", keypoints=True)
    sample = source[1]
    assert names is None or source.info.keypoints == names
    assert sample["flip_pairs"] == pairs and sample["visibility"].tolist() == [visibility]
    assert sample["keypoints"][0, :2].tolist() == [[16, 24], [48, 12]] and sample["boxes"].tolist() == [
        [16, 12, 48, 36]
    ]
    assert sample["ground_truth"].keypoints[0, 2].tolist() == [0, 0, 0]
    boxes = yolo(data=export / "data.yaml")
    assert boxes[1]["boxes"].tolist() == [[16, 12, 48, 36]] and not boxes.info.keypoints


def test_seventeen_keypoints_with_the_counterparts_of_coco_have_its_names(export: Path) -> None:
    pairs = [0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15]
    write_pose(export, f"0 0.5 0.5 0.5 0.5{' 0.5 0.5 2' * 17}\n", f"kpt_shape: [17, 3]\nflip_idx: {pairs}")
    assert yolo(data=export / "data.yaml", keypoints=True).info.keypoints[:2] == ("nose", "left_eye")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.5 0.5\n", r"1 keypoint list that is not .*: labels/train/1\.txt, line 1: 0 0\.5"),
        (POSE.replace(" 2 ", " 3 "), r"1 keypoint list that is not .* line 1"),
        (POSE.replace(" 2 ", " 0.5 "), r"1 keypoint list that is not .* line 1"),
        (POSE.replace("0.75 0.25 1", "1.75 0.25 1"), r"1 visible keypoint outside the image"),
    ],
)
def test_broken_keypoints_of_yolo(line: str, message: str, export: Path) -> None:
    write_pose(export, line, "kpt_shape: [3, 3]")
    with pytest.raises(ValueError, match=message):
        yolo(data=export / "data.yaml", keypoints=True)
    assert [error.count for error in yolo(data=export / "data.yaml", keypoints=True, broken="clip").info.errors] == [1]


def test_keypoints_that_are_not_there(export: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.yaml has no keypoints: expected kpt_shape, such as \[17, 3\]"):
        yolo(data=export / "data.yaml", keypoints=True)


def test_a_folder_of_images_without_data_yaml(export: Path) -> None:
    expected = yolo(data=export / "data.yaml")
    source = yolo(data=export / "images" / "train", root=export, names=list(expected.classes))
    assert [source.id(index) for index in range(len(source))] == [expected.id(index) for index in range(len(expected))]
    assert source[0]["boxes"].tolist() == expected[0]["boxes"].tolist() and source.classes == expected.classes
    with pytest.raises(ValueError, match=r"train is a folder: names gives the names of its classes"):
        yolo(data=export / "images" / "train")
    with pytest.raises(ValueError, match=r"data.yaml has the names of the classes itself"):
        yolo(data=export / "data.yaml", names=["a"])


def test_other_names_of_the_folders_of_voc(devkit: Path) -> None:
    expected = voc(root=devkit)
    (devkit / "JPEGImages").rename(devkit / "images")
    (devkit / "Annotations").rename(devkit / "xmls")
    source = voc(root=devkit, images="images", annotations="xmls")
    assert len(source) == len(expected) and source.id(0) == expected.id(0).replace("JPEGImages", "images")
