"""Annotations of LabelMe and CVAT, and segmentation maps made from them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.data.sources import ObjectMaps, cvat, labelme
from tests.data.sources.hostile import bounded, deep


def save_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6)).save(path)


def rectangle(left: int, top: int, right: int, bottom: int) -> list[list[int]]:
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def write_labelme(root: Path, shapes: list[dict[str, Any]], **changes: Any) -> None:
    save_image(root / "images/a.jpg")
    content = {"imagePath": "..\\images\\a.jpg", "imageHeight": 6, "imageWidth": 8, "shapes": shapes} | changes
    (root / "json").mkdir(exist_ok=True)
    (root / "json/a.json").write_text(json.dumps(content))


SHAPES: list[dict[str, Any]] = [
    {"label": "road", "points": rectangle(0, 0, 8, 3), "shape_type": "polygon"},
    {"label": "car", "points": rectangle(2, 1, 4, 5), "group_id": 1},
    {"label": "road", "points": [[7, 5], [6, 6]], "shape_type": "rectangle"},
    {"label": "car", "points": rectangle(5, 1, 6, 2), "group_id": 1},
    {"label": "car", "points": [[4, 3], [4, 5]], "shape_type": "circle", "group_id": None},
]


def test_labelme(tmp_path: Path) -> None:
    write_labelme(tmp_path, SHAPES)
    source = labelme(root=tmp_path, masks=True)
    sample = source[0]
    assert source.classes == ("car", "road") and sample["id"] == "images/a.jpg"
    assert sample["labels"].tolist() == [1, 0, 1, 0]
    assert sample["boxes"][:3].tolist() == [[0, 0, 8, 3], [2, 1, 6, 5], [6, 5, 7, 6]]
    assert sample["masks"][1].sum() == 9 and sample["masks"].shape == (4, 6, 8)
    assert 11 <= int(sample["masks"][3].sum()) <= 14  # a circle of radius 2
    assert not labelme(root=tmp_path, classes=["car"]).info.masks
    cars = labelme(root=tmp_path, classes=["car"])[0]
    assert cars["labels"].tolist() == [0, 0] and cars["ground_truth"].ids.tolist() == [1, 2]
    write_labelme(tmp_path, [{**SHAPES[0], "label": "a\ud800"}])
    half = labelme(root=tmp_path)
    assert half.classes[0].encode() and half.fingerprint(), "half a character can be written"


def test_broken_labelme_files(tmp_path: Path) -> None:
    line = {"label": "road", "points": [[0, 0], [1, 1]], "shape_type": "line"}
    write_labelme(tmp_path, [*SHAPES[:1], line])
    (tmp_path / "json/b.json").write_text('{"shapes": []}')
    (tmp_path / "json/c.json").write_text(json.dumps({"imagePath": "c.jpg", "shapes": []}))
    message = r"json/a.json, shape 2: a line of 2 points.* json/b.json: not a file of LabelMe: KeyError.* json/c.jpg"
    with pytest.raises(ValueError, match=message):
        labelme(root=tmp_path)
    assert len(labelme(root=tmp_path, broken="drop")) == 1
    (tmp_path / "json/d.json").write_text((tmp_path / "json/a.json").read_text())
    with pytest.raises(ValueError, match=r"image that is listed more than once.* images/a.jpg: also in json/d.json"):
        labelme(root=tmp_path)
    with pytest.raises(ValueError, match="has no JSON files"):
        labelme(root=tmp_path / "images")


TRIANGLE = [[0, 0], [1, 1], [2, 0]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"imageHeight": 10**30}, "a.json: .*is not a size in pixels"),
        ({"imagePath": "../../a.png"}, "1 image outside root: ../a.png"),
        ({"imagePath": ["a"]}, "a.json: .*neither text nor a number"),
        ({"shapes": [{"label": "a", "points": [[0, 0], [1e300, 1], [2, 2]]}]}, "a.json: .*shape 1: .*points"),
        ({"shapes": [{"label": ["a"], "points": TRIANGLE}]}, "a.json: .*shape 1: .*neither text"),
        ({"shapes": [{"label": "a", "points": deep()}]}, "a.json: .*shape 1: .*points"),
        ({"shapes": [{"label": "a", "points": TRIANGLE, "group_id": {}}]}, "a.json: .*shape 1"),
    ],
)
def test_hostile_labelme_files(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    root = tmp_path / "root"
    write_labelme(root, **{"shapes": SHAPES, **values})
    (root / "images/a.jpg").rename(tmp_path / "a.png" if "imagePath" in values else root / "json/a.jpg")
    with pytest.raises(ValueError, match=message):
        labelme(root=root)


# --- maps -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("labelme")
    write_labelme(root, SHAPES[:3])
    return labelme(root=root, masks=True)


EXPECTED = np.zeros((6, 8), dtype=np.uint8)
EXPECTED[:3], EXPECTED[1:5, 2:4], EXPECTED[5, 6] = 2, 1, 2  # later shapes cover earlier ones


def test_maps_of_objects(objects: Any) -> None:
    assert (ObjectMaps(source=objects)[0]["mask"].numpy() == EXPECTED).all()
    ignored = ObjectMaps(source=objects, background=None)
    assert ignored.classes == ("car", "road") and not ignored.info.boxes
    assert (ignored[0]["mask"].numpy() == np.where(EXPECTED, EXPECTED - 1, 255)).all()


def test_panoptic_maps_of_objects(objects: Any, tmp_path: Path) -> None:
    for background, labels in (("none", [2, 1, 2, 0]), (None, [1, 0, 1])):
        panoptic = ObjectMaps(source=objects, background=background, panoptic=True)
        sample = panoptic[0]
        ground_truth = sample["ground_truth_map"]
        assert ground_truth.segment_labels.tolist() == labels and ground_truth.crowd.tolist() == [False] * len(labels)
        assert (np.array([255, *labels])[ground_truth.segments] == ground_truth.labels).all() and panoptic.info.boxes
        assert sample["labels"].tolist() == sample["ground_truth"].labels.tolist() == labels[:3]
    mixed = ObjectMaps(source=objects, panoptic=True, stuff=["road"])
    sample, ground_truth = mixed[0], mixed[0]["ground_truth_map"]
    assert mixed.info.thing_labels == (1,)
    assert sample["labels"].tolist() == sample["ground_truth"].labels.tolist() == [1]
    assert sample["masks"].shape == (1, 6, 8) and len(sample["boxes"]) == len(sample["ground_truth"].segments) == 1
    assert ground_truth.segment_labels.tolist() == [2, 1, 0] and (ground_truth.labels == EXPECTED).all()
    assert (np.array([255, 2, 1, 0])[ground_truth.segments] == EXPECTED).all()
    write_labelme(tmp_path, [SHAPES[0], {"label": "all", "points": rectangle(0, 0, 8, 6)}])
    hidden = ObjectMaps(source=labelme(root=tmp_path, masks=True), panoptic=True)[0]["ground_truth_map"]
    assert hidden.segment_labels.tolist() == [1] and (hidden.segments == 1).all(), "no hidden objects, no background"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stuff": ["road"]}, "stuff: "),
        ({"stuff": ["road", "car"], "panoptic": True}, "stuff: "),
        ({"stuff": ["sky"], "panoptic": True}, "stuff: "),
        ({"background": "car"}, "'car' is listed twice"),
        ({"masks": False}, "AnnotatedImages has no instance masks; does it need masks: true"),
    ],
)
def test_invalid_options_of_maps(objects: Any, options: dict[str, Any], message: str) -> None:
    source = labelme(root=objects.root) if options.pop("masks", None) is False else objects
    with pytest.raises(ValueError, match=message):
        ObjectMaps(source=source, **options)


# --- CVAT -------------------------------------------------------------------------------------------------------------

XML = """<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version><meta><task><labels>
<label><name>road</name><color>#ff0000</color></label><label><name>car</name></label></labels></task></meta>
<image id="0" name="x/a.jpg" width="8" height="6">
<polygon label="car" points="2.0,1.0;4.0,1.0;4.0,5.0;2.0,5.0" z_order="1"></polygon>
<box label="road" xtl="0" ytl="0" xbr="8" ybr="3" z_order="0"/>
<box label="car" xtl="4" ytl="3" xbr="8" ybr="5" rotation="90.0" z_order="0"/>
<mask label="road" rle="1, 2, 1" left="6" top="4" width="2" height="2" z_order="0"/>
<ellipse label="car" cx="2" cy="3" rx="2" ry="1" z_order="0"/>
<tag label="road"/>{more}</image></annotations>"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    save_image(tmp_path / "images/x/a.jpg")
    (tmp_path / "annotations.xml").write_text(XML.format(more=""))
    return {"root": tmp_path / "images", "file": tmp_path / "annotations.xml"}


def test_cvat(files: dict[str, Any]) -> None:
    source = cvat(**files, masks=True)
    sample = source[0]
    assert source.classes == ("road", "car") and sample["id"] == "x/a.jpg"
    assert sample["labels"].tolist() == [0, 1, 0, 1, 1]
    assert sample["boxes"].round().tolist()[:3] == [[0, 0, 8, 3], [5, 2, 7, 6], [6, 4, 8, 6]]
    assert sample["masks"][2, 4:, 6:].tolist() == [[0, 1], [1, 0]] and sample["masks"][2].sum() == 2
    assert sample["boxes"][3:].round().tolist() == [[0, 2, 4, 4], [2, 1, 4, 5]]  # drawn last: the higher z_order
    assert cvat(**files, classes=["car"])[0]["labels"].tolist() == [0, 0, 0]


MASK = '<mask label="car" rle="{}" left="0" top="0" width="2" height="2"/>'
BOX = '<box label="car" xtl="{}" ytl="1" xbr="{}" ybr="3"{}/>'


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ('<polyline label="car" points="1,1;2,2"/>', "a polyline of 2 points"),
        ('<box label="x" xtl="0" ytl="0" xbr="1" ybr="1"/>', "1 unknown class: x/a.jpg, shape 5: label 'x'"),
        (MASK.format("9"), "a mask of 9 pixels for 2 x 2"),
        (MASK.format("1,-2,5"), "x/a.jpg, shape 5: -2 is not"),
        (MASK.format("4").replace('left="0"', 'left="7"'), "a mask that extends beyond the image: left 7, top 0, "),
        ('<ellipse label="car" cx="4" cy="4" rx="-5" ry="2"/>', "shape 5: a ellipse of a negative size"),
        (BOX.format("4", "2", ""), "x/a.jpg, shape 5: a box of a negative size: 4, 1"),
        (BOX.format("1", "inf", ""), "x/a.jpg, shape 5: a box without the numbers"),
        (BOX.format("1", "2", ' rotation="inf"'), "x/a.jpg, shape 5: 'inf' is not"),
        ('<polygon label="car" points="1,1;1e300,1;2,2"/>', "x/a.jpg, shape 5: '1e300' is not a number"),
    ],
)  # fmt: skip
def test_broken_shapes_of_cvat(files: dict[str, Any], shape: str, message: str) -> None:
    files["file"].write_text(XML.format(more=shape))
    with bounded(), pytest.raises(ValueError, match=message) as error:
        cvat(**files, masks=True)
    assert str(error.value).startswith(str(files["file"]))
    assert len(cvat(**files, broken="drop")[0]["labels"]) == 5


IMAGE = XML[XML.index("<image") : XML.index("</annotations>")]
BIG = '<mask label="car" rle="99999980000001" left="0" top="0" width="9999999" height="9999999"/>'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('width="8"', 'width="99999999999999999999999"', "no width and height: '9999.* is not an integer of 64 bits"),
        ('height="6"', f'height="{2**40}"', "has no width and height: 8 x 1099511627776 is not a size in pixels"),
        ('width="8" height="6">', f'width="9999999" height="9999999">{BIG}', "not a size in pixels"),
        ('z_order="1"', 'z_order="x"', "CVAT for images 1.1: image 'x/a.jpg': z_order 'x' is not"),
        ('name="x/a.jpg"', 'name=""', "an image of 8 x 6 pixels has no name"),
        ("<name>road", "<name>", "the name of a label: '' is not a name"),
        ('<?xml version="1.0" encoding="utf-8"?>', '<!DOCTYPE a [<!ENTITY b "c">]>', "CVAT .* document type"),
        ("</annotations>", f"{IMAGE}</annotations>", "1 image that is listed more than once: x/a.jpg: 2 times"),
    ],
)
def test_broken_files_of_cvat(files: dict[str, Any], old: str, new: str, message: str) -> None:
    assert old in XML
    files["file"].write_text(XML.replace(old, new, 1).replace("{more}", ""))
    with bounded(), pytest.raises(ValueError, match=message) as error:
        cvat(**files)
    assert str(error.value).startswith(str(files["file"]))
    if new.startswith("<image"):
        assert len(cvat(**files, broken="drop")) == 1
