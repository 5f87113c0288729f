"""A mask file for each object."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.data.sources import mask_files
from tests.data.layouts.folders import Maker, images, maps


def write_mask(file: Path, left: int, top: int, right: int, bottom: int, *, value: int = 255, size: int = 8) -> None:
    """Write a mask with a rectangle in it."""
    pixels = np.zeros((size, size), np.uint8)
    pixels[top:bottom, left:right] = value
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def objects(root: Path, **given: Any) -> dict[str, list[tuple[str, list[float]]]]:
    """Return class, left, top, width and height of the objects of each image; all masks are rectangles."""
    source = mask_files(root=root, masks=True, **given)
    found = {}
    for index in range(len(source)):
        sample = source[index]
        truth = sample["ground_truth"]
        assert sample["masks"].sum((1, 2)).tolist() == truth.areas.tolist() == truth.boxes[:, 2:].prod(1).tolist()
        for mask, (left, top, width, height) in zip(sample["masks"], truth.boxes.astype(int).tolist(), strict=True):
            assert mask[top : top + height, left : left + width].all()
        pairs = zip(truth.labels.tolist(), truth.boxes.tolist(), strict=True)
        found[source.id(index)] = [(source.classes[label], box) for label, box in pairs]
    return found


def test_names_of_masks_begin_with_that_of_their_image(tmp_path: Path) -> None:
    images("a/{1,1_2,3}.jpg")(Maker(tmp_path))
    for name, box in {"1_cat_0": (1, 2, 4, 6), "1_2_sea lion_1": (0, 0, 8, 8), "1_2_cat_0": (7, 7, 8, 8)}.items():
        write_mask(tmp_path / "b" / f"{name}.png", *box, value=1)
    expected = {
        "a/1.jpg": [("cat", [1, 2, 3, 4])],
        "a/1_2.jpg": [("cat", [7, 7, 1, 1]), ("sea lion", [0, 0, 8, 8])],
        "a/3.jpg": [],
    }
    assert objects(tmp_path, images="a", annotations="b") == expected
    assert objects(tmp_path, images="a", annotations="b", classes=["sea lion"], empty="drop") == {
        "a/1_2.jpg": [("sea lion", [0, 0, 8, 8])]
    }


def test_images_in_the_root_with_masks_below_it(tmp_path: Path) -> None:
    images("x/{1..2}.jpg")(Maker(tmp_path))
    write_mask(tmp_path / "masks" / "x" / "1" / "0.png", 0, 0, 2, 2)
    expected = {"x/1.jpg": [("object", [0, 0, 2, 2])], "x/2.jpg": []}
    assert objects(tmp_path, images="") == expected


def test_masks_in_the_folder_next_to_their_image(tmp_path: Path) -> None:
    images("{a,b,c}/images/1.png")(Maker(tmp_path))
    for name, box in {
        "a/masks/x.png": (0, 0, 2, 3),
        "a/masks/y.png": (4, 4, 8, 8),
        "b/masks/x.png": (1, 1, 2, 2),
    }.items():
        write_mask(tmp_path / name, *box)
    expected = {
        "a/images/1.png": [("object", [0, 0, 2, 3]), ("object", [4, 4, 4, 4])],
        "b/images/1.png": [("object", [1, 1, 1, 1])],
        "c/images/1.png": [],
    }
    assert objects(tmp_path, pairing="folder") == expected
    assert objects(tmp_path, pairing="folder", classes=["nucleus"])["b/images/1.png"] == [("nucleus", [1, 1, 1, 1])]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("9_cat_0.png", "1 mask without an image (masks/9_cat_0.png: its name begins with that of no image in images)"),
        ("1_empty_0.png", "no pixel differs from 0"),
        ("1_map_0.png", "2 values other than 0; a mask has one"),
        ("1_large_0.png", "9 x 9 pixels, the image 8 x 8"),
        ("1_gone_0.png", "No such file"),
        ("1_text_0.png", "1_text_0.png"),
    ],
)
def test_broken_masks(name: str, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images("images/1.jpg")(Maker(tmp_path))
    write_mask(tmp_path / "masks" / "1_cat_0.png", 1, 1, 3, 3)
    file = tmp_path / "masks" / name
    makers = {
        "9_cat_0.png": lambda: write_mask(file, 1, 1, 2, 2),
        "1_empty_0.png": lambda: write_mask(file, 0, 0, 0, 0),
        "1_map_0.png": lambda: maps(f"masks/{name}")(Maker(tmp_path)),
        "1_large_0.png": lambda: write_mask(file, 1, 1, 2, 2, size=9),
        "1_gone_0.png": lambda: file.symlink_to("nowhere.png"),
        "1_text_0.png": lambda: file.write_text("text"),
    }
    makers[name]()
    with pytest.raises(ValueError, match="broken: drop drops them"):
        mask_files(root=tmp_path)
    assert objects(tmp_path, broken="fix") == {"images/1.jpg": [("cat", [1, 1, 2, 2])]}
    assert message in caplog.text and name in caplog.text


def test_a_mask_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    images("images/1.jpg")(Maker(tmp_path))
    file = tmp_path / "masks" / "1_cat_0.png"
    write_mask(file, 1, 1, 3, 3)
    assert objects(tmp_path) == {"images/1.jpg": [("cat", [1, 1, 2, 2])]}
    write_mask(file, 2, 2, 4, 4)
    os.utime(file, ns=(1, 1))
    assert objects(tmp_path) == {"images/1.jpg": [("cat", [2, 2, 2, 2])]}


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (["images/1.jpg"], {}, "masks cannot be searched: No such file"),
        (["images/1.jpg", "masks/a/readme.txt"], {}, "none of 1 images has a mask in masks"),
        (["masks/1_0.png"], {"images": "masks/x"}, "cannot be searched"),
        (["a/images/{1..2}.png", "a/masks/1.png"], {"pairing": "folder"}, "a/images holds 2 images"),
        (["a/1.png"], {"pairing": "folder"}, "has no images in folders called images"),
    ],
)
def test_errors(names: list[str], given: dict[str, Any], message: str, tmp_path: Path) -> None:
    images(*(name for name in names if not name.endswith(".txt")))(Maker(tmp_path))
    for name in names:
        if name.endswith(".txt"):
            Maker(tmp_path).write(name, "x")
    with pytest.raises(ValueError, match=message):
        mask_files(root=tmp_path, **given)
