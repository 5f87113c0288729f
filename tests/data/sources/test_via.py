"""Files of VIA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opabinia.data.sources import via
from tests.data.layouts.folders import Maker, images

POLYGON = {"name": "polygon", "all_points_x": [1, 5, 5, 1], "all_points_y": [1, 1, 4, 4]}


def write(root: Path, *regions: tuple[dict[str, Any], dict[str, Any]], numbered: bool = False) -> Path:
    """Write a file with these shapes and attributes in its first image, and none in the second."""
    images("{1..2}.jpg")(Maker(root))
    entries: list[Any] = [{"shape_attributes": shape, "region_attributes": attributes} for shape, attributes in regions]
    first: Any = {str(number): entry for number, entry in enumerate(entries)} if numbered else entries
    content = {"a": {"filename": "1.jpg", "regions": first}, "b": {"filename": "2.jpg", "regions": []}}
    (root / "via.json").write_text(json.dumps(content))
    return root / "via.json"


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ({"name": "rect", "x": 1, "y": 2, "width": 3, "height": 4}, [1, 2, 3, 4]),
        (POLYGON, [1, 1, 4, 3]),
        ({**POLYGON, "name": "polyline"}, [1, 1, 4, 3]),
        ({"name": "circle", "cx": 4, "cy": 4, "r": 2}, [2, 2, 4, 4]),
        ({"name": "ellipse", "cx": 4, "cy": 4, "rx": 2, "ry": 1}, [2, 3, 4, 2]),
        ({"name": "ellipse", "cx": 4, "cy": 4, "rx": 2, "ry": 1, "theta": 1.5707963}, [3, 2, 2, 4]),
    ],
)
@pytest.mark.parametrize("numbered", [False, True])
def test_shapes(shape: dict[str, Any], box: list[float], numbered: bool, tmp_path: Path) -> None:
    source = via(file=write(tmp_path, (shape, {"class": "cat"}), numbered=numbered), attribute="class", masks=True)
    assert source.classes == ("cat",) and [source.id(index) for index in range(2)] == ["1.jpg", "2.jpg"]
    assert np.allclose(source.ground_truth(0).boxes, [box], atol=0.01)
    assert source[0]["masks"].sum() > 4 and len(source.ground_truth(1).boxes) == 0


@pytest.mark.parametrize(
    ("attributes", "given", "expected"),
    [
        ([{"k": "a"}, {"k": "b"}], {"attribute": "k"}, ["a", "b"]),
        ([{"k": "a"}, {"k": "b"}], {"attribute": "k", "classes": ["b"]}, ["b"]),
        ([{"k": {"a": True}}, {"k": {"b": True, "c": False}}], {"attribute": "k"}, ["a", "b"]),
        ([{}, {"k": "b"}], {}, ["object", "object"]),
        ([{}, {"k": "b"}], {"attribute": "k", "broken": "drop"}, ["b"]),
    ],
)
def test_classes(attributes: list[dict[str, Any]], given: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    source = via(file=write(tmp_path, *((POLYGON, one) for one in attributes)), **given)
    assert [source.classes[label] for label in source.ground_truth(0).labels.tolist()] == expected


@pytest.mark.parametrize(
    ("shape", "attributes", "message"),
    [
        ({"name": "point", "cx": 1, "cy": 1}, {"class": "a"}, r"region 1.*'point' without area"),
        ({"name": "polygon", "all_points_x": [1, 2]}, {"class": "a"}, r"region 1.*without three points"),
        (POLYGON, {"class": ""}, r"unknown class.*region 1"),
        (POLYGON, {"class": {"a": True, "b": True}}, r"unknown class.*region 1"),
        ([1], {}, "is not a file of VIA"),
    ],
)
def test_errors(shape: Any, attributes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        via(file=write(tmp_path, (shape, attributes)), attribute="class")


@pytest.mark.parametrize(
    "content", ["[1]", "3", '{"a": {"regions": []}}', "{", '{"a": {"filename": "1.jpg", "regions": 3}}']
)
def test_other_files(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=r"a.json"):
        via(file=tmp_path / "a.json")


def test_csv(tmp_path: Path) -> None:
    images("{1..2}.jpg")(Maker(tmp_path))
    shape = json.dumps({"name": "rect", "x": 1, "y": 2, "width": 3, "height": 4}).replace('"', '""')
    (tmp_path / "a.csv").write_text(
        "#filename,region_shape_attributes,region_attributes\n"
        f'1.jpg,"{shape}","{{""k"": ""cat""}}"\n2.jpg,{{}},{{}}\n1.jpg,"{shape}","{{""k"": ""dog""}}"\n'
    )
    source = via(file=tmp_path / "a.csv", attribute="k")
    assert len(source) == 2 and source.classes == ("cat", "dog")
    assert source.ground_truth(0).boxes.tolist() == [[1, 2, 3, 4]] * 2
