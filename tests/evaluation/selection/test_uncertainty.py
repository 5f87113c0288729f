"""Uncertainty of predictions."""

from __future__ import annotations

import pytest
import torch

from opabinia.contracts.rotated_boxes import mirror_boxes, pairwise_iou
from opabinia.evaluation.selection.uncertainty import (
    Measure,
    binary_uncertainty,
    class_uncertainty,
    detection_uncertainty,
    pixel_uncertainty,
)

MEASURES: list[Measure] = ["margin", "entropy"]


def test_margin_is_that_of_the_two_best_classes_and_entropy_of_all() -> None:
    probabilities = torch.tensor([[0.5, 0.5, 0, 0], [0.5, 0.3, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0]])
    assert class_uncertainty(probabilities, "margin").tolist() == pytest.approx([1, 0.8, 1, 0])
    assert class_uncertainty(probabilities, "entropy").tolist() == pytest.approx([0.5, 0.8427, 1, 0], abs=1e-3)


@pytest.mark.parametrize("measure", MEASURES)
def test_binary_uncertainty_is_highest_in_the_middle(measure: Measure) -> None:
    values = binary_uncertainty(torch.tensor([0.0, 0.2, 0.5, 0.8, 1.0]), measure).tolist()
    assert values[0] == values[4] == 0 and values[2] == pytest.approx(1) and 0 < values[1] == pytest.approx(values[3])


@pytest.mark.parametrize("measure", MEASURES)
def test_one_class_is_certain(measure: Measure) -> None:
    assert class_uncertainty(torch.ones(2, 1), measure).tolist() == [0, 0]


def test_uncertainty_of_pixels_is_averaged() -> None:
    logits = torch.zeros(2, 3, 4, 4)
    logits[0, 1, :2] = 100  # half of the pixels of the first image are certain
    assert pixel_uncertainty(logits, "margin").tolist() == pytest.approx([0.5, 1])
    assert pixel_uncertainty(logits, "entropy").tolist() == pytest.approx([0.5, 1])


Detections = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def detections(*rows: tuple[list[float], float, int]) -> Detections:
    boxes, scores, labels = zip(*rows, strict=True)
    return torch.tensor(boxes), torch.tensor(scores), torch.tensor(labels)


BOX, MOVED = [0.0, 0, 10, 10], [5.0, 0, 15, 10]


def uncertainty(found: Detections, mirrored: Detections) -> float:
    return float(detection_uncertainty(found, mirrored, "margin"))


def test_detections_are_uncertain_by_class_and_by_place() -> None:
    sure, doubtful = detections((BOX, 1.0, 0)), detections((BOX, 0.5, 0))
    assert uncertainty(sure, sure) == pytest.approx(0)
    assert uncertainty(doubtful, doubtful) == pytest.approx(0.5)
    assert uncertainty(sure, detections((MOVED, 1.0, 0))) == pytest.approx((1 - 1 / 3) / 2)
    assert uncertainty(sure, detections((BOX, 1.0, 1))) == pytest.approx(0.5), "another class is no correspondence"
    assert uncertainty(doubtful, detections((MOVED, 0.5, 1))) == pytest.approx(1)


def test_scores_are_weights_and_padding_counts_nothing() -> None:
    two = detections((BOX, 1.0, 0), ([50.0, 50, 60, 60], 0.25, 1))
    alone = detections((BOX, 1.0, 0))
    assert uncertainty(two, alone) == pytest.approx((1.0 * 0 + 0.25 * (0.5 + 1) / 2) / 1.25)
    padded = detections((BOX, 1.0, 0), ([0.0, 0, 0, 0], 0.0, -1))
    assert uncertainty(padded, padded) == pytest.approx(uncertainty(alone, alone))
    nothing = (torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.long))
    assert uncertainty(nothing, alone) == 0
    assert uncertainty(alone, nothing) == pytest.approx(0.5)


def test_oriented_boxes() -> None:
    boxes = torch.tensor([[20.0, 20, 10, 4, 30], [40, 20, 10, 4, -30]])
    iou = pairwise_iou(boxes, mirror_boxes(mirror_boxes(boxes, 60), 60))
    assert iou.diagonal().tolist() == pytest.approx([1, 1], abs=1e-4) and iou[0, 1] < 0.1
    found = (boxes, torch.tensor([1.0, 1]), torch.tensor([0, 1]))
    assert uncertainty(found, found) == pytest.approx(0, abs=1e-4)
