"""Lists of bounding boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opabinia.data.sources import box_list
from tests.data.layouts.folders import Maker, images

CORNERS = "path,label,xmin,ymin,xmax,ymax\n"
EXPECTED = {"1.jpg": [("b", [1, 2, 3, 4]), ("a", [0, 0, 8, 8])], "2.jpg": []}
"""Class, left, top, width and height of the objects of each image."""


def objects(
    root: Path, content: str, name: str = "boxes.csv", **given: Any
) -> dict[str, list[tuple[str, list[float]]]]:
    """Return the objects of each image of a list."""
    images("{1..2}.jpg", "sub/{1..2}.jpg")(Maker(root))
    (root / name).write_text(content)
    source = box_list(file=root / name, **given)
    found = {}
    for index in range(len(source)):
        truth = source.ground_truth(index)
        pairs = zip(truth.labels.tolist(), truth.boxes.tolist(), strict=True)
        found[source.id(index)] = [(source.classes[label], box) for label, box in pairs]
    return found


@pytest.mark.parametrize(
    ("content", "given"),
    [
        (f"{CORNERS}1.jpg,b,1,2,4,6\n2.jpg,,,,,\n1.jpg,a,0,0,8,8\n", {}),
        (
            "1.jpg;1;2;4;6;b\n1.jpg;0;0;8;8;a\n2.jpg;;;;;\n",
            {"header": ["path", "xmin", "ymin", "xmax", "ymax", "label"], "separator": ";"},
        ),
        (
            "f,w,x,y,h,kind\n1,3,1,2,4,b\n1,8,0,0,8,a\n2,,,,,\n",
            {"path": "f", "suffix": ".jpg", "box": ["x", "y", "w", "h"], "format": "corner_size", "label": "kind"},
        ),
        (
            "path,label,x,y,w,h\n1.jpg,b,0.3125,0.5,0.375,0.5\n1.jpg,a,0.5,0.5,1,1\n2.jpg,a,,,,\n",
            {"box": ["x", "y", "w", "h"], "format": "center_size", "relative": True},
        ),
        (
            'path,label,bbox\n/a/b/1.jpg,b,"[1, 2, 3, 4]"\n/a/b/1.jpg,a,(0 0 8 8)\n/a/b/2.jpg,a,\n',
            {"box": ["bbox"], "format": "corner_size", "prefix": "/a/b/"},
        ),
        (
            f"set,{CORNERS}x,1.jpg,b,1,2,4,6\nx,2.jpg,a,,,,\ny,sub/1.jpg,a,1,1,2,2\nx,1.jpg,a,0,0,8,8\n",
            {"split": "x", "split_column": "set"},
        ),
    ],
    ids=["corners", "no header", "corner and size", "fractions", "one column", "split"],
)
def test_boxes(content: str, given: dict[str, Any], tmp_path: Path) -> None:
    assert objects(tmp_path, content, **given) == EXPECTED


def test_lines_of_json(tmp_path: Path) -> None:
    content = '{"path": "1.jpg", "label": "b", "box": [1, 2, 4, 6]}\n{"path": "2.jpg", "label": "b", "box": null}\n'
    assert objects(tmp_path, content, "a.jsonl", box=["box"]) == {"1.jpg": [("b", [1, 2, 3, 4])], "2.jpg": []}


def test_paths_of_windows_and_one_class(tmp_path: Path) -> None:
    content = f"{CORNERS}C:\\x\\sub\\1.jpg,b,1,2,4,6\n"
    assert objects(tmp_path, content, prefix="C:/x/", label=None) == {"sub/1.jpg": [("object", [1, 2, 3, 4])]}


def test_objects_of_other_classes_are_dropped(tmp_path: Path) -> None:
    content = f"{CORNERS}1.jpg,b,1,2,4,6\n1.jpg,a,0,0,8,8\n"
    assert objects(tmp_path, content, classes=["a"]) == {"1.jpg": [("a", [0, 0, 8, 8])]}


@pytest.mark.parametrize(
    ("content", "given", "message"),
    [
        (f"{CORNERS}1.jpg,a,1,2,4,6\n1.jpg,a,1,2,4,x\n", {}, r"(?s)1 box that is not four.*line 3.*'x'"),
        (f"{CORNERS}1.jpg,a,4,2,1,6\n", {}, "1 box without area"),
        (f"{CORNERS}1.jpg,a,1,2,40,6\n", {}, "1 box that extends beyond the image"),
        (f"{CORNERS}1.jpg,,1,2,4,6\n", {}, "line 2: label is empty"),
        (f"{CORNERS}9.jpg,a,1,2,4,6\n", {}, "none of its 1 image"),
        (CORNERS, {}, "lists no images"),
        (f"{CORNERS}1.jpg,a,1,2,4,6\n", {"box": ["xmin", "ymin"]}, "expected four columns"),
        (f"{CORNERS}1.jpg,a,1,2,4,6\n", {"label": "kind"}, "no column 'kind'"),
        (f"{CORNERS}1.jpg,a,1,2,4,6\n", {"split": "x", "split_column": "label"}, "no images of split 'x'; splits: a"),
        (f"{CORNERS}1.jpg,a,1,2,4,6\n", {"separator": ", "}, "expected one character"),
        (f"{CORNERS}1.jpg,a,1,2,4,6\n", {"classes": ["a", "a"]}, "two classes called 'a'"),
    ],
)
def test_errors(content: str, given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        objects(tmp_path, content, **given)


def test_broken_boxes_are_clipped_or_dropped(tmp_path: Path) -> None:
    content = f"{CORNERS}1.jpg,a,1,2,40,6\n2.jpg,a,1,x,4,6\n"
    clipped = objects(tmp_path, content, broken="clip")
    assert {name: len(found) for name, found in clipped.items()} == {"1.jpg": 1, "2.jpg": 0}
    assert objects(tmp_path, content, broken="drop") == {"1.jpg": [], "2.jpg": []}


def test_the_objects_of_an_image_in_one_row(tmp_path: Path) -> None:
    lists = '"objects": {"bbox": [[1, 2, 3, 4], [0, 0, 8, 8]], "category": ["b", "a"], "id": [1, 2]}'
    entries = '"objects": [{"bbox": [1, 2, 3, 4], "category": "b"}, {"bbox": [0, 0, 8, 8], "category": "a"}]'
    given: dict[str, Any] = {"objects": "objects", "box": ["bbox"], "label": "category", "format": "corner_size"}
    for number, row in enumerate((lists, entries)):
        content = f'{{"path": "1.jpg", {row}}}\n{{"path": "2.jpg", "objects": {{"bbox": [], "category": []}}}}\n'
        assert objects(tmp_path, content, f"{number}.jsonl", **given) == EXPECTED


def test_broken_boxes_and_missing_images_are_fixed(tmp_path: Path) -> None:
    content = f"{CORNERS}1.jpg,a,-4,1,4,6\n9.jpg,a,1,1,4,6\n2.jpg,b,5,5,5,6\n"
    with pytest.raises(ValueError, match="1 missing image"):
        objects(tmp_path, content, broken="clip")
    assert objects(tmp_path, content, broken="drop") == {"1.jpg": [], "2.jpg": []}
    assert objects(tmp_path, content, broken="fix") == {"1.jpg": [("a", [-4, 1, 8, 5])], "2.jpg": []}
