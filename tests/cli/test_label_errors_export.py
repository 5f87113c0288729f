"""``opabinia data labels --export``: drafts for annotation tools, and corrections that are read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from scripts import small_data
from tests.cli.conftest import SIX_STEPS, CommandResult

Command = Callable[..., CommandResult]


def test_classes_of_images_for_cvat(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels"
    result = opabinia("data", "labels", six_steps, "--export", "cvat", "--out", out, "--count", 1)
    assert result.status == 0, result.err
    listed = (out / "labels.csv").read_text().splitlines()[1:]
    images = ET.parse(out / "cvat" / "annotations.xml").getroot().findall("image")
    assert len(images) == len(listed)
    assert result.err.splitlines()[-1] == f"{len(images)} images for cvat are in {out / 'cvat'}"
    for image, line in zip(images, listed, strict=True):  # the most suspicious first
        name, _, label = line.split(",")[:3]
        (tag,) = image.findall("tag")
        assert image.get("name") == f"{name}.png" and tag.get("label") == label
        assert {item.get("name"): item.text for item in tag}["suspect"] == "true"
        with Image.open(out / "cvat" / "images" / f"{name}.png") as pixels:
            assert pixels.size == (8, 8)
    again = opabinia("data", "labels", six_steps, "--export", "cvat", "--out", out)
    assert again.status == 2 and "exists already, and may have corrections" in again.err
    assert len(again.err.splitlines()) == 1

    file = f"{{name: corrected, source: {{name: digits, split: val}}, file: {out / 'cvat' / 'annotations.xml'}}}"
    result = opabinia("data", "labels", six_steps, "--set", f"data.val.source={file}", "--out", tmp_path / "after")
    assert result.status == 0, result.err
    assert len((tmp_path / "after/labels.csv").read_text().splitlines()) - 1 == len(listed), "nothing was changed yet"


def test_there_is_no_such_tool(opabinia: Command, six_steps: Path) -> None:
    result = opabinia("data", "labels", six_steps, "--export", "paint")
    assert result.status == 2 and "label_studio" in result.err


@pytest.mark.slow
def test_boxes_for_every_tool(opabinia: Command, tmp_path: Path) -> None:
    small_data.coco(tmp_path)
    file = tmp_path / "annotations.json"
    content = json.loads(file.read_text())
    left, top, width, height = content["annotations"][0]["bbox"]
    content["annotations"].append({**content["annotations"][0], "id": 999, "bbox": [left, top, width, height - 1]})
    file.write_text(json.dumps(content))
    source = f"{{name: coco, root: {tmp_path}, file: {file}, channels: 1}}"
    words = [*SIX_STEPS, "train.length=1it", *(f"data.{part}.source={source}" for part in ("train", "val"))]
    trained = opabinia("train", "detection/digits", *words, "data.batch_size=2", "--out", tmp_path / "runs")
    assert trained.status == 0, trained.err
    run = tmp_path / "runs" / "detection" / "digits" / "default"
    for tool in ("cvat", "label_studio", "labelme"):
        result = opabinia("data", "labels", run, "--export", tool)
        assert result.status == 0, result.err
        assert (run / "labels" / tool / "images" / "1.png").read_bytes() == (tmp_path / "1.png").read_bytes()
    image = next(ET.parse(run / "labels/cvat/annotations.xml").getroot().iter("image"))
    boxes = [[float(box.get(side, "nan")) for side in ("xtl", "ytl", "xbr", "ybr")] for box in image.findall("box")]
    marked = [box.findtext("attribute[@name='suspect']") for box in image.findall("box")]
    assert boxes[0] == pytest.approx([left, top, left + width, top + height])
    assert marked.count("true") >= 1 and "duplicate box" in ET.tostring(image, encoding="unicode")

    by = f"{{name: cvat, root: {run}/labels/cvat/images, file: {run}/labels/cvat/annotations.xml, channels: 1}}"
    changed = f"data.val.source={{name: replaced, source: {source}, by: {by}}}"
    result = opabinia("data", "labels", run, "--set", changed, "--out", tmp_path / "again")
    assert result.status == 0 and "annotated objects: 6" in result.out, result.err
