"""Annotations of Supervisely."""

import base64
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.data.sources import supervisely

Shape = dict[str, Any]


def polygon(kind: str, exterior: list[list[float]], *interior: list[list[float]]) -> Shape:
    return {"classTitle": "cat", "geometryType": kind, "points": {"exterior": exterior, "interior": list(interior)}}


def bitmap(pixels: list[list[int]], x: int, y: int, *, mode: str = "P") -> Shape:
    """Return a mask as Supervisely's own tools write it: a PNG with a palette, of which black is transparent."""
    image = Image.fromarray(np.array(pixels, dtype=np.uint8) * 255).convert(mode)
    file = io.BytesIO()
    image.save(file, "PNG", **({"transparency": 0} if mode == "P" else {}))
    data = base64.b64encode(zlib.compress(file.getvalue())).decode()
    return {"classTitle": "dog", "geometryType": "bitmap", "bitmap": {"data": data, "origin": [x, y]}}


def write(root: Path, shapes: list[Shape], name: str = "a.jpg") -> None:
    for folder in ("img", "ann"):
        (root / folder).mkdir(exist_ok=True, parents=True)
    Image.new("RGB", (8, 6)).save(root / "img" / f"{name.partition('.')[0]}.jpg")
    content = {"description": "", "tags": [], "size": {"height": 6, "width": 8}, "objects": shapes}
    (root / f"ann/{name}.json").write_text(json.dumps(content))


SQUARE: list[list[float]] = [[1, 1], [5, 1], [5, 5], [1, 5]]


@pytest.mark.parametrize("name", ["a.jpg", "a"])
def test_shapes(tmp_path: Path, name: str) -> None:
    hole: list[list[float]] = [[2, 2], [4, 2], [4, 4], [2, 4]]
    shapes = [polygon("polygon", SQUARE), polygon("rectangle", [[6, 3], [2, 1]]), polygon("polygon", SQUARE, hole)]
    shapes += [bitmap([[1, 0], [1, 1]], 5, 3), bitmap([[0, 1]], 0, 0, mode="L")]
    write(tmp_path, shapes, name)
    source = supervisely(root=tmp_path, masks=True)
    sample = source[0]
    assert source.classes == ("cat", "dog") and sample["id"] == "img/a.jpg"
    assert sample["labels"].tolist() == [0, 0, 0, 1, 1]
    assert sample["boxes"].tolist() == [[1, 1, 5, 5], [2, 1, 6, 3], [1, 1, 5, 5], [5, 3, 7, 5], [1, 0, 2, 1]]
    assert [int(mask.sum()) for mask in sample["masks"]] == [16, 8, 12, 3, 1]
    assert sample["masks"][3][3:5, 5:7].tolist() == [[1, 0], [1, 1]]
    dogs = supervisely(root=tmp_path, classes=["dog"])
    assert dogs[0]["boxes"].shape == (2, 4) and not dogs.info.masks


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (polygon("polyline", SQUARE), "object 1: a polyline of 4 points"),
        (polygon("polygon", [[0, 0], [1, 1]]), "object 1: a polygon of 2 points"),
        (polygon("polygon", [[0, 0], [1e300, 1], [2, 2]]), "object 1: points .* are not lists of two numbers"),
        (bitmap([[1, 1]], 7, 0), "object 1: the bitmap cannot be decoded: it is from 7, 0 to 9, 1, beyond the image"),
        (bitmap([[0, 0]], 0, 0), "object 1: a mask without pixels"),
        ({**bitmap([[1]], 0, 0), "bitmap": {"data": "AAAA", "origin": [0, 0]}}, "cannot be decompressed"),
        ({**bitmap([[1]], 0, 0), "bitmap": {"data": 3, "origin": [0, 0]}}, "without data and the two numbers"),
        ({"classTitle": ["cat"]}, "not a file of Supervisely: ValueError: .*neither text nor a number"),
        ({}, "not a file of Supervisely: KeyError"),
    ],
)
def test_broken_shapes(tmp_path: Path, shape: Shape, message: str) -> None:
    write(tmp_path, [shape])
    with pytest.raises(ValueError, match=f"ann/a.jpg.json.*{message}"):
        supervisely(root=tmp_path, masks=True)
    write(tmp_path, [polygon("polygon", SQUARE)], "b.jpg")
    assert len(supervisely(root=tmp_path, masks=True, broken="fix")) >= 1


def test_bitmap_that_grows(tmp_path: Path) -> None:
    data = base64.b64encode(zlib.compress(bytes(1 << 28))).decode()
    write(tmp_path, [{**bitmap([[1]], 0, 0), "bitmap": {"data": data, "origin": [0, 0]}}])
    with pytest.raises(ValueError, match="the bitmap cannot be decoded: it is no image"):
        supervisely(root=tmp_path)
