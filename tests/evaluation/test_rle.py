"""Masks of detections as run lengths, with detectron2's rounding of pixels."""

import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask
from torch.nn import functional

from opabinia.evaluation.detection.rle import paste_masks

SIZE = (60, 90)

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools


def pixels(runs: str, size: tuple[int, int] = SIZE) -> np.ndarray:
    mask: np.ndarray = coco_mask.decode({"size": list(size), "counts": runs}).astype(bool)
    return mask


def sampled(mask: torch.Tensor, box: torch.Tensor, size: tuple[int, int]) -> np.ndarray:
    """Return the values at all pixel centres, interpolated by torch."""
    left, top, right, bottom = box
    down = (torch.arange(size[0]) + 0.5 - top) / (bottom - top) * 2 - 1
    across = (torch.arange(size[1]) + 0.5 - left) / (right - left) * 2 - 1
    grid = torch.stack([across.expand(size[0], -1), down[:, None].expand(-1, size[1])], 2)
    values = functional.grid_sample(mask[None, None], grid[None], align_corners=False)
    return values[0, 0].numpy()


@pytest.mark.parametrize("seed", range(4))
def test_masks_are_pasted_as_by_torch(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks = functional.avg_pool2d(torch.rand(30, 14, 14, generator=generator), 3, 1, 1) * 1.2
    corners = torch.rand(30, 2, generator=generator) * torch.tensor([80.0, 50.0])
    boxes = torch.cat([corners, corners + torch.rand(30, 2, generator=generator) * 60 + 0.5], 1)
    boxes[0] = torch.tensor([0.0, 0, 90, 60])
    boxes[1] = torch.tensor([-20.0, -20, 110, 80])
    boxes[2] = torch.tensor([10.0, 0, 12, 60])  # full columns: one run continues into the next column
    masks[2] = 2.0
    for mask, box, runs in zip(masks, boxes, paste_masks(masks.numpy(), boxes.numpy(), SIZE), strict=True):
        values = sampled(mask, box, SIZE)
        clear = np.abs(values - 0.5) > 1e-5
        assert np.array_equal(pixels(runs)[clear], (values >= 0.5)[clear])
        assert clear.mean() > 0.99
        encoded = coco_mask.encode(np.asfortranarray(pixels(runs).astype(np.uint8)))["counts"].decode()
        assert runs == encoded, "run lengths are those that pycocotools would write"


@pytest.mark.parametrize(
    "box", [[5, 5, 5, 9], [5, 9, 9, 5], [200, 200, 220, 220], [float("nan"), 0, 9, 9], [0, 0, float("inf"), 9]]
)
def test_boxes_without_pixels_give_empty_masks(box: list[float]) -> None:
    assert not pixels(paste_masks(np.ones((1, 7, 7), np.float32), np.array([box], np.float32), SIZE)[0]).any()


def test_no_masks_give_an_empty_list() -> None:
    assert paste_masks(np.zeros((0, 7, 7), np.float32), np.zeros((0, 4), np.float32), SIZE) == []
