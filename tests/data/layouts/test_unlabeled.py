"""Images without labels beside labeled ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.unlabeled import unlabeled_images


def layout(train: Mapping[str, Any], test: Mapping[str, Any] | None = None) -> Layout:
    return Layout("x", "detection", "", {"train": train} | ({"test": test} if test else {}))


def make_images(folder: Path, count: int) -> str:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}.jpg").touch()
    return str(folder)


@pytest.mark.parametrize("name", ["unlabeled", "Unlabelled", "train/unlabeled"])
def test_a_folder_with_such_a_name(tmp_path: Path, name: str) -> None:
    make_images(tmp_path / "train/cat", 2)
    place = make_images(tmp_path / name, 3)
    section = {"name": "image_folder", "root": str(tmp_path / "train")}
    assert unlabeled_images(str(tmp_path), layout(section), 2) == (place, 3)


def test_images_that_no_annotation_file_names(tmp_path: Path) -> None:
    root = make_images(tmp_path / "images", 5)
    section = {"name": "coco", "root": root, "file": "x.json"}
    assert unlabeled_images(str(tmp_path), layout(section), 2) == (root, 3)
    assert unlabeled_images(str(tmp_path), layout(section), 5) is None
    assert unlabeled_images(str(tmp_path), layout(section, {**section, "file": "test.json"}), 2) is None


@pytest.mark.parametrize("data", ["s3://bucket/data", "missing"])
def test_only_local_folders_are_searched(data: str) -> None:
    assert unlabeled_images(data, layout({"name": "image_folder", "root": data}), 2) is None
