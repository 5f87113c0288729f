"""Pictures and labels listed in a file."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import MinLen
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Sample
from opabinia.data.decode import read_image
from opabinia.data.sources.names import Names

Row = tuple[str, dict[str, Any]]
"""Where it stands, such as ``line 3``, and its values by column."""


@register.source
class Table:
    """Pictures and their labels as a list: .csv or .tsv with a line of column names, .jsonl with an object a line, or
    .parquet (needs the extra ``opabinia[tables]``).

    Everything is looked at before the first step: columns, labels, and whether the files exist. A sample's id is its
    path as it is written.

    Args:
        file: the list.
        root: the folder that the paths count from; the list's own folder when not given.
        path: the column with the paths.
        label: the column with the labels.
        classes: labels in the order of their numbers; all that occur, sorted (numbers by value), when not given.
        multi_label: a picture may have several labels, or none: they stand in one cell, separated, or in a list.
        separator: between several labels in a cell.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: naming file and line: a column, a label or a picture is missing, a label is none of ``classes``, a
            picture is listed twice, a row is not whole.
    """

    def __init__(
        self,
        *,
        file: Path,
        root: Path | None = None,
        path: str = "path",
        label: str = "label",
        classes: list[str] | None = None,
        multi_label: bool = False,
        separator: Annotated[str, MinLen(1)] = "|",
        channels: Literal[1, 3] = 3,
    ) -> None:
        file = file.expanduser()
        self.file, self.channels, self.multi_label = file, channels, multi_label
        self.root = (root or file.parent).expanduser()
        places: list[str] = []
        paths: list[str] = []
        found: list[list[str]] = []
        for where, row in _rows(file, (path, label)):
            places.append(where)
            paths.append(_text(row[path], f"{file}, {where}: {path}"))
            found.append(_labels(row[label], f"{file}, {where}: {label}", separator if multi_label else None))
        if not paths:
            raise ValueError(f"{file} lists no picture")
        self._names = Names([os.fsencode(one) for one in paths])
        self.classes = tuple(classes) if classes is not None else _sorted({name for names in found for name in names})
        if not self.classes:
            raise ValueError(f"{file}: no picture has a label in the column {label!r}, and classes names none")
        self.labels = _numbers(file, places, found, self.classes, multi_label)
        _refuse_missing(file, places, self.root, paths)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Sample:
        name = self._names[index]
        image = tv_tensors.Image(read_image(os.path.join(os.fsencode(self.root), name), self.channels))
        label = torch.from_numpy(self.labels[index].copy()) if self.multi_label else int(self.labels[index])
        return {"image": image, "label": label, "id": name.decode("utf-8", "backslashreplace")}

    def fingerprint(self) -> str:
        """Changes with the classes, the paths, the labels and their order."""
        content = self._names.content() + self.labels.tobytes() + "\0".join(self.classes).encode()
        digest = blake2b(content, digest_size=8).hexdigest()
        return f"{len(self)} pictures of {len(self.classes)} classes, {digest}"


# --- reading ----------------------------------------------------------------------------------------------------------


def _rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    kinds = {".csv": ",", ".tsv": "\t"}
    kind = file.suffix.lower()
    try:
        if kind in kinds:
            yield from _csv_rows(file, columns, kinds[kind])
        elif kind in (".jsonl", ".ndjson"):
            yield from _json_rows(file, columns)
        elif kind == ".parquet":
            yield from _parquet_rows(file, columns)
        else:
            raise ValueError(f"{file}: a list is .csv, .tsv, .jsonl or .parquet")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no UTF-8 text: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from error


def _csv_rows(file: Path, columns: Sequence[str], delimiter: str) -> Iterator[Row]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        begin = 1
        try:
            header = next(reader, [])
            _check_columns(file, header, columns)
            while True:
                begin = reader.line_num + 1
                values = next(reader, None)
                if values is None:
                    return
                if not values:
                    continue
                if len(values) != len(header):
                    message = f"{len(values)} values for {len(header)} columns"
                    raise ValueError(f"{file}, line {begin}: {message}")
                yield f"line {begin}", dict(zip(header, values, strict=True))
        except csv.Error as error:  # a quotation mark that is never closed takes in all that follows
            raise ValueError(f"{file}, line {begin}: {error}; is a quotation mark not closed?") from error


def _json_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{file}, line {number}: no JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{file}, line {number}: a {type(row).__name__} where an object is expected")
            _check_columns(f"{file}, line {number}", row, columns)
            yield f"line {number}", row


def _parquet_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ValueError(f"{file}: reading parquet needs pyarrow: pip install 'opabinia[tables]'") from error
    try:
        with parquet.ParquetFile(file) as table:
            _check_columns(file, table.schema_arrow.names, columns)
            numbers = count(1)
            for batch in table.iter_batches(columns=list(columns)):
                for row in batch.to_pylist():
                    yield f"row {next(numbers)}", row
    except (ArrowException, OSError) as error:
        raise ValueError(f"{file} is no parquet file: {' '.join(str(error).split())}") from error


def _check_columns(where: object, header: Iterable[str], columns: Sequence[str]) -> None:
    known = list(header)
    for column in columns:
        if column not in known:
            hint = get_close_matches(column, known, 1)
            raise ValueError(
                f"{where}: no column {column!r}"
                + (f"; did you mean {hint[0]!r}?" if hint else f"; columns: {', '.join(known) or 'none'}")
            )
        if known.count(column) > 1:
            raise ValueError(f"{where}: {known.count(column)} columns {column!r}; which one is meant?")


# --- labels -----------------------------------------------------------------------------------------------------------


def _text(value: Any, where: str) -> str:
    if isinstance(value, list):
        raise ValueError(f"{where} is a list where one value is expected; several labels need multi_label: true")
    if isinstance(value, dict):
        raise ValueError(f"{where} is an object where a text or a number is expected")
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    text = "" if missing else str(value).strip()
    if not text or text.lower() == "nan":
        raise ValueError(f"{where} is empty" if not text else f"{where} is {text}, not a number and no name")
    return text


def _labels(value: Any, where: str, separator: str | None) -> list[str]:
    """The labels in a cell; with a separator several or none."""
    if separator is None:
        return [_text(value, where)]
    if isinstance(value, list):
        return [_text(one, where) for one in value]
    if isinstance(value, dict):
        return [_text(value, where)]
    if value is None or not str(value).strip():
        return []
    return [_text(one, where) for one in str(value).split(separator)]


def _sorted(names: set[str]) -> tuple[str, ...]:
    numbers = all(re.fullmatch(r"-?\d+", name) for name in names)
    return tuple(sorted(names, key=lambda name: (int(name), name)) if numbers else sorted(names))


def _numbers(
    file: Path, places: Sequence[str], found: list[list[str]], classes: Sequence[str], multi_label: bool
) -> Any:
    """int64, N; float32, N x K, of 0 and 1 when there may be several."""
    number = {name: label for label, name in enumerate(classes)}
    if len(number) < len(classes):
        twice = next(name for name, times in Counter(classes).items() if times > 1)
        raise ValueError(f"classes: {twice!r} is listed twice")
    if unknown := Counter(name for names in found for name in names if name not in number):
        first = {name: place for place, names in zip(reversed(places), reversed(found), strict=True) for name in names}
        listed = ", ".join(f"{name!r} ({times} times, {first[name]})" for name, times in unknown.most_common(5))
        raise ValueError(f"{file}: labels that are none of the {len(classes)} classes: {listed}")
    if not multi_label:
        return np.array([number[names[0]] for names in found], dtype=np.int64)
    labels = np.zeros((len(found), len(classes)), dtype=np.float32)
    for row, names in enumerate(found):
        labels[row, [number[name] for name in names]] = 1
    return labels


def _refuse_missing(file: Path, places: Sequence[str], root: Path, paths: Sequence[str]) -> None:
    twice = [path for path, times in Counter(paths).items() if times > 1]
    if twice:
        which = {path: [place for place, one in zip(places, paths, strict=True) if one == path] for path in twice[:3]}
        listed = ", ".join(f"{path} ({', '.join(where[:3])})" for path, where in which.items())
        raise ValueError(f"{file} lists {len(twice)} pictures more than once: {listed}")
    missing = [
        f"{path} ({place})"
        for place, path in zip(places, paths, strict=True)
        if not os.path.isfile(os.path.join(root, path))
    ]
    if missing:
        raise ValueError(f"{file}: {len(missing)} of {len(paths)} pictures are not in {root}: {', '.join(missing[:3])}")
