"""Values that no annotation file should hold: bombs, huge numbers, nested text, paths that lead elsewhere."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.data.check.checks import run_checks
from opabinia.data.sources import (
    FrameFolders,
    Shards,
    Table,
    VideoList,
    coco,
    coco_panoptic,
    cvat,
    labelme,
    roboflow,
    segmentation_folder,
    voc,
    yolo,
)
from opabinia.data.sources.annotation_values import flag, leaves_root, numbers, parse_flag, shortened, text
from opabinia.data.sources.labels import multi_hot
from scripts import small_data
from tests.data.sources.test_shards import write as write_shard
from tests.data.videos import write

Content = dict[str, Any]


@pytest.fixture
def bounded() -> Iterator[None]:
    """Fail a test that takes 5 s of the processor or allocates 200 MB."""
    tracemalloc.start()
    start = time.process_time()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6 and time.process_time() - start < 5


def deep(width: int = 1) -> list[Any]:
    value: list[Any] = []
    for _ in range(50):
        value = [value] * width
    return value


def test_texts_numbers_and_flags() -> None:
    assert text(" a ") == "a" and text(5) == "5" and text(0.5) == "0.5"
    for wrong in (None, True, [], ["a"], {"a": 1}, "", "nan", float("nan"), "a" * 5000, 10**4200):
        with pytest.raises(ValueError, match=r"neither text|not a name|characters"):
            text(wrong)
    assert numbers([1, 2.5]) == [1, 2.5] and numbers([]) == []
    for values in ([True], ["1"], [None], [float("nan")], [1, float("nan")], [1e9], [-1e9], [10**400], "1", [1, 2, 3]):
        assert numbers(values, len(values) if len(values) < 3 else 2) is None
    assert [flag(value) for value in (0, 1, True, False, None)] == [False, True, True, False, False]
    assert [parse_flag(value) for value in ("0", "1", "true", "FALSE")] == [False, True, True, False]
    for wrong in ("0", 2, 0.5, [1], {}):
        with pytest.raises(ValueError, match="none of 0, 1, true and false"):
            flag(wrong)
    assert len(shortened(deep(10))) <= 60


def test_hexadecimal_numbers_of_thousands_of_digits(tmp_path: Path) -> None:
    huge = "0x" + "f" * 5000  # YAML reads it; Python does not write it
    (tmp_path / "images").mkdir()
    for content in (f"names: {huge}", f"names: [{huge}]", f"names: [a]\nnc: {huge}", f"names: [a]\npath: {huge}"):
        (tmp_path / "data.yaml").write_text(f"{content}\ntrain: images\n")
        with pytest.raises(ValueError, match=r"data\.yaml: (names|nc|path)\S* .*number of thousands of digits"):
            yolo(data=tmp_path / "data.yaml")


@pytest.mark.parametrize(
    ("root", "name", "leaves"),
    [
        ("/data", "a/../b.png", False),
        ("/data", "..b.png", False),
        ("/data", "a/../../b.png", True),
        ("/data", "/etc/passwd", True),
        ("/data", "/data/a.png", False),
        ("/data", "/database/a.png", True),
        ("/", "/etc/passwd", False),
    ],
)
def test_paths_that_lead_out_of_root(root: str, name: str, leaves: bool) -> None:
    assert leaves_root(Path(root), name) == leaves == leaves_root(Path(root), name.encode())


# --- COCO -------------------------------------------------------------------------------------------------------------


def read_coco(root: Path, change: Callable[[Content], object], **options: Any) -> Any:
    if not (root / "annotations.json").exists():
        small_data.coco(root)
    content = json.loads((root / "annotations.json").read_text())
    change(content)
    (root / "changed.json").write_text(json.dumps(content))
    return coco(root=root, file=root / "changed.json", **options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"iscrowd": "0"}, "1 flag that is not 0, 1, true or false: 1.png, annotation 100: iscrowd '0'"),
        ({"iscrowd": 2}, "iscrowd 2"),
        ({"iscrowd": [1]}, r"iscrowd \[1\]"),
        ({"area": -50}, "1 area that is not finite or below 0: 1.png, annotation 100: area -50"),
        ({"area": "5"}, "area '5'"),
        ({"area": float("nan")}, "area nan"),
        ({"area": True}, "area True"),
        ({"bbox": [1e9, 0, 5, 5]}, r"1 box that is not four finite numbers of at most 2\^24: 1.png, annotation 100"),
        ({"keypoints": [1e9, -1e9, 2, 5, 5, 1]}, "1 keypoint list that is not .*1.png, annotation 100"),
        ({"keypoints": [10**300, 1, 2, 5, 5, 1]}, "1 keypoint list that is not"),
        ({"keypoints": [3, 17, -1, 5, 18, 1]}, "visibility 0, 1 or 2 .*1.png, annotation 100"),
        ({"keypoints": [3, 17, 2.7, 5, 18, 1]}, "visibility 0, 1 or 2"),
        ({"keypoints": [3, 17, 7, 5, 18, 1]}, "visibility 0, 1 or 2"),
        (
            {"keypoints": [3, 17, 1, 66, 18, 2]},
            "1 visible keypoint outside the image: 1.png, annotation 100: x, y, visibility 66, 18, 2 in 64 x 48 pixels",
        ),
        ({"segmentation": [[40, 40, 50, 40, 50, 45]]}, "1 segmentation outside the box: 1.png, annotation 100"),
        ({"id": deep()}, "annotation id .* is not an integer of 64 bits"),
        ({"category_id": deep()}, "1 unknown class: 1.png, annotation 100: category_id"),
    ],
)
def test_coco_annotations(tmp_path: Path, values: Content, message: str) -> None:
    def change(content: Content) -> None:
        content["annotations"][0].update(values)

    with pytest.raises(ValueError, match=message):
        read_coco(tmp_path, change, masks=True, keypoints=True)


def test_runs_that_end_early_are_reported_with_oriented_boxes(tmp_path: Path) -> None:
    def change(content: Content) -> None:
        content["annotations"][0]["segmentation"] = {"size": [48, 64], "counts": [5, 6]}

    with pytest.raises(ValueError, match=r"changed\.json: 1 segmentation .*1\.png, annotation 100: .*11 pixels"):
        read_coco(tmp_path, change, oriented=True)
    assert 100 not in read_coco(tmp_path, change, oriented=True, broken="drop").annotations.ids


def test_keypoints_within_a_pixel_and_unlabeled_ones_are_valid(tmp_path: Path) -> None:
    values = {"keypoints": [64.5, 48.9, 2, 900, 900, 0]}
    source = read_coco(tmp_path, lambda content: content["annotations"][0].update(values), keypoints=True)
    assert source[1]["visibility"].tolist() == [[2, 0]]


def test_clip_hides_keypoints_outside_and_drops_objects_without_a_mask(tmp_path: Path) -> None:
    values: Content = {"keypoints": [3, 17, 1, 66, 18, 2]}
    outside: Content = {"segmentation": [[70, 50, 80, 50, 80, 60]]}

    def change(content: Content) -> None:
        content["annotations"][0].update(values)
        content["annotations"][1].update(outside)

    source = read_coco(tmp_path, change, masks=True, keypoints=True, broken="clip")
    assert source[1]["visibility"].tolist() == [[1, 0]] and 101 not in source.annotations.ids
    for index in range(len(source)):
        assert source[index]["masks"].flatten(1).any(1).all()
    assert 100 not in read_coco(tmp_path, change, masks=True, keypoints=True, broken="drop").annotations.ids


@pytest.mark.parametrize("name", ["/etc/passwd", "../x.png", "a/../../x.png"])
def test_coco_images_stay_in_root(tmp_path: Path, name: str) -> None:
    def change(content: Content) -> None:
        content["images"][0]["file_name"] = name

    with pytest.raises(ValueError, match=f"1 image outside root: {name}: not below .*root: / allows absolute paths"):
        read_coco(tmp_path, change)
    assert len(read_coco(tmp_path, change, broken="drop")) == 3


def test_absolute_paths_are_read_below_the_root_of_the_file_system(tmp_path: Path) -> None:
    small_data.coco(tmp_path)
    content = json.loads((tmp_path / "annotations.json").read_text())
    for image in content["images"]:
        image["file_name"] = str(tmp_path / image["file_name"])
    (tmp_path / "absolute.json").write_text(json.dumps(content))
    assert coco(root=Path("/"), file=tmp_path / "absolute.json")[1]["labels"].tolist() == [0]


def test_a_file_under_two_names_is_listed_twice(tmp_path: Path) -> None:
    def change(content: Content) -> None:
        content["images"].append({**content["images"][1], "id": 77, "file_name": "./1.png"})

    with pytest.raises(ValueError, match=r"listed more than once: 1\.png: as image 11 and 77"):
        read_coco(tmp_path, change)
    (tmp_path / "list.csv").write_text("path,label\n1.png,a\n./1.png,b\n")
    with pytest.raises(ValueError, match=r"lists 1 image more than once: 1\.png \(line 2, line 3\)"):
        Table(file=tmp_path / "list.csv")


@pytest.mark.parametrize("name", [["a"], {}, None, True, ""])
def test_names_of_classes_are_text(tmp_path: Path, name: Any) -> None:
    with pytest.raises(ValueError, match=r"changed\.json: category 7: name .* (neither text|not a name)"):
        read_coco(tmp_path, lambda content: content["categories"][0].update(name=name))


def test_roboflow_with_a_nested_supercategory(tmp_path: Path) -> None:
    small_data.coco(tmp_path)
    content = json.loads((tmp_path / "annotations.json").read_text())
    content["categories"][0]["supercategory"] = ["a"]
    (tmp_path / "train").mkdir()
    for image in tmp_path.glob("*.png"):
        image.rename(tmp_path / "train" / image.name)
    (tmp_path / "train" / "_annotations.coco.json").write_text(json.dumps(content))
    assert len(roboflow(root=tmp_path)) == 4


@pytest.mark.parametrize("size", [2**24, 2**63, 20_000, 5.5, "64", True, -1])
def test_sizes_of_images(tmp_path: Path, size: Any) -> None:
    with pytest.raises(ValueError, match=r"1 of 4 are not sizes in pixels: image 10: "):
        read_coco(tmp_path, lambda content: content["images"][0].update(height=size, width=size))


# --- panoptic ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["categories"][0].update(isthing=[1]), r"category 1: isthing \[1\] is none of 0, 1"),
        (lambda content: content["categories"][0].update(isthing="0"), "category 1: isthing '0' is none of 0, 1"),
        (lambda content: content["categories"][0].update(color=5), "category 1: color is 5, expected three numbers"),
        (lambda content: content["annotations"][0]["segments_info"][0].update(id=[5]), r"a.png, segment \[5\]: not in"),
        (lambda content: content["annotations"][0]["segments_info"][0].update(id={}), "a.png, segment {}: not in"),
        (lambda content: content["annotations"][0]["segments_info"][0].update(iscrowd="1"), "segment 5: iscrowd '1'"),
        (lambda content: content["annotations"][0].update(file_name="../a.png"), "1 of 1 paths lead out of"),
        (lambda content: content["images"][0].update(file_name="/etc/passwd"), "1 of 1 paths lead out of"),
        (lambda content: content["annotations"][0].update(file_name=[1]), "annotation 0 has neither file_name"),
    ],
)
def test_panoptic(tmp_path: Path, change: Callable[[Content], object], message: str) -> None:
    content: Content = {
        "images": [{"id": 1, "file_name": "a.png", "height": 4, "width": 4}],
        "annotations": [{"image_id": 1, "file_name": "a.png", "segments_info": [{"id": 5, "category_id": 1}]}],
        "categories": [{"id": 1, "name": "cell", "isthing": 1, "color": [1, 2, 3]}],
    }
    for folder in ("images", "maps"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (4, 4), (5, 0, 0)).save(tmp_path / folder / "a.png")
    file = tmp_path / "panoptic.json"
    file.write_text(json.dumps(content))
    assert len(coco_panoptic(root=tmp_path / "images", maps=tmp_path / "maps", file=file)) == 1
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as error:
        coco_panoptic(root=tmp_path / "images", maps=tmp_path / "maps", file=file)
    assert str(error.value).startswith(str(file))


# --- YOLO -------------------------------------------------------------------------------------------------------------

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 9)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}\n" for level in range(1, 9)
)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{BOMB}names: [*a8]\ntrain: images", r"is not YAML: \*a0 stands for a list or mapping; write it out"),
        (f"{BOMB}names: *a8\ntrain: images", "write it out"),
        (f"{BOMB}names: [a]\ntrain: *a8", "write it out"),
        (f"{BOMB}names: [a]\ntrain: images\npath: *a8", "write it out"),
        (f"{MERGES}names: [a]\ntrain: images", "write it out"),
        ("[" * 100_000, "is not YAML: lists and mappings are nested more than 50 times"),
        ("names: [[a]]\ntrain: images", r"names\.0: \['a'\] is neither text nor a number; write it in quotes"),
        ("names: [yes]\ntrain: images", r"names\.0: True is neither text nor a number; write it in quotes"),
        ("names: {2000000: a}\ntrain: images", "names is {2000000: 'a'}; expected"),
        ("names: [a]\ntrain: {a: 1}", "train: {'a': 1} is neither text"),
        ("names: [a]\ntrain: images\npath: [a]", r"path: \['a'\] is neither text"),
        ("names: [a]\ntrain: images\npath: ~nosuchuser", "path '~nosuchuser' leads to .*not a folder"),
        ("names: [a]\nd: 2020-13-45\ntrain: images", "is not YAML: month must be in 1..12"),
        ("names: [a]\nnc: [[[[1]]]]\ntrain: images", "nc is .*, but 1 classes have names"),
    ],
)
def test_yolo(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "data.yaml").write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        yolo(data=tmp_path / "data.yaml")
    assert str(error.value).startswith(str(tmp_path / "data.yaml"))


def test_yolo_aliases_of_text_are_read(tmp_path: Path) -> None:
    small_data.yolo(tmp_path)
    file = next(tmp_path.glob("*.yaml"))
    content = file.read_text() + "\nfirst: &first cell\nother: *first\n"
    file.write_text(content)
    assert len(yolo(data=file)) > 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_unreadable_data_yaml(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text("names: [a]")
    (tmp_path / "data.yaml").chmod(0)
    with pytest.raises(ValueError, match=r"data\.yaml cannot be read: Permission denied"):
        yolo(data=tmp_path / "data.yaml")


def test_data_yaml_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.yaml").write_text("names: [a]")

    def refuse(*arguments: Any, **options: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(ValueError, match=r"data\.yaml cannot be read: Permission denied"):
        yolo(data=tmp_path / "data.yaml")


# --- CVAT, VOC, LabelMe -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("size", "shape", "message"),
    [
        (
            (99999999999999999999999, 8),
            "",
            "image 'a.png' has no width and height: '9999.* is not an integer of 64 bits",
        ),
        ((2**40, 8), "", "image 'a.png' has no width and height: 8 x 1099511627776 is not a size in pixels"),
        (
            (9999999, 9999999),
            '<mask label="cat" rle="99999980000001" left="0" top="0" width="9999999" height="9999999"/>',
            "not a size in pixels",
        ),
        ((8, 8), '<mask label="cat" rle="1,-2,5" left="0" top="0" width="2" height="2"/>', "a.png, shape 1: -2 is not"),
        ((8, 8), '<mask label="cat" rle="" left="0" top="0" width="0" height="0"/>', "a.png, shape 1: '' is not"),
        ((8, 8), '<ellipse label="cat" cx="4" cy="4" rx="-5" ry="2"/>', "a.png, shape 1: a ellipse of a negative size"),
        (
            (8, 8),
            '<box label="cat" xtl="4" ytl="1" xbr="2" ybr="3"/>',
            "a.png, shape 1: a box of a negative size: 4, 1",
        ),
        ((8, 8), '<box label="cat" xtl="1" ytl="1" xbr="inf" ybr="3"/>', "a.png, shape 1: a box without the numbers"),
        ((8, 8), '<box label="cat" xtl="1" ytl="1" xbr="2" ybr="3" rotation="inf"/>', "a.png, shape 1: 'inf' is not"),
        ((8, 8), '<polygon label="cat" points="1,1;1e300,1;2,2"/>', "a.png, shape 1: '1e300' is not a number"),
        ((8, 8), '<box label="cat" xtl="1" ytl="1" xbr="2" ybr="3" z_order="x"/>', "'a.png': z_order 'x' is not"),
    ],
)
def test_cvat(tmp_path: Path, size: tuple[int, int], shape: str, message: str) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    labels = "<meta><task><labels><label><name>cat</name></label></labels></task></meta>"
    image = f'<image name="a.png" height="{size[0]}" width="{size[1]}">{shape}</image>'
    (tmp_path / "a.xml").write_text(f"<annotations>{labels}{image}</annotations>")
    with pytest.raises(ValueError, match=message) as error:
        cvat(root=tmp_path, file=tmp_path / "a.xml", masks=True)
    assert str(error.value).startswith(str(tmp_path / "a.xml"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<width>64", "<width>99999999999999999999999", "1.xml: '9999.*' is not an integer of 64 bits"),
        ("<width>64", "<width>1099511627776", "1.xml: 1099511627776 x 48 is not a size in pixels"),
        ("<difficult>0", "<difficult>no", "1.xml: the object with the box .*'no' is none of 0, 1"),
        ("<xmax>12", "<xmax>1e300", "1.xml: object 'block' has no box of four numbers .*'1e300' is not a number"),
    ],
)
def test_voc(tmp_path: Path, old: str, new: str, message: str) -> None:
    small_data.voc(tmp_path)
    file = tmp_path / "Annotations" / "1.xml"
    content = file.read_text()
    content = content if old in content else content.replace("</name>", "</name><difficult>0</difficult>", 1)
    assert old in content
    file.write_text(content.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        voc(root=tmp_path)


def test_broken_voc_files_are_reported_where_no_class_is_left(tmp_path: Path) -> None:
    small_data.voc(tmp_path)
    for file in (tmp_path / "Annotations").iterdir():
        file.write_text("<annotation>")
    with pytest.raises(ValueError, match=r"4 label files that cannot be read: 0\.xml: "):
        voc(root=tmp_path, split=None)


def test_voc_without_lists_says_how_to_read_it(tmp_path: Path) -> None:
    small_data.voc(tmp_path)
    (tmp_path / "ImageSets").rename(tmp_path / "other")
    with pytest.raises(ValueError, match="no folder ImageSets/Main with lists; split: null reads all XML files"):
        voc(root=tmp_path)
    assert len(voc(root=tmp_path, split=None)) == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"imageHeight": 10**30}, "a.json: .*is not a size in pixels"),
        ({"imageHeight": float("inf")}, "a.json: .*is not a size in pixels"),
        ({"imagePath": "../../a.png"}, "1 image outside root: ../a.png"),
        ({"imagePath": ["a"]}, "a.json: .*neither text nor a number"),
        ({"shapes": [{"label": "a", "points": [[0, 0], [1e300, 1], [2, 2]]}]}, "a.json: .*shape 1: .*points"),
        ({"shapes": [{"label": ["a"], "points": [[0, 0], [1, 1], [2, 0]]}]}, "a.json: .*shape 1: .*neither text"),
        ({"shapes": [{"label": "a", "points": deep()}]}, "a.json: .*shape 1: .*points"),
        ({"shapes": [{"label": "a", "points": [[0, 0], [1, 1], [2, 0]], "group_id": {}}]}, "a.json: .*shape 1"),
    ],
)
def test_labelme(tmp_path: Path, values: Content, message: str) -> None:
    (tmp_path / "b").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "b" / "a.png")
    shape = {"label": "a", "points": [[0, 0], [4, 1], [2, 5]]}
    content: Content = {"imagePath": "a.png", "imageHeight": 8, "imageWidth": 8, "shapes": [shape]}
    (tmp_path / "b" / "a.json").write_text(json.dumps(content))
    assert len(labelme(root=tmp_path)) == 1
    if "imagePath" in values:
        (tmp_path / "b" / "a.png").rename(tmp_path.parent / "a.png")
    (tmp_path / "b" / "a.json").write_text(json.dumps(content | values))
    with pytest.raises(ValueError, match=message):
        labelme(root=tmp_path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a 1 2 3\na 4 5 6\n", r"classes\.txt: 'a' is listed twice"),
        ("a 1 2 3\nb 4 5 256\n", r"classes\.txt: 1 of 2 are not names with colors from 0 to 255: b 4 5 256"),
    ],
)
def test_class_files_of_segmentation(tmp_path: Path, lines: str, message: str) -> None:
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / folder / "a.png")
    (tmp_path / "classes.txt").write_text(lines)
    with pytest.raises(ValueError, match=message):
        segmentation_folder(root=tmp_path, class_file=tmp_path / "classes.txt")


def test_labels_with_half_a_character_can_be_written(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    shape = {"label": "a\ud800", "points": [[0, 0], [4, 1], [2, 5]]}
    content: Content = {"imagePath": "a.png", "imageHeight": 8, "imageWidth": 8, "shapes": [shape]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    source = labelme(root=tmp_path)
    assert source.classes[0].encode() and source.fingerprint()


def test_lists_of_segmentation_folders_stay_in_root(tmp_path: Path) -> None:
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / folder / "a.png")
    (tmp_path / "list.txt").write_text("a\n../../a\n")
    with pytest.raises(ValueError, match=r"list\.txt: 1 of 2 paths lead out of"):
        segmentation_folder(root=tmp_path, classes=["a"], list_file="list.txt")


# --- lists, shards ----------------------------------------------------------------------------------------------------


def videos(root: Path, lines: str, name: str = "list.txt") -> Path:
    if not (root / "0.mp4").exists():
        write(root / "0.mp4", 4, size=(32, 32))
    (root / name).write_text(lines)
    return root / name


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("label", ["20000000", "1000000000", "9" * 5000])
def test_a_wrong_number_does_not_make_millions_of_classes(tmp_path: Path, label: str) -> None:
    with pytest.raises(ValueError, match=r"list\.txt, line 2: label .*(too many classes|characters)"):
        VideoList(file=videos(tmp_path, f"1.mp4 3\n0.mp4 {label}\n"))
    (tmp_path / "v").mkdir()
    (tmp_path / "frames.txt").write_text(f"v 4 {label}\n")
    with pytest.raises(ValueError, match=r"frames\.txt, line 1: label .*(too many classes|characters)"):
        FrameFolders(file=tmp_path / "frames.txt")


def test_more_labels_than_memory() -> None:
    with pytest.raises(ValueError, match="too many for the memory"):
        multi_hot([[0]] * 10_000, 1_000_000)


@pytest.mark.parametrize("time", ["inf", "nan", "1e300", "x"])
def test_times_of_kinetics(tmp_path: Path, time: str) -> None:
    file = videos(tmp_path, f"label,youtube_id,time_start,time_end,split\nrun,a,{time},5,train\n", "k.csv")
    with pytest.raises(ValueError, match=r"k\.csv, line 2: time_start and time_end must be seconds"):
        VideoList(file=file)


def test_a_video_under_two_names_is_listed_twice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lists \./0\.mp4 twice: line 1 and line 2"):
        VideoList(file=videos(tmp_path, "0.mp4 0\n./0.mp4 1\n"))


def test_a_part_beyond_the_end_of_a_video_is_found_by_the_data_check(tmp_path: Path) -> None:
    source = VideoList(file=videos(tmp_path, "path,label,start,end\n0.mp4,a,1000,2000\n0.mp4,b,0,1\n", "parts.csv"))
    (finding,) = (finding for finding in run_checks({"train": source}).findings if finding.is_error)
    assert finding.count == 1 and "none of its frames is after 1000" in str(finding.cases)


DEEP = "[" * 100_000


def test_deep_json_is_an_error_of_every_reader(tmp_path: Path) -> None:
    for file, read in (
        ("train.json", lambda file: VideoList(file=file)),
        ("coco.json", lambda file: coco(root=tmp_path, file=file)),
        ("a.jsonl", lambda file: Table(file=file)),
        ("labels.json", lambda file: VideoList(file=videos(tmp_path, "0.mp4 a"), class_file=file)),
    ):
        (tmp_path / file).write_text(DEEP)
        with pytest.raises(ValueError, match=rf"{file}.* cannot be read: maximum recursion"):
            read(tmp_path / file)


PNG = b"\x89PNG"


@pytest.mark.parametrize(
    ("members", "json_label", "message"),
    [
        (
            {"a.png": PNG, "a.json": DEEP.encode()},
            "kind",
            r"s\.tar, sample 'a' \(json, png\): its \.json cannot be read",
        ),
        (
            {"a.png": PNG, "a.cls": b"9" * 5000},
            None,
            r"s\.tar, sample 'a' \(cls, png\): its label is .*5000 characters",
        ),
        ({"a.png": PNG, "a.cls": b"9" * 30}, None, r"s\.tar, sample 'a' \(cls, png\): its label is .*too many classes"),
        ({"a.png": PNG, "a.cls": b"1000000000"}, None, r"s\.tar/a\.png: label '1000000000': too many classes"),
        ({"a.png": PNG, "a.cls": b"nan"}, None, r"s\.tar, sample 'a' \(cls, png\): its label is nan"),
    ],
)
def test_labels_of_shards(tmp_path: Path, members: dict[str, bytes], json_label: str | None, message: str) -> None:
    write_shard(tmp_path / "s.tar", list(members.items()))
    with pytest.raises(ValueError, match=message):
        Shards(files=str(tmp_path / "s.tar"), json_label=json_label, index_dir=tmp_path / "index")


def test_a_shard_that_links_to_itself(tmp_path: Path) -> None:
    (tmp_path / "s.tar").symlink_to("s.tar")
    with pytest.raises(ValueError, match=r"s\.tar cannot be read: Too many levels of symbolic links"):
        Shards(files=str(tmp_path / "s*.tar"), index_dir=tmp_path / "index")


def test_float32_holds_the_largest_coordinate() -> None:
    from opabinia.data.sources.annotation_values import MAX_SIDE

    assert np.float32(MAX_SIDE - 1) == MAX_SIDE - 1
