"""Text files with the boxes of an image: KITTI and VisDrone."""

from __future__ import annotations

from pathlib import Path

import pytest

from opabinia.contracts import Source
from opabinia.data.sources import kitti, visdrone
from tests.data.layouts.folders import Maker, images

REST = "1.5 1.6 3.7 1.8 1.5 8.4 0.01"


def write(root: Path, folder: str, *lines: str) -> None:
    """Write the lines for the first image; the second has no text file."""
    Maker(root).write(f"{folder}/1.txt", "\n".join(lines))


def found(source: Source) -> list[tuple[str, list[float]]]:
    """Return class and box of the objects of the only image."""
    assert len(source) == 1
    truth = source[0]["ground_truth"]
    return [
        (source.classes[label], box) for label, box in zip(truth.labels.tolist(), truth.boxes.tolist(), strict=True)
    ]


def test_kitti(tmp_path: Path) -> None:
    images("image_2/{1..2}.png")(Maker(tmp_path))
    lines = [
        f"Van 0.0 0 -1.5 1 2 4.5 6 {REST}",
        f"DontCare -1 -1 -10 0 0 8 8 {REST}",
        "",
        f"Car 0 1 0 0 0 8 8 {REST} 0.9",
    ]
    write(tmp_path, "label_2", *lines)
    source = kitti(root=tmp_path)
    assert found(source) == [("Van", [1, 2, 3.5, 4]), ("Car", [0, 0, 8, 8])] and source.classes == ("Car", "Van")
    assert found(kitti(root=tmp_path, classes=["Van"])) == [("Van", [1, 2, 3.5, 4])]


def test_visdrone(tmp_path: Path) -> None:
    images("images/{1..2}.jpg")(Maker(tmp_path))
    write(
        tmp_path,
        "annotations",
        "1,2,3,4,1,4,0,0",
        "0,0,8,8,0,1,0,0",
        "0,0,8,8,1,0,0,0",
        "0,0,8,8,1,11,0,0",
        "2,2,2,2,1,1,0,1,",
    )
    assert found(visdrone(root=tmp_path)) == [("car", [1, 2, 3, 4]), ("pedestrian", [2, 2, 2, 2])]
    assert found(visdrone(root=tmp_path, names=["a"])) == [("a", [2, 2, 2, 2])]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Car 0 1 2", "line 1.*has 4 fields, expected 15"),
        (f"Car 0 1 0 0 0 8 x {REST}", "line 1.*'x' is not a number"),
        (f"Car 0 1 0 0 0 8 80 {REST}", "1 box that extends beyond the image"),
    ],
)
def test_errors_of_kitti(line: str, message: str, tmp_path: Path) -> None:
    images("image_2/{1..2}.png")(Maker(tmp_path))
    write(tmp_path, "label_2", line)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        kitti(root=tmp_path)


@pytest.mark.parametrize(
    ("line", "message"), [("1,2", "has 2 fields, expected 8"), ("1,2,3,4,1,x,0,0", "'x' is not an integer")]
)
def test_errors_of_visdrone(line: str, message: str, tmp_path: Path) -> None:
    images("images/{1..2}.jpg")(Maker(tmp_path))
    write(tmp_path, "annotations", line)
    with pytest.raises(ValueError, match=message):
        visdrone(root=tmp_path)


def test_no_text_file(tmp_path: Path) -> None:
    images("images/{1..2}.jpg", "annotations/1.jpg")(Maker(tmp_path))
    with pytest.raises(ValueError, match="has no image with a text file of its name"):
        visdrone(root=tmp_path)
