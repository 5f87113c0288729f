"""Drafts for annotation tools, read back by the sources for what the tools export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from opabinia.config import ConfigError
from opabinia.contracts.masks import decode_rle
from opabinia.data.sources import cvat, label_studio, labelme
from opabinia.data.sources.detection_base import AnnotatedImages
from opabinia.inference.annotation_files.drafts import (
    Annotation,
    Box,
    Draft,
    DraftSet,
    Outline,
    RotatedBox,
    corners_of,
    image_name,
)
from opabinia.inference.annotation_files.label_studio import label_studio_files
from opabinia.inference.annotation_files.write import FILES, Tool, write_drafts

CLASSES = ["cat", "dog"]
TRIANGLE = [10.0, 10.0, 30.0, 10.0, 20.0, 25.0]
ROTATED = RotatedBox(40, 24, 20, 8, 30)
TWO_PARTS = Outline([[2, 2, 8, 2, 8, 6, 2, 6], [2, 30, 8, 30, 8, 40, 2, 40]])
ANNOTATIONS = [
    Annotation("cat", Box(1.25, 2.5, 21, 40.75), "score 0.80"),
    Annotation("dog", ROTATED, 'class, suspicion 0.90: <reason> & "more"', suspect=True),
    Annotation("dog", Outline([TRIANGLE])),
    Annotation("cat", TWO_PARTS),
]
DRAFTS = [
    Draft("a/one image.png", (48, 64), ANNOTATIONS, 0.9),
    Draft("two.png", (48, 64), [], 0.1),
    Draft("three.png", (48, 64), [Annotation("cat", Box(0, 0, 64, 48))]),
]


def write(out: Path, tool: Tool) -> Path:
    image = Image.new("RGB", (64, 48))
    assert write_drafts(((draft, image) for draft in DRAFTS), out, tool, CLASSES) == 3
    return out


def read_cvat(out: Path) -> AnnotatedImages:
    return cvat(root=out / "images", file=out / "annotations.xml", masks=True)


def read_labelme(out: Path) -> AnnotatedImages:
    return labelme(root=out / "images", masks=True)


def read_label_studio(out: Path) -> AnnotatedImages:
    submit(out / "tasks.json")
    return label_studio(root=out / "images", file=out / "tasks.json", masks=True)


def submit(file: Path) -> list[dict[str, Any]]:
    """Write the file as Label Studio exports it when all predictions were submitted as annotations."""
    tasks = json.loads(file.read_text())
    for task in tasks:
        task["annotations"] = [{"was_cancelled": False, "result": task["predictions"][0]["result"]}]
    file.write_text(json.dumps(tasks))
    return list(tasks)


READERS: dict[Tool, Callable[[Path], AnnotatedImages]] = {
    "cvat": read_cvat,
    "labelme": read_labelme,
    "label_studio": read_label_studio,
}


@pytest.mark.parametrize("tool", READERS)
def test_the_same_boxes_and_masks_are_read_back(tool: Tool, tmp_path: Path) -> None:
    source = READERS[tool](write(tmp_path / "out", tool))
    assert source.classes == ("cat", "dog")
    assert sorted(map(source.id, range(3))) == ["a/one image.png", "three.png", "two.png"]
    by_name = {source.id(index): source.ground_truth(index) for index in range(3)}
    assert len(by_name["two.png"].labels) == 0
    assert by_name["three.png"].boxes.tolist() == [[0, 0, 64, 48]]
    truth = by_name["a/one image.png"]
    parts = 2 if tool == "label_studio" else 1  # which has no objects of several parts
    assert [source.classes[label] for label in truth.labels] == ["cat", "dog", "dog", *["cat"] * parts]
    assert truth.boxes[0] == pytest.approx([1.25, 2.5, 19.75, 38.25], abs=0.01)
    corners = np.reshape(corners_of(ROTATED), (-1, 2))
    low, high = corners.min(0), corners.max(0)
    assert truth.boxes[1] == pytest.approx([*low, *(high - low)], abs=0.02)
    assert truth.segments is not None
    masks = [decode_rle(segment, truth.size) for segment in truth.segments]
    assert masks[1].sum() == pytest.approx(ROTATED.width * ROTATED.height, abs=8)
    assert (masks[2] == decode_rle([TRIANGLE], truth.size)).all()
    together = np.maximum.reduce(masks[3:])
    assert (together == decode_rle([list(part) for part in TWO_PARTS.polygons], truth.size)).all()


def test_suspects_are_marked_in_every_tool(tmp_path: Path) -> None:
    top = ET.parse(write(tmp_path / "cvat", "cvat") / "annotations.xml").getroot()
    shapes = next(image for image in top.findall("image") if image.get("name") == "a/one image.png")
    values = [{item.get("name"): item.text for item in shape} for shape in shapes]
    assert [value["suspect"] for value in values] == ["false", "true", "false", "false"]
    assert values[1]["note"] == ANNOTATIONS[1].note
    names = [element.text for element in top.findall("meta/task/labels/label/attributes/attribute/name")]
    assert names == ["suspect", "note"] * 2, "an import needs the attributes of every label"
    raw = json.loads((tmp_path / "cvat" / "labels.json").read_text())
    assert [label["name"] for label in raw] == CLASSES and raw[0]["attributes"][0]["input_type"] == "checkbox"

    content = json.loads((write(tmp_path / "labelme", "labelme") / "images/a/one image.json").read_text())
    assert [shape["flags"]["suspect"] for shape in content["shapes"]] == [False, True, False, False, False]
    assert content["shapes"][1]["description"] == ANNOTATIONS[1].note

    tasks = json.loads((write(tmp_path / "studio", "label_studio") / "tasks.json").read_text())
    (prediction,) = tasks[0]["predictions"]
    assert prediction["score"] == tasks[0]["data"]["score"] == 0.9
    assert prediction["result"][1]["value"]["rectanglelabels"] == ["dog", "suspect"]
    assert prediction["result"][1]["meta"] == {"text": [ANNOTATIONS[1].note]}
    view = ET.parse(tmp_path / "studio" / "config.xml").getroot()
    for result in prediction["result"]:
        control = next(element for element in view if element.get("name") == result["from_name"])
        allowed = [label.get("value") for label in control]
        assert control.tag.lower() == result["type"] and set(result["value"][result["type"]]) <= set(allowed)
        assert control.get("toName") == result["to_name"] == "image"


def test_rectangles_of_label_studio_are_in_percent_and_turn_about_their_corner() -> None:
    (task,) = json.loads(label_studio_files(DraftSet(CLASSES, DRAFTS[:1]))["tasks.json"])
    box, rotated = (result["value"] for result in task["predictions"][0]["result"][:2])
    assert [box[key] for key in ("x", "y", "width", "height", "rotation")] == pytest.approx(
        [1.25 / 0.64, 2.5 / 0.48, 19.75 / 0.64, 38.25 / 0.48, 0]
    )
    corner = corners_of(ROTATED)[:2]
    assert [rotated["x"], rotated["y"], rotated["rotation"]] == pytest.approx([corner[0] / 0.64, corner[1] / 0.48, 330])
    assert task["data"]["image"] == "/data/local-files/?d=images/a/one%20image.png"


@pytest.mark.parametrize("tool", FILES)
def test_classes_of_images(tool: Tool) -> None:
    drafts = [Draft("a.png", (4, 4), [Annotation("dog", None, "class: why", suspect=True)], 0.5)]
    files = FILES[tool](DraftSet(CLASSES, drafts, of_images=True))
    if tool == "cvat":
        (image,) = ET.fromstring(files["annotations.xml"]).findall("image")
        assert [tag.get("label") for tag in image.findall("tag")] == ["dog"]
    elif tool == "labelme":
        content = json.loads(files["images/a.json"])
        assert content["flags"] == {"cat": False, "dog": True} and content["description"] == "class: why"
    else:
        (task,) = json.loads(files["tasks.json"])
        assert task["predictions"][0]["result"][0]["value"] == {"choices": ["dog"]}
        assert task["data"]["note"] == "class: why" and 'choice="single"' in files["config.xml"]


def test_an_existing_folder_and_equal_names_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "out", "cvat")
    with pytest.raises(ConfigError, match="exists already, and may have corrections"):
        write(tmp_path / "out", "cvat")
    image = Image.new("L", (4, 4))
    with pytest.raises(ConfigError, match=r"two images would be called two\.png"):
        write_drafts([(DRAFTS[1], image), (DRAFTS[1], image)], tmp_path / "other", "labelme", CLASSES)
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing half-written is left"


@pytest.mark.parametrize(
    ("sample_id", "name"),
    [
        ("cat/1.JPG", "cat/1.JPG"),
        ("digits/12", "digits/12.png"),
        ("/photos/1.jpg", "photos/1.jpg"),
        ("../../1.jpg", "1.jpg"),
        ("a\nb.png", "a_b.png"),
        ("", "image.png"),
    ],
)
def test_images_stay_in_their_folder(sample_id: str, name: str) -> None:
    assert image_name(sample_id) == name


def test_text_that_xml_does_not_allow() -> None:
    drafts = [Draft("a.png", (4, 4), [Annotation("a\x00b", Box(0, 0, 1, 1), "\ud800")])]
    top = ET.fromstring(FILES["cvat"](DraftSet(["a\x00b"], drafts))["annotations.xml"])
    assert top.find("image/box").get("label") == top.findtext("meta/task/labels/label/name") == "a?b"  # type: ignore[union-attr]
