"""Panoptic segmentation from instances and from mask classifiers: golden results of detectron2 and Mask2Former."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from opabinia.contracts import Detections
from opabinia.contracts.masks import decode_rle
from opabinia.evaluation.detection.rle import paste_masks
from opabinia.models.panoptic import (
    Segments,
    classify_pixels,
    combine_instances,
    first_image,
    merge_masks,
    merge_queries,
    paste_mask,
    stack_segments,
    top_instances,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "segmentation"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())


def golden(case: str) -> dict[str, torch.Tensor]:
    maps = np.load(GOLDEN / "maps.npz")
    return {name.split("/")[1]: torch.from_numpy(maps[name]) for name in maps.files if name.startswith(f"{case}/")}


def instances_of_detectron2() -> tuple[Detections, torch.Tensor, dict[str, Any]]:
    """Return the detections, the labels and the options of the golden case."""
    case = golden("instances")
    boxes = torch.tensor([[0.0, 0, 40, 40]]).expand(12, 4)
    labels = case["semantic"].masked_fill(case["semantic"] == 0, 255)
    order = case["scores"].argsort(descending=True, stable=True)
    columns = boxes, case["scores"], case["labels"], case["masks"].float()
    detections = Detections(*(values[order][None] for values in columns))
    options = {"min_score": 0.3, "max_overlap": 0.5, "min_area": 40}
    return detections, labels[None], {"classes": int(labels[labels < 255].max()) + 1, **options}


def test_combining_instances_and_semantic_labels_matches_detectron2() -> None:
    expected = EXPECTED["instances"]
    detections, labels, options = instances_of_detectron2()
    segments = first_image(combine_instances(detections, labels, **options))
    assert segments.map.tolist() == expected["segments"]
    assert segments.labels.tolist() == [row["category_id"] for row in expected["info"]]
    assert segments.scores.tolist() == pytest.approx([row.get("score", 1.0) for row in expected["info"]])
    assert len({row["isthing"] for row in expected["info"]}) == 2


def test_merging_queries_matches_mask2former() -> None:
    case, expected = golden("queries"), EXPECTED["queries"]
    segments = merge_masks(**case, thing_labels=[1, 3], min_score=0.6, min_visible=0.7)
    assert len(merge_masks(**case, thing_labels=range(4), min_score=0.6, min_visible=0.7).labels) > len(segments.labels)
    assert segments.map.tolist() == expected["segments"]
    assert segments.labels.tolist() == expected["labels"]
    scores = classify_pixels(case["class_logits"][None], case["mask_logits"][None])[0]
    assert scores.mean((1, 2)).tolist() == pytest.approx(expected["semantic"])
    batch = {name: torch.stack([torch.zeros_like(values), values]) for name, values in case.items()}
    instances = top_instances(**batch, thing_labels=[1, 3], count=20)
    count = int((instances.labels[1] >= 0).sum())
    assert (instances.labels[1, count:] == -1).all() and not instances.scores[1, count:].any()
    detections = Detections(*(values[1, :count] for values in instances if values is not None))
    assert detections.masks is not None
    areas = [
        int(paste_mask(mask, box, (24, 32)).sum()) for mask, box in zip(detections.masks, detections.boxes, strict=True)
    ]
    columns = (expected[f"instance_{name}"] for name in ("scores", "labels", "areas"))
    scores, labels, published = zip(*sorted(zip(*columns, strict=True), reverse=True), strict=True)
    assert detections.scores.tolist() == pytest.approx(scores)
    assert detections.labels.tolist() == list(labels)
    assert areas == list(published)  # each pixel of these small images has many cells


def test_pasted_masks_match_the_evaluation() -> None:
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(9, 7, 7, generator=generator)
    corners = torch.rand(9, 4, generator=generator) * 30 - 5
    boxes = torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:].abs()], 1)
    encoded = paste_masks(masks.numpy(), boxes.numpy(), (20, 24))
    for mask, box, text in zip(masks, boxes, encoded, strict=True):
        expected = decode_rle({"size": [20, 24], "counts": text}, (20, 24))
        assert np.array_equal(paste_mask(mask, box, (20, 24)).numpy(), expected)


def test_padded_images_of_a_batch_give_the_same_segments() -> None:
    draw = torch.Generator().manual_seed(3)
    sizes, shape = [(30, 40), (22, 35), (25, 18)], (30, 40)
    area = torch.stack([F.pad(torch.ones(size), (0, 40 - size[1], 0, 30 - size[0])) for size in sizes]) > 0
    boxes = torch.rand(3, 9, 4, generator=draw).mul(18).cumsum(2).clamp(max=18)
    thing_labels, masks = torch.randint(-1, 3, (3, 9), generator=draw), torch.rand(3, 9, 7, 7, generator=draw)
    detections = Detections(boxes, torch.linspace(1, 0.2, 9).expand(3, 9), thing_labels, masks)
    labels = torch.randint(3, 7, (3, 30, 40), generator=draw).masked_fill(~area, 5).to(torch.uint8)
    labels[labels == 6] = 255
    combine = partial(combine_instances, classes=6, min_score=0.3, max_overlap=0.4, min_area=150)
    classes, queries = 3 * torch.randn(3, 12, 7, generator=draw), 4 * torch.randn(3, 12, 5, 5, generator=draw)
    pixels = F.interpolate(queries, size=shape, mode="bilinear")
    merge = partial(merge_queries, thing_labels=[0, 1], min_score=0.4, min_visible=0.3)
    batches = combine(detections, labels, area=area), merge(classes, pixels, area=area)
    for row, (height, width) in enumerate(sizes):
        image = slice(row, row + 1), ..., slice(height), slice(width)
        single = Detections(*(values[image[0]] for values in detections if values is not None))
        separate = combine(single, labels[image]), merge(classes[image[0]], pixels[image])
        for batch, segments in zip(batches, map(first_image, separate), strict=True):
            count = len(segments.labels)
            assert count > 1 and (batch.labels[row, count:] == -1).all()
            assert torch.equal(batch.map[row, :height, :width], segments.map) and not batch.map[row][~area[row]].any()
            assert torch.equal(batch.labels[row, :count], segments.labels)
            assert torch.equal(batch.scores[row, :count], segments.scores)


def test_images_without_segments() -> None:
    no_detections = Detections(
        torch.zeros(1, 0, 4), torch.zeros(1, 0), torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 0, 7, 7)
    )
    empty = first_image(combine_instances(no_detections, torch.full((1, 2, 3), 255, dtype=torch.uint8), classes=3))
    assert not empty.map.any() and not len(empty.labels)
    no_segments = merge_masks(torch.zeros(2, 3), torch.zeros(2, 4, 2), [0])
    assert not no_segments.map.any() and no_segments.map.dtype == torch.int32
    assert (top_instances(torch.zeros(1, 2, 3), torch.full((1, 2, 4, 2), -1.0), [0]).labels == -1).all()
    two_segments = Segments(
        torch.tensor([[1, 0], [2, 2]], dtype=torch.int32), torch.tensor([3, 0]), torch.tensor([0.5, 1])
    )
    rows = stack_segments([empty, two_segments])
    assert rows["image_size"].tolist() == [[2, 3], [2, 2]]
    assert rows["segmentation"][1].tolist() == [[3, 255, 255], [0, 0, 255]]
    assert (rows["segmentation"][0] == 255).all()
    assert rows["segments"][1].tolist() == [[1, 0, 0], [2, 2, 0]]
    assert rows["segment_labels"].tolist() == [[-1, -1], [3, 0]]


def test_masks_and_classes_are_in_float32_under_autocast() -> None:
    draw = torch.Generator().manual_seed(0)
    mask, box = torch.rand(28, 28, generator=draw), torch.tensor([3.3, 10.2, 300.7, 250.1])
    logits = torch.randn(1, 20, 9, generator=draw), torch.randn(1, 20, 16, 16, generator=draw)
    pasted, scores = paste_mask(mask, box, (400, 400)), classify_pixels(*logits)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(paste_mask(mask, box, (400, 400)), pasted)
        assert torch.equal(classify_pixels(*logits), scores)
