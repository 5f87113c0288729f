"""Annotations of LabelMe and CVAT, and segmentation maps made from them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.data.sources import DigitScenes, ObjectMaps, cvat, labelme


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
    assert labelme(root=tmp_path, classes=["car"])[0]["labels"].tolist() == [0, 0]


def test_maps_of_objects(tmp_path: Path) -> None:
    write_labelme(tmp_path, SHAPES[:3])
    objects = labelme(root=tmp_path, masks=True)
    expected = np.zeros((6, 8), dtype=np.uint8)
    expected[:3] = 2
    expected[1:5, 2:4] = 1  # later shapes cover earlier ones
    expected[5, 6] = 2
    assert (ObjectMaps(source=objects)[0]["mask"].numpy() == expected).all()
    ignored = ObjectMaps(source=objects, background=None)
    assert ignored.classes == ("car", "road") and not ignored.info.boxes
    assert (ignored[0]["mask"].numpy() == np.where(expected, expected - 1, 255)).all()
    for background, labels in (("none", [2, 1, 2, 0]), (None, [1, 0, 1])):
        panoptic = ObjectMaps(source=objects, background=background, panoptic=True)
        sample = panoptic[0]
        ground_truth = sample["ground_truth_map"]
        assert ground_truth.segment_labels.tolist() == labels and ground_truth.crowd.tolist() == [False] * len(labels)
        assert (np.array([255, *labels])[ground_truth.segments] == ground_truth.labels).all() and panoptic.info.boxes
        assert sample["labels"].tolist() == sample["ground_truth"].labels.tolist() == labels[:3]
    write_labelme(tmp_path, [SHAPES[0], {"label": "all", "points": rectangle(0, 0, 8, 6)}])
    hidden = ObjectMaps(source=labelme(root=tmp_path, masks=True), panoptic=True)[0]["ground_truth_map"]
    assert (
        hidden.segment_labels.tolist() == [1] and (hidden.segments == 1).all()
    )  # neither hidden objects nor background
    write_labelme(tmp_path, SHAPES[:3])
    mixed = ObjectMaps(source=labelme(root=tmp_path, masks=True), panoptic=True, stuff=["road"])
    sample, ground_truth = mixed[0], mixed[0]["ground_truth_map"]
    assert mixed.info.thing_labels == (1,)
    assert sample["labels"].tolist() == sample["ground_truth"].labels.tolist() == [1]
    assert sample["masks"].shape == (1, 6, 8) and len(sample["boxes"]) == len(sample["ground_truth"].segments) == 1
    assert ground_truth.segment_labels.tolist() == [2, 1, 0] and (ground_truth.labels == expected).all()
    assert (np.array([255, 2, 1, 0])[ground_truth.segments] == expected).all()
    for stuff, is_panoptic in ((["road"], False), (["road", "car"], True), (["sky"], True)):
        with pytest.raises(ValueError, match="stuff: "):
            ObjectMaps(source=objects, panoptic=is_panoptic, stuff=stuff)
    with pytest.raises(ValueError, match="DigitScenes has no instance masks; does it need masks: true"):
        ObjectMaps(source=DigitScenes(split="val"))
    with pytest.raises(ValueError, match="'car' is listed twice"):
        ObjectMaps(source=objects, background="car")


def test_broken_labelme_files(tmp_path: Path) -> None:
    line = {"label": "road", "points": [[0, 0], [1, 1]], "shape_type": "line"}
    write_labelme(tmp_path, [*SHAPES[:1], line])
    (tmp_path / "json/b.json").write_text('{"shapes": []}')
    (tmp_path / "json/c.json").write_text(json.dumps({"imagePath": "c.jpg", "shapes": []}))
    with pytest.raises(ValueError) as error:
        labelme(root=tmp_path)
    for text in (
        "json/a.json, shape 2: a line of 2 points",
        "json/b.json: not a file of LabelMe: KeyError",
        "json/c.jpg",
    ):
        assert text in str(error.value)
    assert len(labelme(root=tmp_path, broken="drop")) == 1
    (tmp_path / "json/d.json").write_text((tmp_path / "json/a.json").read_text())
    with pytest.raises(ValueError, match=r"image that is listed more than once.* images/a.jpg: also in json/d.json"):
        labelme(root=tmp_path)
    with pytest.raises(ValueError, match="has no JSON files"):
        labelme(root=tmp_path / "images")


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


def test_cvat(tmp_path: Path) -> None:
    save_image(tmp_path / "images/x/a.jpg")
    file = tmp_path / "annotations.xml"
    files: dict[str, Any] = {"root": tmp_path / "images", "file": file}
    file.write_text(XML.format(more=""))
    source = cvat(**files, masks=True)
    sample = source[0]
    assert source.classes == ("road", "car") and sample["id"] == "x/a.jpg"
    assert sample["labels"].tolist() == [0, 1, 0, 1, 1]
    assert sample["boxes"].round().tolist()[:3] == [[0, 0, 8, 3], [5, 2, 7, 6], [6, 4, 8, 6]]
    assert sample["masks"][2, 4:, 6:].tolist() == [[0, 1], [1, 0]] and sample["masks"][2].sum() == 2
    assert sample["boxes"][3:].round().tolist() == [[0, 2, 4, 4], [2, 1, 4, 5]]  # drawn last: the higher z_order
    assert cvat(**files, classes=["car"])[0]["labels"].tolist() == [0, 0, 0]
    more = '<polyline label="car" points="1,1;2,2"/><box label="x" xtl="0" ytl="0" xbr="1" ybr="1"/>'
    file.write_text(XML.format(more=more + '<mask label="car" rle="9" left="0" top="0" width="2" height="2"/>'))
    with pytest.raises(ValueError) as error:
        cvat(**files)
    for text in ("a polyline of 2 points", "label 'x'", "a mask of 9 pixels for 2 x 2"):
        assert text in str(error.value)
    assert len(cvat(**files, broken="drop")[0]["labels"]) == 5
    duplicate = XML[XML.index("<image") : XML.index("</annotations>")].format(more="")
    file.write_text(XML.format(more="").replace("</annotations>", f"{duplicate}</annotations>"))
    with pytest.raises(ValueError, match=r"1 image that is listed more than once: x/a.jpg: 2 times"):
        cvat(**files)
    assert len(cvat(**files, broken="drop")) == 1
    for old, new in (('width="8"', 'width="0"'), ('z_order="1"', 'z_order="x"')):
        file.write_text(XML.format(more="").replace(old, new, 1))
        with pytest.raises(ValueError, match=r"annotations.xml is not an XML file of CVAT"):
            cvat(**files)
    file.write_text('<!DOCTYPE a [<!ENTITY b "c">]><annotations/>')
    with pytest.raises(ValueError, match=r"annotations.xml is not an XML file of CVAT .* document type"):
        cvat(**files)
