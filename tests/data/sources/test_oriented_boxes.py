"""Minimum-area rectangles of corners, polygons and masks."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.contracts.rotated_boxes import box_corners, to_box_frame
from opabinia.data.sources import Concat, coco, digit_scenes, oriented_boxes, yolo
from opabinia.data.sources.digit_scenes import DigitScenes
from opabinia.data.sources.oriented_boxes import min_area_boxes


def test_rectangles_are_their_own_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oriented_boxes, "_BLOCK", 64)
    rng = np.random.default_rng(0)
    sides = np.sort(rng.uniform(1, 300, (200, 2)), 1)[:, ::-1]
    boxes = np.column_stack([rng.uniform(0, 4000, (200, 2)), sides, rng.uniform(-90, 90, 200)])
    corners = box_corners(torch.from_numpy(boxes)).numpy()
    assert np.allclose(min_area_boxes(corners), boxes)
    assert np.allclose(min_area_boxes(corners[:, [2, 0, 3, 1]]), boxes), "in any order"
    assert min_area_boxes(np.array([[[0, 0], [2, 0], [2, 4], [0, 4.0]]])).tolist() == [[1, 2, 4, 2, -90]]
    assert min_area_boxes(np.zeros((0, 4, 2))).shape == (0, 5)


def test_no_other_rectangle_is_smaller() -> None:
    points = np.random.default_rng(1).uniform(0, 50, (20, 7, 2))
    boxes = min_area_boxes(points)
    local = to_box_frame(torch.from_numpy(points), torch.from_numpy(boxes)[:, None]).abs().numpy()
    assert np.allclose(2 * local.max(1), boxes[:, 2:4]), "all sides of the box touch points"
    angles = np.radians(np.arange(0, 90, 0.5))
    x = points @ np.stack([np.cos(angles), np.sin(angles)])
    y = points @ np.stack([-np.sin(angles), np.cos(angles)])
    areas = (np.ptp(x, 1) * np.ptp(y, 1)).min(1)
    assert (boxes[:, 2:4].prod(1) <= areas + 1e-9).all()


def test_points_on_a_line_have_no_area() -> None:
    line = np.array([[[0, 0], [1, 1], [2, 2], [3, 3]], [[5, 5]] * 4], dtype=np.float64)
    assert np.allclose(min_area_boxes(line)[:, 2:4].prod(1), 0)


# --- COCO and YOLO ----------------------------------------------------------------------------------------------------


def write_scene(root: Path, segmentations: list[Any]) -> Path:
    """Save an image of 40 x 60 and a COCO file with one object for each segmentation."""
    Image.new("RGB", (60, 40)).save(root / "a.png")
    annotations = [
        {"id": number, "image_id": 1, "category_id": 1, "bbox": [0, 0, 5, 5], "segmentation": segmentation}
        for number, segmentation in enumerate(segmentations, 1)
    ]
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": 60, "height": 40}],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "ship"}],
    }
    (root / "a.json").write_text(json.dumps(content))
    return root / "a.json"


DIAMOND = [20, 10, 30, 20, 20, 30, 10, 20, 15, 15, 20, 20]


def test_polygons_and_masks_of_coco_become_oriented_boxes(tmp_path: Path) -> None:
    halves = [DIAMOND[:6], [10, 20, 20, 30, 20, 10]]
    mask = {"size": [40, 60], "counts": [40 * 10 + 5, 4, *[36, 4] * 9, 40 * 60 - 40 * 19 - 9]}
    source = coco(root=tmp_path, file=write_scene(tmp_path, [[DIAMOND], halves, mask]), oriented=True)
    assert source.info.oriented and not source.info.masks
    sample = source[0]
    boxes, ground_truth = sample["boxes"], sample["ground_truth"]
    assert boxes.format.name == "CXCYWHR" and boxes.dtype == torch.float32 and boxes.clamping_mode is None
    side = 200**0.5
    for box in boxes[:2].tolist():
        assert box[:4] == pytest.approx([20, 20, side, side]) and abs(box[4]) == pytest.approx(45)
    assert boxes[2].tolist() == pytest.approx([15, 7, 10, 4, 0]), "pixels 10 to 19, 5 to 8, to their outer edges"
    assert ground_truth.corners.shape == (3, 4, 2) and ground_truth.segments is None
    assert ground_truth.boxes[0].tolist() == pytest.approx([10, 10, 20, 20])
    assert ground_truth.areas.tolist() == pytest.approx([200, 200, 40])
    upright = coco(root=tmp_path, file=tmp_path / "a.json")
    assert not upright.info.oriented and upright[0]["ground_truth"].corners is None
    with pytest.raises(ValueError, match=r"sources\.1 has oriented: False, the first one True"):
        Concat(sources=[source, upright])


def test_broken_oriented_boxes_are_reported(tmp_path: Path) -> None:
    outside = [[50, 10, 80, 10, 80, 20, 50, 20]]
    file = write_scene(tmp_path, [[DIAMOND], [[1, 1, 5, 5, 9, 9]], outside, [[50, 10, 68, 10, 68, 20, 50, 20]]])
    with pytest.raises(ValueError) as error:
        coco(root=tmp_path, file=file, oriented=True)
    assert "1 box without area, 1 oriented box whose center is outside the image" in str(error.value)
    assert "a.png, annotation 2: " in str(error.value) and "a.png, annotation 3: " in str(error.value)
    assert coco(root=tmp_path, file=file, oriented=True, broken="clip")[0]["ground_truth"].ids.tolist() == [1, 4]


def test_polygons_of_yolo_become_oriented_boxes(tmp_path: Path) -> None:
    write_scene(tmp_path, [])
    (tmp_path / "data.yaml").write_text("train: .\nnames: [ship]\n")
    (tmp_path / "a.txt").write_text("0 0.5 0.25 0.66666667 0.5 0.5 0.75 0.33333333 0.5\n")
    sample = yolo(data=tmp_path / "data.yaml", oriented=True)[0]
    assert sample["ground_truth"].boxes.tolist() == [pytest.approx([20, 10, 20, 20])]
    assert sample["boxes"][0, 4].abs().item() == pytest.approx(45)


def test_masks_of_oriented_boxes_are_refused_before_a_file_is_read(tmp_path: Path) -> None:
    for read in (partial(coco, root=tmp_path, file=tmp_path / "no.json"), partial(yolo, data=tmp_path / "no.yaml")):
        with pytest.raises(ValueError, match="oriented boxes have no masks; remove masks: true"):
            read(oriented=True, masks=True)


# --- digits -----------------------------------------------------------------------------------------------------------


def test_rotated_digits_have_boxes_in_their_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digit_scenes, "SCENES", {"train": 3, "val": 3})
    monkeypatch.setattr(digit_scenes, "load_cached", lambda _, render: render())
    source = DigitScenes(rotated=True)
    assert source.info.oriented and source.fingerprint() != DigitScenes().fingerprint()
    rotations = []
    for index, count in enumerate(np.diff([0, *source._ends])):
        sample = source[index]
        owners, boxes = torch.from_numpy(source._owners[index]), sample["boxes"].as_subclass(torch.Tensor)
        assert len(boxes) == count == len(sample["labels"])
        rotations += boxes[:, 4].tolist()
        for number, box in enumerate(boxes, 1):
            rows, columns = (owners == number).nonzero().float().add(0.5).unbind(1)
            local = to_box_frame(torch.stack([columns, rows], 1), box).abs()
            slack = box[2:4] / 2 - local.amax(0)  # pixels are squares: their centers lie within the box
            assert (slack > 0).all() and (slack < 1).all()
    assert len({round(rotation) for rotation in rotations}) > 3
    with pytest.raises(ValueError, match="oriented boxes have no masks"):
        DigitScenes(rotated=True, masks=True)
