"""``opabinia data labels`` of bounding boxes."""

from __future__ import annotations

import base64
import csv
import json
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.data.sources import coco
from opabinia.evaluation.label_errors.detection import MISPLACED, OVERLOOKED, DetectionCheck
from opabinia.evaluation.label_errors.suspects import Suspect
from opabinia.inference.label_errors.collect import CollectedRun
from opabinia.inference.label_errors.page import render_page
from opabinia.visualization.drawing import COLORS
from scripts import small_data
from tests.cli.conftest import SIX_STEPS, CommandResult


@pytest.mark.slow
def test_a_box_that_is_annotated_twice(opabinia: Callable[..., CommandResult], tmp_path: Path) -> None:
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
    result = opabinia("data", "labels", run)
    assert result.status == 0, result.err
    with (run / "labels" / "labels.csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["issue"] == "duplicate box"]
    (row,) = rows
    assert (row["id"], row["label"]) == ("1.png", "block")
    assert [float(row[side]) for side in ("left", "top", "right")] == [left, top, left + width]
    assert "issue duplicate box: 1" in result.out and "annotated objects: 6" in result.out


def test_boxes_are_drawn_in_their_surroundings(tmp_path: Path) -> None:
    small_data.coco(tmp_path)
    source = coco(root=tmp_path, file=tmp_path / "annotations.json")
    run = CollectedRun(tmp_path, "val", source, DetectionCheck(), trained_on=False, skipped=0)
    name = source.id(0)
    suspects = [
        Suspect(name, MISPLACED, "block", "block", 0.9, "<reason>", (4.0, 4.0, 12.0, 12.0), (8.0, 8.0, 16.0, 16.0)),
        Suspect(name, OVERLOOKED, "", "bar", 0.8, "r", None, (60.0, 40.0, 64.0, 48.0)),
        Suspect(name, OVERLOOKED, "", "bar", 0.7, "beyond the image", None, (-50.0, -50.0, -40.0, -40.0)),
        Suspect("gone.png", OVERLOOKED, "", "bar", 0.6, "no such image", None, (0.0, 0.0, 4.0, 4.0)),
    ]
    page = render_page([(suspect, run) for suspect in suspects], {"samples": "1"}, ["a <note>"], "Labels")
    images = [
        Image.open(BytesIO(base64.b64decode(text))) for text in re.findall(r"data:image/webp;base64,([^\"]+)", page)
    ]
    assert len(images) == 3 and all(100 < max(image.size) <= 260 for image in images)
    assert "&lt;reason&gt;" in page and "a &lt;note&gt;" in page
    assert f"1. {name}: label block, predicted block; suspicion 0.90" in page
    assert f"2. {name}: not annotated, predicted bar" in page and "no such image" in page
    pixels = np.asarray(images[0].convert("RGB")).reshape(-1, 3).astype(int)
    for color in COLORS[:2]:  # of the annotated box, and of the predicted one
        assert (np.abs(pixels - color).max(1) < 25).sum() > 100
