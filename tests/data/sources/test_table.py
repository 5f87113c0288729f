"""Lists of images and labels."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from opabinia.contracts import Source
from opabinia.data.sources import Table

ROWS = [("a/1.png", "cat"), ("a/2.png", "10"), ("b/3.png", "cat"), ("b/4.png", "9")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, (path, _) in enumerate(ROWS):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 3), (number * 50, 0, 0)).save(tmp_path / path)
    return tmp_path


def write_table(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    file = folder / f"list.{kind}"
    if kind == "jsonl":
        file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        separator = {"csv": ",", "tsv": "\t"}[kind]
        lines = [separator.join(rows[0]), *(separator.join(map(str, row.values())) for row in rows)]
        file.write_text("﻿" * (kind == "csv") + "\n".join(lines))
    return file


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_every_format(folder: Path, kind: str) -> None:
    rows = [{"path": path, "more": 1, "label": label} for path, label in ROWS]
    source = Table(file=write_table(folder, kind, rows))
    assert isinstance(source, Source)
    assert source.classes == ("10", "9", "cat") and source.info.labels.tolist() == [2, 0, 2, 1]
    sample = source[3]
    assert (sample["id"], sample["label"]) == ("b/4.png", 1)
    assert sample["image"].shape == (3, 3, 4) and sample["image"][0, 0, 0] == 150
    assert source.fingerprint() != Table(file=write_table(folder, kind, rows[:3])).fingerprint()


def test_numbers_are_sorted_by_value(folder: Path) -> None:
    rows = [{"file": path, "class": label} for (path, _), label in zip(ROWS, (10, 9, 2, 9), strict=True)]
    source = Table(file=write_table(folder, "csv", rows), path="file", label="class", channels=1)
    assert source.classes == ("2", "9", "10") and source[0]["image"].shape == (1, 3, 4)
    with_classes = Table(file=folder / "list.csv", path="file", label="class", classes=["9", "10", "2", "0"])
    assert with_classes.info.labels.tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_several_labels(folder: Path, kind: str) -> None:
    cells: list[Any] = ["cat|dog", "", "dog", "cat"] if kind == "csv" else [["cat", "dog"], [], ["dog"], "cat"]
    rows = [{"path": path, "label": cell} for (path, _), cell in zip(ROWS, cells, strict=True)]
    source = Table(file=write_table(folder, kind, rows), multi_label=True)
    assert source.info.labels.tolist() == [[1, 1], [0, 0], [0, 1], [1, 0]] and source.info.multi_label
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
        ("path,label\n", "lists no image"),
        ("path,label\na/1.png,cat\nno.png,cat\n", r"1 of 2 images are not in .*: no\.png \(line 3\)"),
        ("path,label\na/1.png,cat\na/1.png,dog\n", r"1 image more than once: a/1\.png \(line 2, line 3\)"),
        ("path,label\na/1.png,cat\n./a/1.png,dog\n", r"lists 1 image more than once: a/1\.png \(line 2, line 3\)"),
        ("path,label\na/1.png,cat\na/2.png,emu\nb/3.png,emu\n", r"none of the 2 classes: 'emu' \(2 times, line 3\)"),
        ('path,label\na/1.png,cat\na/2.png,"dog\nb/3.png,cat\n', r"line 3: .*is a quotation mark not closed\?"),
        ('path,label\na/1.png,cat\na/2.png,"' + "dog\n" * 40_000, r"line 3: field larger than .*not closed\?"),
        ("path,label,label\na/1.png,cat,dog\n", r"2 columns are called 'label'"),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(folder: Path, text: str, message: str) -> None:
    (folder / "list.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        Table(file=folder / "list.csv", classes=["cat", "dog"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"path": 1', r"a\.jsonl, line 1 is not complete JSON"),
        ("a.jsonl", b"[]", r"line 1: expected an object, not list"),
        ("a.jsonl", b'{"path": "a/1.png", "label": ["cat"]}', r"line 1: label is a list, .*multi_label: true"),
        ("a.jsonl", b'{"path": "a/1.png", "label": {"cat": 1}}', r"line 1: label is an object"),
        ("a.jsonl", b'{"path": "a/1.png", "label": NaN}', r"line 1: label is empty"),
        ("a.jsonl", b'{"path": "a/1.png"}', r"a\.jsonl, line 1: no column 'label'"),
        ("a.csv", b"\xff\xfe\xfa", "is not UTF-8"),
        ("a.xlsx", b"", r"a list must be \.csv, \.tsv, \.jsonl, \.parquet or \.txt"),
        ("a.parquet", b"PAR1", "is not a parquet file"),
        ("a.csv", None, r"there is no file .*; the nearest existing folder is .*, which holds "),
    ],
)
def test_broken_files_are_reported(folder: Path, name: str, content: bytes | None, message: str) -> None:
    if name == "a.parquet":
        pytest.importorskip("pyarrow")
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Table(file=folder / name)


def test_names_that_are_not_utf8_are_read_and_written(folder: Path) -> None:
    (folder / "a/1.png").rename(os.fsdecode(os.fsencode(folder) + b"/a/\xff.png"))
    file = write_table(folder, "jsonl", [{"path": "a/\udcff.png", "label": "\udcff"}])
    table = Table(file=file)
    assert table[0]["id"] == r"a/\xff.png" and table.classes == (r"\xff",) and table.fingerprint()
    for name, column in ((r"\\ud800", "path"), (r"\\ud800", "label")):
        row = {"path": "a/2.png", "label": "x", column: "\ud800"}
        with pytest.raises(ValueError, match=rf"line 1: {column} is '{name}', which is no text"):
            Table(file=write_table(folder, "jsonl", [row]))


def test_parquet_without_its_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (folder / "a.parquet").touch()
    with pytest.raises(ValueError, match=r"needs pyarrow: pip install 'opabinia\[tables\]'"):
        Table(file=folder / "a.parquet")


def test_an_empty_cell_of_a_parquet_file_is_reported(folder: Path) -> None:
    rows = [{"path": "a/1.png", "label": 1.0}, {"path": "a/2.png", "label": float("nan")}]
    with pytest.raises(ValueError, match=r"list\.parquet, row 2: label is empty"):
        Table(file=write_table(folder, "parquet", rows))


def test_invalid_classes_raise(folder: Path) -> None:
    (folder / "list.csv").write_text("path,label\na/1.png,\n")
    with pytest.raises(ValueError, match="no image has a label in the column 'label'"):
        Table(file=folder / "list.csv", multi_label=True)
    assert Table(file=folder / "list.csv", multi_label=True, classes=["cat"]).info.labels.tolist() == [[0]]
    with pytest.raises(ValueError, match="'cat' is listed twice"):
        Table(file=folder / "list.csv", multi_label=True, classes=["cat", "dog", "cat"])


def test_the_order_of_equal_numbers_does_not_depend_on_the_process(folder: Path) -> None:
    """Sets of strings have a different order in every process."""
    names = ["1", "01", "001", "0001"]
    (folder / "list.csv").write_text(
        "path,label\n" + "\n".join(f"{p},{n}" for (p, _), n in zip(ROWS, names, strict=True))
    )
    assert Table(file=folder / "list.csv").classes == ("0001", "001", "01", "1")


def test_the_root_can_be_another_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    file = tmp_path / "lists/Some.CSV"
    file.write_text(f"path,label\n1.png,cat\n{folder / 'b/3.png'},cat\n")
    source = Table(file=file, root=folder / "a")
    assert source[0]["id"] == "1.png" and source[1]["image"][0, 0, 0] == 100
    with pytest.raises(IndexError, match="index 2 of 2 images"):
        source[2]


def test_a_column_with_the_split(folder: Path) -> None:
    rows = [
        {"id": path.removesuffix(".png"), "label": label, "set": "train" if label == "cat" else "val"}
        for path, label in ROWS
    ]
    file = write_table(folder, "csv", rows)
    options: dict[str, Any] = {"file": file, "path": "id", "suffix": ".png", "split_column": "set"}
    train, val = (Table(**options, split=split) for split in ("train", "val"))
    assert train.classes == val.classes == ("10", "9", "cat")
    assert [train.id(index) for index in range(2)] == ["a/1.png", "b/3.png"]
    assert val.info.labels.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"lists no images of split 'test'; splits: train, val"):
        Table(**options, split="test")


def test_a_column_for_each_class(folder: Path) -> None:
    marks = [("1", "0"), ("0", "1.0"), ("1", "-1"), ("0", "1")]
    rows = [{"path": path, "dog": dog, "cat": cat} for (path, _), (dog, cat) in zip(ROWS, marks, strict=True)]
    columns = ["dog", "cat"]
    source = Table(file=write_table(folder, "csv", rows), label_columns=columns)
    assert source.classes == ("dog", "cat") and source.info.labels.tolist() == [0, 1, 0, 1]
    rows[1]["dog"], rows[2]["dog"] = "1", "0"
    file = write_table(folder, "csv", rows)
    several = Table(file=file, label_columns=columns, multi_label=True)
    assert several.info.labels.tolist() == [[1, 0], [1, 1], [0, 0], [0, 1]]
    with pytest.raises(ValueError, match=r"line 3: 2 of the columns have 1, expected one; several need multi_label"):
        Table(file=file, label_columns=columns)
    rows[3]["cat"] = "yes"
    with pytest.raises(ValueError, match=r"line 5: cat is 'yes', expected 1 or 0"):
        Table(file=write_table(folder, "csv", rows), label_columns=columns, multi_label=True)


def test_lines_of_a_path_and_a_label(folder: Path) -> None:
    (folder / "a/1.png").rename(folder / "a/1 2.png")
    file = folder / "list.txt"
    file.write_text("a/1 2.png cat\n\nb/3.png  dog\n")
    source = Table(file=file)
    assert [source.id(index) for index in range(2)] == ["a/1 2.png", "b/3.png"] and source.classes == ("cat", "dog")
    file.write_text("a/1.png\n")
    with pytest.raises(ValueError, match=r"list.txt, line 1: 'a/1.png' has no label; expected a path and a label"):
        Table(file=file)


def test_lists_of_others_are_read_as_they_are(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "list.csv").write_text("1.png; cat\n3.png;dog\n3.png;dog\nno.png;cat\n")
    given: dict[str, Any] = {"file": folder / "list.csv", "header": ["path", "label"], "folders": ["a", "b"]}
    with pytest.raises(ValueError, match="1 image more than once"):
        Table(**given)
    source = Table(**given, missing="skip")
    assert [source.id(index) for index in range(len(source))] == ["a/1.png", "b/3.png"]
    assert source.classes == ("cat", "dog") and "2 of 4 rows are repeated, or" in caplog.text
    (folder / "list.csv").write_text("1.png;cat\n1.png;dog\n")
    with pytest.raises(ValueError, match="1 image more than once"):
        Table(**given, missing="skip")
