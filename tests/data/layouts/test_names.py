"""Names of splits, pairs of names of images and maps, classes of the values in maps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from opabinia.data.layouts.folder import UnreadableLayout, split_in, split_of
from opabinia.data.layouts.map_values import MapValues, class_options, frequent_values
from opabinia.data.layouts.maps import match_names


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *(("train", "train"), ("Validation", "val"), ("DEV", "val"), ("test2017", "test"), ("trainval", None)),
        *(("seg_train", "train"), ("TestImages", "test"), ("x/val.csv", "val"), ("my-trainset", "train")),
        *(("rain", None), ("latest", None), ("a_b", None), ("", None)),
    ],
)
def test_words_of_splits(name: str, split: str | None) -> None:
    assert split_in(name) == split
    if split_of(name):
        assert split_of(name) == split


@pytest.mark.parametrize(
    ("images", "maps", "options"),
    [
        (["a/1.jpg", "2.jpg"], ["a/1.png", "2.png"], {}),
        (["1.jpg", "2.jpg"], ["1.tif", "2.tif"], {"label_suffix": ".tif"}),
        (["1.jpg", "10.jpg"], ["1_m.png", "10_m.png"], {"label_suffix": "_m.png"}),
        (["x_rgb.png", "y_rgb.png"], ["x_id.png", "y_id.png"], {"image_suffix": "_rgb.png", "label_suffix": "_id.png"}),
        (["img1.jpg", "img2.jpg"], ["gt1.png", "gt2.png"], {"image_prefix": "img", "label_prefix": "gt"}),
        (["1.jpg", "2.jpg", "3.jpg"], ["1.png"], None),
        (["a/1.jpg"], ["b/1.png"], None),
        ([], ["1.png"], None),
    ],
)
def test_names_of_images_and_maps(images: list[str], maps: list[str], options: dict[str, str] | None) -> None:
    found = match_names(images, maps)
    if found is None or "image_prefix" not in found:
        assert found == options
    else:
        assert options is not None and found.items() >= options.items()


CLASSES = (["a", "b"], [])
IDS = {"class_0": [0], "class_1": [50], "class_2": [51]}


@pytest.mark.parametrize(
    ("gray", "names", "options"),
    [
        ({0, 1, 2}, None, {"classes": ["class_0", "class_1", "class_2"]}),
        ({0, 255}, None, {"classes": ["background", "object"], "values": {"background": [0], "object": [255]}}),
        ({0, 255}, (["cell"], []), {"classes": ["background", "cell"], "values": {"background": [0], "cell": [255]}}),
        ({0, 1, 255}, CLASSES, {"classes": ["a", "b"]}),
        ({1, 2}, CLASSES, {"classes": ["a", "b"], "reduce_zero_label": True}),
        ({0, 1, 2}, CLASSES, {"classes": ["background", "a", "b"]}),
        ({0, 100}, None, {"classes": ["class_0", "class_1"], "values": {"class_0": [0], "class_1": [100]}}),
        ({0, 255}, CLASSES, {"classes": ["a", "b"], "values": {"a": [0], "b": [255]}}),
        ({0, 128}, CLASSES, {"classes": ["a", "b"], "values": {"a": [0], "b": [128]}}),
        (
            {0, 128, 255},
            None,
            {
                "classes": ["class_0", "class_1", "class_2"],
                "values": {"class_0": [0], "class_1": [128], "class_2": [255]},
            },
        ),
        ({0, 128, 255}, CLASSES, "maps has the value 128, and names.txt has names for 0 to 1 only"),
        ({0, 50, 51, 255}, None, {"classes": [f"class_{i}" for i in range(3)], "values": IDS}),
        ({0, 3}, CLASSES, "maps has the value 3, and names.txt has names for 0 to 1 only"),
        ({*range(0, 200, 3)}, None, "maps: 1 maps have 67 different gray values; label maps have one for each class"),
    ],
)
def test_classes_of_values(gray: set[int], names: Any, options: dict[str, Any] | str) -> None:
    found = MapValues(opened=1, gray=Counter(gray))
    given = None if names is None else (names, "names.txt")
    if isinstance(options, str):
        with pytest.raises(UnreadableLayout, match=options):
            class_options("maps", found, given)
    else:
        assert class_options("maps", found, given)[0] == options


@pytest.mark.parametrize("shades", [(0, 255), (0, 128, 255)])
def test_few_pixels_of_other_shades_are_no_class(shades: tuple[int, ...]) -> None:
    found = MapValues(opened=1, gray=Counter(dict.fromkeys(shades, 100_000)) + Counter({7: 5, 45: 1, 254: 3}))
    options, notes = class_options("maps", found, None)
    assert [value for (value,) in options["values"].values()] == [*shades]
    assert options["unlisted"] == "nearest"
    assert "such as 7" in notes[1]


EDGES = {(value,): 1 for value in range(1, 255)}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({**EDGES, (0,): 5000, (255,): 4000, (3,): 50, (250,): 9}, [(0,), (255,)]),
        ({**EDGES, (0,): 5000, (254,): 5000, (128,): 400}, [(0,), (128,), (254,)]),
        ({(0,): 500, (255,): 500, (10,): 300}, None),
        ({(value,): 10 for value in range(0, 250, 3)}, None),
        ({(0,): 500, (1,): 400, (2,): 300}, None),
        ({**EDGES, (0,): 500, (255,): 400}, None),
        ({(0,): 500}, None),
        ({(0, 0, 0): 5000, (255, 0, 2): 4000, **{(v, v // 3, 0): 1 for v in range(9, 250)}}, [(0, 0, 0), (255, 0, 2)]),
    ],
    ids=["edges", "three", "near", "shades", "numbers", "many edges", "one", "colors"],
)
def test_frequent_values(counts: Mapping[tuple[int, ...], int], expected: list[tuple[int, ...]] | None) -> None:
    assert frequent_values(counts) == expected


@pytest.mark.parametrize(("given", "known"), [([(0, 0, 0), (255, 0, 0)], True), ([(0, 0, 0), (0, 255, 0)], False)])
def test_values_near_given_colors(given: list[tuple[int, int, int]], known: bool) -> None:
    counts = {(0, 0, 2): 500, (250, 4, 0): 400, (100, 90, 9): 20}
    assert (frequent_values(counts, given) is not None) == known
