"""Layers with rows for classes take those of another model by class name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from opabinia.contracts import ClassRows, DatasetInfo, Detector
from opabinia.models import decoders
from opabinia.models.backbones.timm import timm
from opabinia.models.weights.class_rows import ClassNames, rows_by_name
from opabinia.models.weights.init import load_matching
from opabinia.tasks.attributes import Attributes
from opabinia.tasks.classification import Classification
from tests.models.test_detectors import DETECTORS, INFO, LEVELS, SHAPE, SIZES, every_detector, needs_library

OLD, NEW, SWAPPED = ("cat", "dog"), ("dog", "bird", "cat"), ("dog", "cat")


class Layer(nn.Module):
    def __init__(self, rows: ClassRows) -> None:
        super().__init__()
        self.class_layers = {"out": rows}


def fill(rows: ClassRows, target: list[int], source: list[int], classes: ClassNames) -> list[float] | None:
    tensors = {"out.bias": torch.tensor(target).float()}
    filled = rows_by_name(Layer(rows), tensors, {"out.bias": torch.tensor(source).float()}, classes)
    return filled["out.bias"].tolist() if filled else None


def test_rows_of_known_classes_are_taken_and_others_stay() -> None:
    names = ClassNames(NEW, OLD)
    assert fill(ClassRows(), [-1, -2, -3], [1, 2], names) == [2, -2, 1]
    assert fill(ClassRows(others=1), [-1, -2, -3, -4], [1, 2, 9], names) == [2, -2, 1, 9]
    assert fill(ClassRows(groups=2), [-1, -2, -3, -4, -5, -6], [1, 2, 3, 4], names) == [2, -2, 1, 4, -5, 3]
    assert fill(ClassRows(width=2), [-1, -2, -3, -4, -5, -6], [1, 2, 3, 4], names) == [3, 4, -3, -4, 1, 2]
    assert fill(ClassRows(), [-1], [1, 2], ClassNames(("dog",), OLD)) == [2]


def test_layers_with_rows_for_something_else_are_omitted() -> None:
    assert fill(ClassRows(), [-1, -2, -3, -4], [1, 2], ClassNames(NEW, OLD)) is None
    assert fill(ClassRows(), [-1, -2, -3], [1, 2, 3], ClassNames(NEW, OLD)) is None
    assert fill(ClassRows(others=1), [-1, -2, -3], [1, 2, 3], ClassNames(NEW, OLD)) is None


def make_detector(name: str, classes: tuple[str, ...], seed: int) -> Detector:
    torch.manual_seed(seed)
    detector = DETECTORS[name](LEVELS, replace(INFO, classes=classes, oriented=name == "rotated_fcos"))
    for parameter in detector.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.1)
    return detector.eval()


@torch.no_grad()
@every_detector("rpn")  # its boxes have no class
def test_detections_follow_the_class_names(name: str) -> None:
    old, swapped = make_detector(name, OLD, 0), make_detector(name, SWAPPED, 1)
    load_matching(swapped, old.state_dict(), classes=ClassNames(SWAPPED, OLD))
    maps = [torch.randn(2, level.channels, SHAPE[0] // level.stride, SHAPE[1] // level.stride) for level in LEVELS]
    for theirs, ours in zip(
        *(model.detect(model.pyramid(maps), SHAPE, SIZES) for model in (old, swapped)), strict=True
    ):
        assert len(theirs.labels)
        for label in (0, 1):
            torch.testing.assert_close(ours.scores[ours.labels == 1 - label], theirs.scores[theirs.labels == label])


@every_detector("rpn")
def test_a_detector_of_more_classes_takes_every_tensor(name: str) -> None:
    old, new = make_detector(name, OLD, 0), make_detector(name, NEW, 1)
    check_filled(new, old)


def check_filled(new: nn.Module, old: nn.Module) -> None:
    report = load_matching(new, old.state_dict(), classes=ClassNames(NEW, OLD))
    assert not (report.other_shape or report.missing or report.unexpected)
    assert "head: 2 of 3 classes by name from the 2 of the run; new: bird" in str(report)
    assert not report.complete


@pytest.mark.parametrize("model", ["test_resnet", "test_vit", "test_convnext", "test_byobnet"])
def test_classifiers_of_timm_take_every_tensor(model: str) -> None:
    old, new = (
        Classification(DatasetInfo(samples=1, classes=classes), backbone=partial(timm, model=model))
        for classes in (OLD, NEW)
    )
    check_filled(new, old)


def test_attributes_take_every_tensor() -> None:
    old, new = (
        Attributes(
            DatasetInfo(samples=1, classes=classes, multi_label=True),
            backbone=partial(timm, model="test_resnet"),
            weighted=False,
        )
        for classes in (OLD, NEW)
    )
    check_filled(new, old)


@pytest.mark.parametrize(
    "name",
    [
        "DeepLabV3Plus",
        "Fcn",
        "Linear",
        "SegFormer",
        "SemanticFpn",
        "UPerNet",
        pytest.param("Mask2Former", marks=needs_library),
    ],
)
def test_decoders_take_every_tensor(name: str) -> None:
    old, new = (getattr(decoders, name)(LEVELS, len(classes)) for classes in (OLD, NEW))
    check_filled(new, old)
