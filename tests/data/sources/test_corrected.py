"""Corrections of labels from a list."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.data.sources import Digits, ImageFolder, Table, coco, corrected
from scripts import small_data


@pytest.fixture
def photos(tmp_path: Path) -> ImageFolder:
    for number in range(6):
        path = tmp_path / "photos" / ("cat", "dog", "owl")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (number * 20, 0, 0)).save(path)
    return ImageFolder(root=tmp_path / "photos")


def write(folder: Path, *rows: str, header: str = "id,label,corrected") -> Path:
    file = folder / "labels.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    return file


def labels_of(source: object) -> dict[str, int]:
    return {sample["id"]: sample["label"] for sample in map(source.__getitem__, range(len(source)))}  # type: ignore[arg-type,attr-defined]


def test_corrections_empty_cells_and_removed_samples(photos: ImageFolder, tmp_path: Path) -> None:
    file = write(tmp_path, "cat/0.png,cat,owl", "dog/1.png,dog,", "owl/5.png,owl, -")
    source = corrected(source=photos, file=file)
    expected = {"cat/0.png": 2, "cat/3.png": 0, "dog/1.png": 1, "dog/4.png": 1, "owl/2.png": 2}
    assert labels_of(source) == expected
    assert source.info.single_labels is not None
    assert source.info.single_labels.tolist() == [expected[source.id(index)] for index in range(len(source))]
    assert photos.info.single_labels is not None
    assert photos.info.single_labels.tolist() == [0, 0, 1, 1, 2, 2]  # unchanged
    assert source.fingerprint() != photos.fingerprint()


def test_a_list_without_corrections_changes_nothing(photos: ImageFolder, tmp_path: Path) -> None:
    source = corrected(source=photos, file=write(tmp_path, "cat/0.png,cat,"))
    assert labels_of(source) == labels_of(photos)


def test_semicolons_of_spreadsheets_and_encoded_images(photos: ImageFolder, tmp_path: Path) -> None:
    file = write(tmp_path, "cat/0.png;dog", header="id;corrected")
    source = corrected(source=photos, file=file)
    assert source.encoded(0)["label"] == source[0]["label"] == 1


def test_several_labels(photos: ImageFolder, tmp_path: Path) -> None:
    rows = [f"cat/{number}.png,{labels}" for number, labels in ((0, "a|b"), (3, "b"))]
    (tmp_path / "photos" / "list.csv").write_text("\n".join(["path,label", *rows]))
    table = Table(file=tmp_path / "photos" / "list.csv", multi_label=True)
    file = write(tmp_path, '"cat/0.png","a; b",b', '"cat/3.png","b","a; b"')
    assert corrected(source=table, file=file).info.labels.tolist() == [[0, 1], [1, 1]]  # type: ignore[union-attr]
    file = write(tmp_path, "cat/3.png,b,no class")
    assert corrected(source=table, file=file).info.labels.tolist() == [[1, 1], [0, 0]]  # type: ignore[union-attr]


def test_whole_batches_have_the_corrected_labels(tmp_path: Path) -> None:
    digits = Digits(split="val")
    source = corrected(source=digits, file=write(tmp_path, f"{digits.id(2)},,7"))
    batch = source.batch(np.arange(4))
    assert batch is None or batch["label"][2] == 7
    assert source[2]["label"] == 7


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (["cat/0.png,cat,dgo"], "id,label,corrected", "line 2: the source has no class 'dgo'; there is dog"),
        (["cat/9.png,cat,dog"], "id,label,corrected", "1 of 1 corrected sample is not in the source: cat/9.png"),
        (
            ["cat/0.png,cat,dog", "cat/0.png,cat,owl"],
            "id,label,corrected",
            "cat/0.png is corrected to 'dog' in line 2 and to 'owl' in line 3",
        ),
        (["cat/0.png,dog"], "id,label", "no column 'corrected'"),
    ],
)
def test_wrong_lists(photos: ImageFolder, tmp_path: Path, rows: list[str], header: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"labels\.csv") as error:
        corrected(source=photos, file=write(tmp_path, *rows, header=header))
    assert message in str(error.value)


def test_sources_without_labels(tmp_path: Path) -> None:
    small_data.coco(tmp_path)
    boxes = coco(root=tmp_path, file=tmp_path / "annotations.json")
    with pytest.raises(ValueError, match="have no labels of their own"):
        corrected(source=boxes, file=write(tmp_path))
