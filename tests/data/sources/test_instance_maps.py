"""A map for each image, whose values number the objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from opabinia.contracts.masks import decode_rle
from opabinia.data.sources import instance_maps
from opabinia.data.sources.object_masks import find_objects


def write(file: Path, pixels: NDArray[Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def write_pair(root: Path, name: str, pixels: NDArray[Any], suffix: str = ".png") -> None:
    """Write a map, and an image of its size."""
    write(root / "images" / f"{name}.png", np.zeros((*pixels.shape[:2], 3), np.uint8))
    write(root / "labels" / f"{name}{suffix}", pixels)


def numbers(*, large: int = 2) -> NDArray[np.uint16]:
    """Return a map of 4 x 6 pixels with the objects 1, of two parts, and ``large``, up to the last pixel."""
    pixels = np.zeros((4, 6), np.uint16)
    pixels[0, 0], pixels[2, 1] = 1, 1
    pixels[1:, 3:] = large
    return pixels


def test_objects_of_gray_maps(tmp_path: Path) -> None:
    write_pair(tmp_path, "a", numbers(large=300), ".tif")
    write_pair(tmp_path, "b", np.zeros((4, 6), np.uint8), ".tif")
    source = instance_maps(root=tmp_path, label_suffix=".tif", masks=True, class_name="cell")
    sample = source[0]
    assert source.classes == ("cell",) and len(source) == 2
    assert sample["boxes"].tolist() == [[0, 0, 2, 3], [3, 1, 6, 4]]
    assert sample["masks"][0].nonzero().tolist() == [[0, 0], [2, 1]]
    assert sample["masks"].sum((1, 2)).tolist() == sample["ground_truth"].areas.tolist() == [2, 9]
    assert source[1]["boxes"].shape == (0, 4)
    assert len(instance_maps(root=tmp_path, label_suffix=".tif", empty="drop")) == 1


def test_objects_of_maps_in_color(tmp_path: Path) -> None:
    colors = np.array([(0, 0, 0), (0, 0, 9), (200, 3, 0)], np.uint8)[numbers()]
    write_pair(tmp_path, "a", colors)
    assert instance_maps(root=tmp_path)[0]["boxes"].tolist() == [[0, 0, 2, 3], [3, 1, 6, 4]]


@pytest.mark.parametrize("seed", range(5))
def test_objects_are_the_pixels_of_each_value(seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 5, (7, 9)).astype(np.uint8)
    found = find_objects(values)
    present = [number for number in range(1, 5) if (values == number).any()]
    assert len(found) == len(present)
    for number, mask in zip(present, found, strict=True):
        assert (decode_rle({"size": [7, 9], "counts": mask.counts}, (7, 9)) == (values == number)).all()
        left, top, width, height = mask.box
        inside = values[top : top + height, left : left + width] == number
        assert inside.sum() == mask.area == (values == number).sum()
        assert inside.any(0)[[0, -1]].all() and inside.any(1)[[0, -1]].all()


def test_maps_with_very_many_values() -> None:
    values = np.arange(101 * 101, dtype=np.uint16).reshape(101, 101)
    with pytest.raises(ValueError, match="10200 values other than 0; a file has at most 10000 objects"):
        find_objects(values)


def test_broken_maps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "missing", "large", "text", "image"):
        write_pair(tmp_path, name, numbers())
    (tmp_path / "labels/missing.png").unlink()
    write(tmp_path / "labels/large.png", np.ones((5, 6), np.uint8))
    (tmp_path / "labels/text.png").write_text("x")
    (tmp_path / "images/image.png").write_text("x")
    with pytest.raises(ValueError, match="broken: drop drops them"):
        instance_maps(root=tmp_path)
    source = instance_maps(root=tmp_path, broken="drop")
    assert [source.id(index) for index in range(len(source))] == ["images/a.png"]
    for text in ("labels/missing.png: ", "No such file", "6 x 5 pixels, the image 6 x 4", "text.png", "image.png"):
        assert text in caplog.text


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        instance_maps(root=tmp_path)
    (tmp_path / "images").mkdir()
    with pytest.raises(ValueError, match="has no image"):
        instance_maps(root=tmp_path)
