"""The profile of a dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.contracts import Source
from opabinia.data.examination import examine
from opabinia.data.layouts.layout import TaskName
from opabinia.data.profile import DatasetProfile, profile_dataset
from opabinia.data.sources import (
    Concat,
    Digits,
    DigitScenes,
    DigitViews,
    ImageFolder,
    Images,
    ObjectMaps,
    Table,
    Videos,
    class_folders,
    coco,
    digit_maps,
)
from opabinia.runtime.json_files import InvalidFile, parse_json
from scripts import small_data
from tests.data.check.images import save
from tests.data.videos import write as write_video


def folders(root: Path) -> ImageFolder:
    for number in range(6):
        save(root / "images" / ("cat" if number < 4 else "dog") / f"{number}.png", number, (100 + number, 80))
    save(root / "images" / "cat" / "copy.jpg", 0, (100, 80))
    (root / "images" / "dog" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    return ImageFolder(root=root / "images")


def several_labels(root: Path) -> Table:
    folders(root)
    (root / "list.csv").write_text("path,label\nimages/cat/0.png,a|b\nimages/cat/1.png,b\nimages/cat/2.png,\n")
    return Table(file=root / "list.csv", multi_label=True)


def annotated(root: Path, **options: Any) -> Source:
    small_data.coco(root)
    return coco(root=root, file=root / "annotations.json", **options)


def videos(root: Path) -> Videos:
    for name in ("jump/1.mp4", "jump/2.mp4", "run/1.mp4"):
        write_video(root / name, 8)
    return Videos(root=root)


def identities(root: Path) -> Source:
    small_data.class_folders(root)
    return class_folders(root=root, split="all")


CASES: dict[str, tuple[TaskName, Callable[[Path], Source], dict[str, Any]]] = {
    "folders": (
        "classification",
        folders,
        {
            **{"samples": 8, "examined": 8, "classes": ("cat", "dog"), "per_class": (5, 3), "duplicates": 1},
            **{"unreadable": ("dog/broken.jpg",), "short_sides": (80, 80, 80, 80, 80), "long_sides": "100 .. 105"},
        },
    ),
    "several labels": ("classification", several_labels, {"multi_label": True, "per_class": (1, 2), "samples": 3}),
    "unlabeled": ("selfsup", lambda root: Images(root=folders(root).root), {"classes": (), "per_class": ()}),
    "gray": ("classification", lambda _: Digits(split="val"), {"gray": True, "long_sides": (8, 8, 8, 8, 8)}),
    "boxes": ("detection", annotated, {"masks": False, "oriented": False, "keypoints": ()}),
    "masks": ("instance_segmentation", lambda root: annotated(root, masks=True), {"masks": True}),
    "maps": ("segmentation", lambda root: ObjectMaps(source=annotated(root, masks=True)), {"objects_per_image": None}),
    "identities": ("reid", identities, {"cameras": 0, "classes": (), "per_class": ()}),
    "videos": (
        "video",
        videos,
        {"per_class": (2, 1), "fps": (25, 25, 25, 25, 25), "seconds": (0.32, 0.32, 0.32, 0.32, 0.32)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_profiles(name: str, tmp_path: Path) -> None:
    task, make, expected = CASES[name]
    source = make(tmp_path)
    profile = profile_dataset(source, None, task=task)
    for key, value in expected.items():
        own = getattr(profile, key)
        assert (f"{own[0]:g} .. {own[-1]:g}" if isinstance(value, str) else own) == value, key
    assert parse_json(profile.to_json(), DatasetProfile, "profile.json") == profile
    assert profile == profile_dataset(source, None, task=task, examined=(examine(source, workers=0),) * 2)


def test_objects_of_concatenated_annotations(tmp_path: Path) -> None:
    source = annotated(tmp_path, masks=True)
    whole = profile_dataset(source, None, task="instance_segmentation")
    assert sum(whole.per_class) == source.annotations.trainable.sum()  # type: ignore[attr-defined]
    assert whole.objects_per_image is not None and whole.objects_per_image[0] >= 0
    twice = profile_dataset(Concat(sources=[source, source]), None, task="instance_segmentation")
    assert twice.per_class == tuple(2 * count for count in whole.per_class)


def test_embedded_data() -> None:
    scenes = profile_dataset(DigitScenes(split="val"), None, task="detection", limit=100)
    assert (scenes.samples, scenes.examined, scenes.gray) == (400, 100, True)
    assert scenes.objects_per_image is not None and scenes.objects_per_image[0] == 1
    maps = profile_dataset(digit_maps(split="val", panoptic=True), None, task="panoptic", limit=50)
    assert 0.85 < maps.pixel_shares[0] < 0.93 and maps.per_class[0] == 50
    views = profile_dataset(DigitViews(), None, task="reid", limit=10)
    assert (views.cameras, views.identities, views.images_per_identity) == (4, 1000, (8, 8, 8, 8, 8))


def test_leaks_are_counted(tmp_path: Path) -> None:
    source = folders(tmp_path)
    save(tmp_path / "val" / "cat" / "0.png", 2, (102, 80))
    save(tmp_path / "val" / "dog" / "0.png", 9, (102, 80))
    profile = profile_dataset(source, ImageFolder(root=tmp_path / "val"), task="classification")
    assert (profile.val_samples, profile.leaks) == (2, 1)


def test_16_bits(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16)).save(tmp_path / "a.png")
    profile = profile_dataset(Images(root=tmp_path), None, task="selfsup")
    assert (profile.bits, profile.gray) == (16, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"samples": "many"}, "profile.json: samples: .*'many'"), ({"task": "sorting"}, "profile.json: task: ")],
)
def test_wrong_files_raise(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    content = json.loads(profile_dataset(folders(tmp_path), None, task="classification").to_json())
    with pytest.raises(InvalidFile, match=message):
        parse_json(json.dumps(content | change), DatasetProfile, "profile.json")
