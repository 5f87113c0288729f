"""Exports of Label Studio as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.data.sources import label_studio
from opabinia.data.sources.label_studio import image_path


def region(kind: str, labels: list[str], **value: Any) -> dict[str, Any]:
    return {"type": kind, "original_width": 80, "original_height": 40, "value": {**value, kind: labels}}


BOX = region("rectanglelabels", ["cat"], x=10, y=25, width=50, height=50, rotation=0)
TURNED = region("rectanglelabels", ["suspect", "dog"], x=50, y=25, width=25, height=25, rotation=90)
POLYGON = region("polygonlabels", ["dog"], points=[[0, 0], [50, 0], [0, 50]])
CHOICE = {"type": "choices", "value": {"choices": ["day"]}}


def task(image: str, *annotations: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {"data": {"image": image}, "annotations": [{"result": result, **changes} for result in annotations]}


def write(root: Path, tasks: Any) -> Path:
    (root / "a").mkdir(parents=True, exist_ok=True)
    for name in ("a/1.png", "2.png"):
        Image.new("RGB", (80, 40)).save(root / name)
    file = root / "export.json"
    file.write_text(json.dumps(tasks))
    return file


def test_rectangles_and_polygons(tmp_path: Path) -> None:
    tasks = [
        task("/data/local-files/?d=photos/a/1.png", [POLYGON], [BOX, CHOICE, TURNED, POLYGON]),
        task("/data/upload/3/0a1b2c3d-2.png", []),
        {"data": {"image": "unlabeled.png"}, "annotations": []},
    ]
    source = label_studio(root=tmp_path, file=write(tmp_path, tasks))
    assert [source.id(index) for index in range(2)] == ["a/1.png", "2.png"] and len(source) == 2
    truth = source.ground_truth(0)
    assert [source.classes[label] for label in truth.labels] == ["cat", "dog", "dog"]
    assert truth.boxes == pytest.approx(
        # a width of 20 and a height of 10 pixels, turned clockwise about (40, 10)
        np.array([[8, 10, 40, 20], [30, 10, 10, 20], [0, 0, 40, 20]])
    )
    assert label_studio(root=tmp_path, file=tmp_path / "export.json", classes=["dog"])[0]["labels"].tolist() == [0, 0]
    assert label_studio(root=tmp_path, file=tmp_path / "export.json", empty="drop").id(0) == "a/1.png"


def test_cancelled_annotations_do_not_count(tmp_path: Path) -> None:
    tasks = [task("2.png", [BOX]), task("a/1.png", [BOX], was_cancelled=True)]
    assert len(label_studio(root=tmp_path, file=write(tmp_path, tasks))) == 1


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("/data/local-files/?d=a%20b/1.png", "a b/1.png"),
        ("/data/upload/12/0a1b2c3d-name.png", "name.png"),
        ("https://host/folder/a%20b.png?token=1", "folder/a b.png"),
        ("s3://bucket/a.png", "a.png"),
    ],
)
def test_addresses_of_images(address: str, path: str) -> None:
    assert image_path(address) == path


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"a": 1}, "export.json is no JSON export of Label Studio"),
        ([{"data": {}, "annotations": [{"result": []}]}], "no JSON export of Label Studio: KeyError"),
        (
            [task("2.png", [region("polygonlabels", ["a"], points=[[0, 0], [1, 1]])])],
            "2.png: ValueError: a polygon of 2",
        ),
        ([task("2.png", [region("rectanglelabels", ["a"], x="1", y=0, width=1, height=1)])], "are not 4 numbers"),
        ([task("2.png", [{**BOX, "original_width": 0}])], "2.png"),
        ([task("3.png", [BOX])], "none of its 1 image is in"),
        ([task("2.png", [BOX]), task("2.png", [BOX])], "listed more than once"),
    ],
)
def test_broken_exports(tmp_path: Path, tasks: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        label_studio(root=tmp_path, file=write(tmp_path, tasks))
