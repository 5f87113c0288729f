"""Lists of pictures and labels, joined sources, noise, and data sets of the Hugging Face library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.contracts import Source
from opabinia.data.sources import Digits, HuggingFace, Joined, Synthetic, Table

ROWS = [("a/1.png", "cat"), ("a/2.png", "10"), ("b/3.png", "cat"), ("b/4.png", "9")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, (path, _) in enumerate(ROWS):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 3), (number * 50, 0, 0)).save(tmp_path / path)
    return tmp_path


def written(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    file = folder / f"list.{kind}"
    if kind == "jsonl":
        file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        mark = {"csv": ",", "tsv": "\t"}[kind]
        lines = [mark.join(rows[0]), *(mark.join(map(str, row.values())) for row in rows)]
        file.write_text("﻿" * (kind == "csv") + "\n".join(lines))
    return file


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_every_kind_of_list(folder: Path, kind: str) -> None:
    rows = [{"path": path, "more": 1, "label": label} for path, label in ROWS]
    source = Table(file=written(folder, kind, rows))
    assert isinstance(source, Source)
    assert source.classes == ("10", "9", "cat") and source.labels.tolist() == [2, 0, 2, 1]
    sample = source[3]
    assert (sample["id"], sample["label"]) == ("b/4.png", 1)
    assert sample["image"].shape == (3, 3, 4) and sample["image"][0, 0, 0] == 150
    assert source.fingerprint() != Table(file=written(folder, kind, rows[:3])).fingerprint()


def test_numbers_are_sorted_by_value(folder: Path) -> None:
    rows = [{"file": path, "class": label} for (path, _), label in zip(ROWS, (10, 9, 2, 9), strict=True)]
    source = Table(file=written(folder, "csv", rows), path="file", label="class", channels=1)
    assert source.classes == ("2", "9", "10") and source[0]["image"].shape == (1, 3, 4)
    chosen = Table(file=folder / "list.csv", path="file", label="class", classes=["9", "10", "2", "0"])
    assert chosen.labels.tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_several_labels(folder: Path, kind: str) -> None:
    cells: list[Any] = ["cat|dog", "", "dog", "cat"] if kind == "csv" else [["cat", "dog"], [], ["dog"], "cat"]
    rows = [{"path": path, "label": cell} for (path, _), cell in zip(ROWS, cells, strict=True)]
    source = Table(file=written(folder, kind, rows), multi_label=True)
    assert source.labels.tolist() == [[1, 1], [0, 0], [0, 1], [1, 0]] and source.multi_label
    label = source[0]["label"]
    assert label.dtype == torch.float32 and label.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na/1.png,nan\n", r"list\.csv, line 2: label is nan"),
        ("path,label\na/1.png,\n", r"line 2: label is empty"),
        ("path,label\n,cat\n", r"line 2: path is empty"),
        ("path,label\na/1.png,cat\na/2.png\n", r"line 3: 1 values for 2 columns"),
        ("path,labels\na/1.png,cat\n", r"no column 'label'; did you mean 'labels'\?"),
        ("x,y\n", r"no column 'path'; columns: x, y"),
        ("", r"no column 'path'; columns: none"),
        ("path,label\n", "lists no picture"),
        ("path,label\na/1.png,cat\nno.png,cat\n", r"1 of 2 pictures are not in .*: no\.png"),
        ("path,label\na/1.png,cat\na/1.png,dog\n", r"1 pictures more than once: a/1\.png"),
        ("path,label\na/1.png,emu\n", r"none of the 2 classes: 'emu' \(1 times\)"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(folder: Path, text: str, message: str) -> None:
    (folder / "list.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        Table(file=folder / "list.csv", classes=["cat", "dog"])


def test_broken_files_are_told(folder: Path) -> None:
    for name, content, message in [
        ("a.jsonl", b'{"path": 1', r"a\.jsonl, line 1: no JSON"),
        ("b.jsonl", b"[]", r"line 1: a list where an object is expected"),
        ("c.csv", b"\xff\xfe\xfa", "is no UTF-8 text"),
        ("d.xlsx", b"", r"a list is \.csv, \.tsv, \.jsonl or \.parquet"),
    ]:
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            Table(file=folder / name)
    with pytest.raises(ValueError, match="there is no file"):
        Table(file=folder / "none.csv")


def test_a_broken_parquet_file_is_told(folder: Path) -> None:
    pytest.importorskip("pyarrow")
    (folder / "e.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="is no parquet file"):
        Table(file=folder / "e.parquet")


# --- joined -----------------------------------------------------------------------------------------------------------


def test_joined_sources_are_one() -> None:
    first, second = Digits(split="train"), Digits(split="val")
    joined = Joined(sources=[first, second])
    assert len(joined) == len(first) + len(second) and joined.starts == [0, len(first)]
    assert joined[len(first) + 2]["id"] == f"1/{second[2]['id']}"
    assert joined[len(first) - 1]["label"] == first[len(first) - 1]["label"]
    assert joined.labels.tolist() == [*first.labels, *second.labels]
    assert joined.fingerprint() != Joined(sources=[second, first]).fingerprint()
    with pytest.raises(IndexError, match="index 1797 of 1797"):
        joined[len(joined)]


def test_sources_that_do_not_fit_are_told() -> None:
    with pytest.raises(ValueError, match=r"sources\.1 has other classes .*new: 10"):
        Joined(sources=[Synthetic(channels=1), Synthetic(channels=1, classes=11)])
    with pytest.raises(ValueError, match=r"sources\.1 has 3 channels, the first one 1"):
        Joined(sources=[Digits(), Synthetic()])


# --- noise ------------------------------------------------------------------------------------------------------------


def test_noise_is_a_function_of_the_index() -> None:
    source = Synthetic(samples=30, size=8, classes=4)
    assert torch.equal(source[7]["image"], Synthetic(samples=99, size=8, classes=4)[7]["image"])
    assert not torch.equal(source[7]["image"], Synthetic(samples=30, size=8, classes=4, seed=1)[7]["image"])
    batch = source.batch(np.array([3, 7]))
    assert torch.equal(batch["image"][1], source[7]["image"]) and batch["label"].tolist() == [3, 3]
    assert batch["id"] == ["3", "7"]


# --- Hugging Face -----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    images = [Image.new(mode, (5, 4), 100) for mode in ("L", "RGB", "RGB")]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = datasets.Dataset.from_dict({"image": images, "label": [0, 1, 1]}, features=features)
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "set"))
    return tmp_path / "set"


def test_a_saved_data_set(saved: Path) -> None:
    source = HuggingFace(dataset=str(saved))
    assert isinstance(source, Source)
    assert source.classes == ("no", "yes") and source.labels.tolist() == [0, 1, 1] and len(source) == 3
    assert source[0]["image"].shape == (3, 4, 5) and source[0]["image"][:, 0, 0].tolist() == [100, 100, 100]
    assert source.fingerprint() == HuggingFace(dataset=str(saved)).fingerprint()


def test_what_is_not_in_it_is_told(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no column 'img'; columns: image, label"):
        HuggingFace(dataset=str(saved), image="img")
    with pytest.raises(ValueError, match="no split 'test'; splits: train"):
        HuggingFace(dataset=str(saved), split="test")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="cannot be loaded"):
        HuggingFace(dataset=str(tmp_path / "empty"))
