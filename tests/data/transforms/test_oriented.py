"""Oriented boxes under transforms: the transformed box is the box of the transformed corners."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision import tv_tensors

from opabinia.contracts import Sample
from opabinia.contracts.rotated_boxes import box_corners
from opabinia.data.collate import collate
from opabinia.data.transforms.combine import CopyPaste, MixupBoxes, Mosaic
from opabinia.data.transforms.crops import RandomCrop, fixed_size_crop
from opabinia.data.transforms.instances import (
    RandomHorizontalFlip,
    RandomVerticalFlip,
    SanitizeBoundingBoxes,
    visible_shares,
)
from opabinia.data.transforms.sizes import ResizeScale, ResizeShortestEdge
from opabinia.runtime.seeds import seed_sample
from tests.data.transforms.test_instances import POLICIES, registered
from tests.data.transforms.test_transforms import REGISTERED, SETTINGS

HEIGHT, WIDTH = 80, 120
Floats = NDArray[np.float64]
Rows = Sequence[Sequence[float]]

BOXES: Rows = [[60, 40, 40, 20, 30], [20, 20, 16, 8, -75], [100, 60, 30, 30, 10], [4, 76, 30, 6, 45]]


def sample(boxes: Rows = BOXES) -> Sample:
    size = (HEIGHT, WIDTH)
    rows = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 5)
    return {
        "image": tv_tensors.Image(torch.zeros(1, *size, dtype=torch.uint8)),
        "boxes": tv_tensors.BoundingBoxes(rows, format="CXCYWHR", canvas_size=size, clamping_mode=None),
        "labels": torch.arange(len(boxes)),
        "id": "one",
        "original_size": size,
    }


def corners(boxes: Tensor | Rows) -> Floats:
    return box_corners(torch.as_tensor(boxes, dtype=torch.float64).reshape(-1, 5)).numpy()


POINTS = corners(BOXES)


def difference(left: Floats, right: Floats) -> float:
    """Return the largest distance between corners of rectangles, for any first corner and either direction."""
    orders = [np.roll(order, shift) for shift in range(4) for order in ([0, 1, 2, 3], [3, 2, 1, 0])]
    return max(min(float(np.abs(a[order] - b).max()) for order in orders) for a, b in zip(left, right, strict=True))


def assert_moved(result: Sample, moved: Floats) -> None:
    """Check that the result has exactly the objects whose moved center is in its image, with their moved corners."""
    height, width = result["image"].shape[-2:]
    centers = moved.mean(1)
    visible = [i for i, (x, y) in enumerate(centers) if 0 <= x <= width and 0 <= y <= height]
    assert result["labels"].tolist() == visible
    assert result["boxes"].format == tv_tensors.BoundingBoxFormat.CXCYWHR
    assert result["boxes"].canvas_size == (height, width) and result["boxes"].clamping_mode is None
    assert not visible or difference(corners(result["boxes"]), moved[visible]) < 0.01


def test_boxes_follow_their_corners() -> None:
    assert_moved(RandomHorizontalFlip(p=1)(sample()), [WIDTH, 0] + POINTS * [-1, 1])
    assert_moved(RandomVerticalFlip(p=1)(sample()), [0, HEIGHT] + POINTS * [1, -1])
    assert_moved(ResizeShortestEdge(short_edge_length=40)(sample()), POINTS / 2)
    assert_moved(ResizeScale(size=(160, 240), scale=(1, 1))(sample()), POINTS * 2)
    assert_moved(fixed_size_crop(sample(), size=(100, 200)), POINTS)
    for seed in range(4):
        seed_sample(seed)
        result = RandomCrop(kind="absolute", size=(50, 70), object_probability=0.5)(sample())
        first = int(result["labels"][0])  # all objects are shifted like the first one
        shift = result["boxes"][0, :2].numpy() - np.array(BOXES[first][:2])
        assert_moved(result, POINTS + shift)


def test_boxes_rotate_with_the_image() -> None:
    """RandomRotation counterclockwise around the center of the image, RandomAffine clockwise."""
    center = np.array([WIDTH, HEIGHT]) / 2
    for degrees in (30, 80, -135):
        angle = math.radians(degrees)
        matrix = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        rotation = registered("RandomRotation", degrees=[degrees, degrees])
        assert_moved(rotation(sample()), (POINTS - center) @ matrix + center)
        affine = registered("RandomAffine", degrees=[degrees, degrees], scale=[0.5, 0.5])
        assert_moved(affine(sample()), (POINTS - center) / 2 @ matrix.T + center)


@pytest.mark.filterwarnings("ignore:The image decoding and encoding", "ignore:RandomErasing")
def test_every_transform_accepts_or_refuses_oriented_boxes() -> None:
    for name in sorted({*REGISTERED} - POLICIES):
        transform = registered(name, **SETTINGS.get(name, {}))
        for boxes in (BOXES, []):
            seed_sample(3)
            try:
                after = transform(sample(boxes))
            except ValueError as error:
                assert (name, "takes upright boxes" in str(error)) == ("RandomIoUCrop", True)
                continue
            result, (height, width) = after["boxes"], after["image"].shape[-2:]
            assert len(result) == len(after["labels"]) <= len(boxes) and result.shape[1] == 5, name
            centers = result.as_subclass(Tensor)[:, :2]
            assert ((centers >= 0) & (centers <= torch.tensor([width, height]))).all(), name
            assert not len(result) or result.canvas_size == (height, width), name


def test_unequal_scales_give_a_box_around_the_object() -> None:
    result = registered("Resize", size=[HEIGHT, 2 * WIDTH])(sample())["boxes"].as_subclass(Tensor).numpy()
    for box, points, rectangle in zip(result, POINTS * [2, 1], corners(result), strict=True):
        axes = np.stack([rectangle[1] - rectangle[0], rectangle[3] - rectangle[0]]) / box[2:4, None]
        assert (np.abs((points - box[:2]) @ axes.T) <= box[2:4] / 2 + 0.01).all()


def test_small_and_hidden_objects_are_dropped() -> None:
    assert SanitizeBoundingBoxes(min_size=7)(sample())["labels"].tolist() == [0, 1, 2]
    assert SanitizeBoundingBoxes(min_area=200)(sample([*BOXES, [-1, 5, 40, 40, 0]]))["labels"].tolist() == [0, 2]
    crop = RandomCrop(kind="relative", size=(1, 1), min_visible=0.8)
    assert crop(sample())["labels"].tolist() == [0, 1, 2, 3], "relative to the previously visible area"
    boxes = torch.tensor([[0.0, 10, 20, 8, 90], [5, 10, 20, 8, 0], [50, 50, 10, 10, 45]])
    shares = visible_shares(boxes, (0, 0, 45, 100))
    assert torch.allclose(shares, torch.tensor([0.5, 0.75, 0]), atol=1e-4), "0: its center is outside"
    with_empty_box = sample([[10, 10, 0, 5, 20], [20, 20, 5, 5, 20]])
    assert collate([with_empty_box], size_multiple=8)["labels"][0].tolist() == [1]


def test_boxes_of_combined_images() -> None:
    for seed in range(5):
        seed_sample(seed)
        mosaic = Mosaic(size=96, min_side=0, min_area=0).combine(sample(), sample)
        assert mosaic["boxes"].shape[1] == 5 and mosaic["boxes"].canvas_size == (96, 96) and len(mosaic["labels"])
        for box, label in zip(mosaic["boxes"].as_subclass(Tensor), mosaic["labels"].tolist(), strict=True):
            scale = box[2] / BOXES[label][2]
            assert torch.allclose(box[3] / BOXES[label][3], scale, rtol=0.03)
            assert (
                abs((float(box[4]) - BOXES[label][4] + 45) % 90 - 45) < 1 and 0 <= box[:2].min() <= box[:2].max() <= 96
            )
    seed_sample(0)
    mixed = MixupBoxes().combine(sample(), lambda: sample(BOXES[:2]))
    assert mixed["labels"].tolist() == [0, 1, 2, 3, 0, 1] and torch.allclose(mixed["boxes"][4:], sample()["boxes"][:2])
    with pytest.raises(ValueError, match="CopyPaste needs masks of the objects"):
        CopyPaste().combine(sample(), sample)
