"""Draft annotations of ground truth, suspects and predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from opabinia.contracts import DatasetInfo
from opabinia.contracts.masks import decode_rle
from opabinia.contracts.rotated_boxes import box_corners
from opabinia.data.sources import Digits, DigitScenes, ObjectMaps, coco, cvat, digit_maps
from opabinia.evaluation.label_errors.detection import MISPLACED, OVERLOOKED
from opabinia.evaluation.label_errors.segmentation import REGION
from opabinia.evaluation.label_errors.suspects import Suspect
from opabinia.inference.annotation_files.drafts import (
    Annotation,
    Box,
    Draft,
    Outline,
    RotatedBox,
    corners_of,
    from_ground_truth,
    from_map,
    from_prediction,
    mark_suspects,
)
from opabinia.inference.annotation_files.write import write_drafts
from opabinia.visualization.drawing import to_pil
from opabinia.visualization.presenters.by_keys import presenter_of
from scripts import small_data


def test_boxes_masks_and_classes_of_samples(tmp_path: Path) -> None:
    small_data.coco(tmp_path)
    file = tmp_path / "annotations.json"
    boxes = from_ground_truth(coco(root=tmp_path, file=file)[1], ["block", "bar"])
    masks = from_ground_truth(coco(root=tmp_path, file=file, masks=True)[1], ["block", "bar"])
    assert [item.label for item in boxes] == [item.label for item in masks] and boxes
    for box, mask in zip(boxes, masks, strict=True):
        assert isinstance(box.shape, Box) and isinstance(mask.shape, Outline)
        assert mask.shape.bounds == pytest.approx(box.shape, abs=1)
    digits = Digits(split="val")
    assert from_ground_truth(digits[3], digits.classes) == [Annotation(digits.classes[digits[3]["label"]])]


def test_suspects_mark_the_annotations_they_are_about() -> None:
    first, second = Box(0, 0, 10, 10), Box(20, 0, 30, 10)
    annotations = [Annotation("a", first), Annotation("b", first), Annotation("a", second)]
    suspects = [
        Suspect("x", MISPLACED, "a", "a", 0.75, "why", (20.0, 0.0, 30.0, 10.0), (22.0, 0.0, 32.0, 10.0)),
        Suspect("x", OVERLOOKED, "", "c", 0.5, "seen", None, (5.0, 5.0, 9.0, 9.0)),
    ]
    marked = mark_suspects(annotations, suspects)
    assert marked[:2] == annotations[:2]
    assert marked[2] == Annotation("a", second, "badly located box, suspicion 0.75: why", suspect=True)
    assert marked[3] == Annotation("c", Box(5, 5, 9, 9), "overlooked object, suspicion 0.50: seen", suspect=True)
    of_image = mark_suspects([Annotation("a")], [Suspect("x", "class", "a", "b", 0.9, "r")])
    assert of_image == [Annotation("a", None, "class, suspicion 0.90: r", suspect=True)]


def test_regions_of_maps_mark_the_polygons_of_their_label() -> None:
    labels = np.zeros((20, 30), dtype=np.uint8)
    labels[2:6, 2:6] = labels[10:16, 20:28] = 1
    annotations = from_map(labels, ["background", "cat"])
    suspects = [Suspect("x", REGION, "cat", "background", 0.9, "r", (20.0, 10.0, 24.0, 14.0))]
    assert [item.suspect for item in mark_suspects(annotations, suspects)] == [True, False]


def test_a_segmentation_map_is_read_back_exactly(tmp_path: Path) -> None:
    """A ring around a dot, and the scenes of digits: polygons fill holes, and what is in them lies on top."""
    ring = np.zeros((24, 24), dtype=np.uint8)
    ring[2:22, 2:22], ring[6:18, 6:18], ring[10:14, 10:14] = 2, 1, 2
    maps = digit_maps(split="val")
    scenes = [maps[index] for index in range(4)]
    images = [to_pil(torch.zeros(3, 24, 24, dtype=torch.uint8)), *(to_pil(scene["image"]) for scene in scenes)]
    arrays = [ring, *(scene["mask"].numpy() for scene in scenes)]
    drafts = [
        (Draft(f"{number}.png", array.shape, from_map(array, maps.classes)), image)
        for number, (array, image) in enumerate(zip(arrays, images, strict=True))
    ]
    write_drafts(drafts, tmp_path / "out", "cvat", maps.classes[1:])
    source = cvat(root=tmp_path / "out/images", file=tmp_path / "out/annotations.xml", masks=True, broken="clip")
    read = ObjectMaps(source=source)
    assert read.classes == maps.classes
    for number, array in enumerate(arrays):
        assert (read[number]["mask"].numpy() == array).all(), number


def test_oriented_boxes_keep_their_corners() -> None:
    box = RotatedBox(40, 24, 20, 8, 30)
    assert np.reshape(corners_of(box), (4, 2)) == pytest.approx(box_corners(torch.tensor(box)).numpy(), abs=1e-4)


def test_drafts_of_predictions() -> None:
    task, info = torch.nn.Module(), DatasetInfo(samples=0, classes=("a", "b"))
    task.presenter = lambda: None  # type: ignore[assignment]

    def draft(prediction: dict[str, torch.Tensor], **options: object) -> list[Annotation]:
        readable = presenter_of(task, info, prediction).readable(prediction)  # type: ignore[arg-type]
        return from_prediction(readable, **{"multi_label": False, "min_score": 0.3, **options})  # type: ignore[arg-type]

    boxes = torch.tensor([[1.0, 2, 3, 4], [6, 6, 6, 9], [5, 5, 9, 9], [0, 0, 0, 0]])
    detections = {"boxes": boxes, "scores": torch.tensor([0.9, 0.8, 0.2, 0]), "labels": torch.tensor([1, 1, 0, -1])}
    assert draft(detections) == [Annotation("b", Box(1, 2, 3, 4), "score 0.90")]
    oriented = {**detections, "boxes": torch.tensor([[10.0, 10, 4, 2, 45]]).expand(4, 5)}
    assert [item.shape for item in draft(oriented)] == [RotatedBox(10, 10, 4, 2, 45)] * 2
    probabilities = {"probabilities": torch.tensor([0.6, 0.4])}
    assert draft(probabilities) == [Annotation("a", None, "probability 0.60")]
    assert [item.label for item in draft(probabilities, multi_label=True)] == ["a", "b"]
    assert draft(probabilities, multi_label=True, min_score=0.9) == []
    labels = torch.zeros(8, 8, dtype=torch.uint8)
    labels[2:4, 2:5] = 1
    (a, b) = draft({"segmentation": labels, "image_size": torch.tensor([8, 8])})
    assert (a.label, b.label) == ("a", "b") and isinstance(b.shape, Outline)
    assert (decode_rle([list(part) for part in b.shape.polygons], (8, 8)) == labels.numpy()).all()


def test_instance_masks_of_scenes_have_outlines() -> None:
    scenes = DigitScenes(split="val", masks=True)
    annotations = from_ground_truth(scenes[0], scenes.classes)
    assert annotations and all(isinstance(item.shape, Outline) for item in annotations)
