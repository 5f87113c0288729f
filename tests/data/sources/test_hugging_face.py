"""Datasets of the Hugging Face library on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.contracts import Source
from opabinia.data.sources import HuggingFace
from tests.faults.fuzz_annotations import write_hugging_face


@pytest.fixture
def dataset_dir(tmp_path: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    images = [Image.new(mode, (5, 4), 100) for mode in ("L", "RGB", "RGB")]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = datasets.Dataset.from_dict({"image": images, "label": [0, 1, 1]}, features=features)
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "set"))
    return tmp_path / "set"


def test_a_saved_dataset(dataset_dir: Path) -> None:
    source = HuggingFace(dataset=str(dataset_dir))
    assert isinstance(source, Source)
    assert source.classes == ("no", "yes") and source.info.labels.tolist() == [0, 1, 1] and len(source) == 3
    assert source[0]["image"].shape == (3, 4, 5) and source[0]["image"][:, 0, 0].tolist() == [100, 100, 100]
    assert source.fingerprint() == HuggingFace(dataset=str(dataset_dir)).fingerprint()


def test_missing_columns_and_splits_are_reported(dataset_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no column 'img'; columns: image, label"):
        HuggingFace(dataset=str(dataset_dir), image="img")
    with pytest.raises(ValueError, match="no split 'test'; splits: train"):
        HuggingFace(dataset=str(dataset_dir), split="test")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="cannot be loaded"):
        HuggingFace(dataset=str(tmp_path / "empty"))


IMAGES = [Image.new("RGB", (5, 4), 100) for _ in range(3)]


def save_dataset(
    folder: Path, labels: list[Any], kind: Any, images: list[Any] = IMAGES, split: str | None = None
) -> str:
    """Save a dataset without splits; ``kind`` is the library's type of the labels."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": kind(datasets), "other": datasets.Image()})
    columns = {"image": images, "label": labels, "other": IMAGES}
    datasets.Dataset.from_dict(columns, features=features, split=split).save_to_disk(str(folder / "set"))
    return str(folder / "set")


def test_gray_images_and_integer_labels(tmp_path: Path) -> None:
    source = HuggingFace(dataset=save_dataset(tmp_path, [0, 2, 1], lambda d: d.Value("int32")), channels=1)
    assert source.classes == ("0", "1", "2") and source[1]["label"] == 2
    assert source[np.int64(1)]["id"] == "1" and source[1]["image"].shape == (1, 4, 5)
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"index {index} of 3 samples"):
            source[index]


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        ([0, None, None], lambda d: d.Value("int64"), "column 'label' is empty in 2 of 3 rows"),
        (["a", "b", "a"], lambda d: d.Value("string"), "holds 'a', expected an integer.*class_encode_column"),
        ([0.5, 1.0, 2.0], lambda d: d.Value("float32"), "holds 0.5, expected an integer"),
        ([[0], [1], [0, 1]], lambda d: d.List(d.Value("int64")), r"holds \[0\], expected an integer"),
        ([0, -1, 1], lambda d: d.ClassLabel(names=["a", "b"]), "labels -1 to 1 for 2 classes"),
    ],
)
def test_invalid_labels_are_reported(tmp_path: Path, labels: list[Any], kind: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"set, train: .*{message}"):
        HuggingFace(dataset=save_dataset(tmp_path, labels, kind))


def test_invalid_images_are_reported(tmp_path: Path) -> None:
    path = save_dataset(tmp_path, [0, 1, 1], lambda d: d.Value("int64"), images=[IMAGES[0], None, IMAGES[0]])
    with pytest.raises(ValueError, match="row 1 has no image"):
        HuggingFace(dataset=path)[1]
    with pytest.raises(ValueError, match=r"column 'label' holds Value\('int64'\), not images"):
        HuggingFace(dataset=path, image="label")


def test_a_missing_split_is_not_replaced_by_another(tmp_path: Path) -> None:
    path = save_dataset(tmp_path, [0, 1, 1], lambda d: d.Value("int64"), split="test")
    assert len(HuggingFace(dataset=path, split="test")) == 3
    with pytest.raises(ValueError, match="no split 'train'; the folder has test only"):
        HuggingFace(dataset=path)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'opabinia\[hugging_face\]'"):
        HuggingFace(dataset="some/thing")


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json"])
def test_damaged_files_are_reported(tmp_path: Path, name: str) -> None:
    pytest.importorskip("datasets")
    write_hugging_face(tmp_path)
    assert len(HuggingFace(dataset=str(tmp_path / "set"))) == 2
    for content in ("[]", "null", '{"features": 5, "_data_files": 3}', "[" * 100_000):
        (tmp_path / "set" / "train" / name).write_text(content)
        with pytest.raises(ValueError, match=r"set' cannot be loaded: \w+: "):
            HuggingFace(dataset=str(tmp_path / "set"))
