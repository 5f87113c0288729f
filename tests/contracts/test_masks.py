"""Outlines as run lengths and as pixels: pycocotools' numbers."""

from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from opabinia.contracts.masks import compress_rle, decode_rle, encode_rle
from opabinia.visualization.outlines import mask_outlines

SIZE = (60, 90)

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools

SEGMENTS = {
    "polygon": [[10.2, 10.1, 60.5, 12.3, 40.1, 50.9]],
    "polygons that meet": [[1, 2, 30, 2, 30, 40], [5, 20, 40, 20, 40, 59, 5, 59]],
    "polygon beyond the image": [[-10, -5, 120, 30, 50, 80]],
    "less than a pixel": [[10.1, 10.1, 10.2, 10.1, 10.2, 10.2]],
    "counts": {"size": [60, 90], "counts": [100, 50, 5250]},
    "compressed": {
        "size": [60, 90],
        "counts": coco_mask.encode(np.asfortranarray(np.eye(60, 90, dtype=np.uint8)))["counts"],
    },
}


@pytest.mark.parametrize("segment", SEGMENTS.values(), ids=SEGMENTS)
def test_segments_are_those_of_pycocotools(segment: Any) -> None:
    coco = COCO()
    coco.imgs = {1: {"height": SIZE[0], "width": SIZE[1]}}
    annotation = {"image_id": 1, "segmentation": segment}
    expected = coco.annToRLE(annotation)["counts"]
    assert compress_rle(segment, SIZE) == (expected if isinstance(expected, str) else expected.decode())
    assert np.array_equal(decode_rle(segment, SIZE), coco.annToMask(annotation))


@pytest.mark.parametrize("first", [False, True])
def test_run_lengths_are_those_of_pycocotools(first: bool) -> None:
    mask = np.random.default_rng(3).random((11, 7)) > 0.5
    mask[0, 0] = first
    packed = coco_mask.frPyObjects(encode_rle(mask), 11, 7)
    assert np.array_equal(coco_mask.decode(packed), mask)
    assert encode_rle(mask)["counts"][0] == 0 or not first


@pytest.mark.parametrize(
    "segment",
    [{"size": [60, 90], "counts": [-3, 9]}, {"size": [60, 90], "counts": [3]}, {"size": [60, 90], "counts": "zzz"}],
    ids=["negative", "too few", "cut off"],
)
def test_invalid_run_lengths_are_reported(segment: Any) -> None:
    with pytest.raises(ValueError):
        decode_rle(segment, SIZE)


@pytest.mark.parametrize("seed", range(6))
def test_outlines_surround_exactly_the_pixels(seed: int) -> None:
    """Of masks without holes; parts that touch at corners and the borders of the image are included."""
    generator = np.random.default_rng(seed)
    mask = (generator.random((9, 12)) < 0.3 + 0.05 * seed).astype(np.uint8)
    filled = decode_rle(mask_outlines(mask), mask.shape)
    assert (filled >= mask).all(), "no pixel is lost"
    again = decode_rle(mask_outlines(filled), mask.shape)
    assert np.array_equal(again, filled), "without holes nothing changes"


def test_outlines_of_corners_and_holes() -> None:
    assert mask_outlines(np.array([[0, 1], [0, 1]], np.uint8)) == [[1, 0, 2, 0, 2, 2, 1, 2]]
    crossing = [[1, 0], [0, 1]]
    assert mask_outlines(np.array(crossing, np.uint8)) == [[0, 0, 1, 0, 1, 1, 0, 1], [1, 1, 2, 1, 2, 2, 1, 2]]
    assert mask_outlines(np.array(crossing, np.uint8)[:, ::-1]) == [[1, 0, 2, 0, 2, 1, 1, 1], [0, 1, 1, 1, 1, 2, 0, 2]]
    ring = np.ones((3, 3), np.uint8)
    ring[1, 1] = 0
    assert mask_outlines(ring) == [[0, 0, 3, 0, 3, 3, 0, 3]]
    assert mask_outlines(np.zeros((2, 2), np.uint8)) == []
