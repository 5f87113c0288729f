"""Regions of segmentation maps whose label is improbable."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opabinia.contracts import DataMismatch
from opabinia.evaluation.label_errors.segmentation import SegmentationCheck, wrong_regions

CLASSES = ["grass", "road", "car"]


def maps() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grass with a block of road that is predicted as car, and a block of car that is not labeled."""
    labels, predicted = np.zeros((40, 50), np.uint8), np.zeros((40, 50), np.uint8)
    labels[5:15, 5:20], predicted[5:15, 5:20] = 1, 2
    predicted[25:35, 30:50] = 2  # at the border of the image
    of_label = np.full((40, 50), 0.9, np.float32)
    of_label[5:15, 5:20] = 0.05
    of_label[25:35, 30:50] = 0.2
    return labels, predicted, of_label


def test_regions_of_other_classes() -> None:
    regions = sorted(wrong_regions(*maps()), reverse=True)
    assert [(region.label, region.predicted, region.pixels, region.box) for region in regions] == [
        (1, 2, 150, (5, 5, 20, 15)),
        (0, 2, 200, (30, 25, 50, 35)),
    ]
    assert [region.score for region in regions] == pytest.approx([0.95, 0.8], abs=1e-6)


def test_borders_and_unlabeled_pixels_are_not_regions() -> None:
    labels, predicted = np.zeros((40, 50), np.uint8), np.zeros((40, 50), np.uint8)
    predicted[10:14, :] = 1  # four pixels are thinner than 2 x 2 + 1
    labels[20:40, :], predicted[20:40, :] = 255, 2
    assert list(wrong_regions(labels, predicted, np.zeros((40, 50)))) == []
    predicted[10:15, :] = 1
    assert len(list(wrong_regions(labels, predicted, np.zeros((40, 50))))) == 1


def test_two_regions_of_the_same_classes_are_two() -> None:
    labels, predicted = np.zeros((40, 50), np.uint8), np.zeros((40, 50), np.uint8)
    predicted[2:10, 2:10] = predicted[20:30, 20:30] = 1
    assert sorted(region.pixels for region in wrong_regions(labels, predicted, np.zeros((40, 50)))) == [64, 100]


def test_suspects_are_in_pixels_of_the_original_image() -> None:
    check, padded = SegmentationCheck(), [torch.zeros(1, 64, 64) for _ in range(3)]
    for tensor, values in zip(padded, maps(), strict=True):
        tensor[0, :40, :50] = torch.from_numpy(values.astype(np.float32))
    labels, predicted, of_label = padded
    batch = {"id": ["a.png"], "mask": labels.byte(), "image_sizes": [(40, 50)], "original_size": [(80, 100)]}
    check.update({"predicted": predicted.byte(), "of_label": of_label}, batch)
    found = SegmentationCheck.find([check], CLASSES).suspects
    assert [(s.id, s.label, s.predicted, s.place) for s in found] == [
        ("a.png", "road", "car", (10, 10, 40, 30)),
        ("a.png", "grass", "car", (60, 50, 100, 70)),
    ]
    assert found[0].reason == "in 150 connected pixels car is predicted; the mean probability of road is 0.05"


def test_probabilities_that_are_not_finite_are_an_error() -> None:
    labels, predicted, of_label = (torch.from_numpy(values)[None] for values in maps())
    of_label[0, 3, 3] = torch.nan
    with pytest.raises(DataMismatch, match=r"a\.png has a predicted probability that is not finite"):
        SegmentationCheck().update({"predicted": predicted, "of_label": of_label}, {"id": ["a.png"], "mask": labels})
