"""Lists of pictures in files: their rows, and what is wrong with them told with its line."""

from __future__ import annotations

import csv
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any

Row = tuple[str, dict[str, Any]]
"""Where it stands, such as ``line 3``, and its values by column."""


def rows_of(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a list by its ending: .csv, .tsv, .jsonl (or .ndjson), .parquet (needs pyarrow).

    Raises:
        ValueError: naming file and line: it cannot be read, a row is not whole, or has not all of ``columns``.
    """
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


def text_of(value: Any, where: str) -> str:
    """The text or number in a cell.

    Raises:
        ValueError: naming ``where``: it is empty, NaN, a list or an object.
    """
    if isinstance(value, list):
        raise ValueError(f"{where} is a list where one value is expected; several labels need multi_label: true")
    if isinstance(value, dict):
        raise ValueError(f"{where} is an object where a text or a number is expected")
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    text = "" if missing else str(value).strip()
    if not text or text.lower() == "nan":
        raise ValueError(f"{where} is empty" if not text else f"{where} is {text}, not a number and no name")
    return text


def refuse_missing(file: Path, places: Sequence[str], root: Path, paths: Sequence[str]) -> None:
    """Tell pictures of a list that do not exist, and such as are listed twice.

    Args:
        file: the list.
        places: where each picture stands in it, such as ``line 3``.
        root: the folder that the paths count from.
        paths: as they are written.

    Raises:
        ValueError: there are some.
    """
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


def fields_of(file: Path, columns: str) -> list[tuple[str, list[str]]]:
    """The lines of a text file whose fields are separated by blanks: where each stands, and its fields.

    Args:
        file: the list.
        columns: what the fields of a line are, separated by blanks: as many as a line must have.

    Raises:
        ValueError: it cannot be read, has no line, or lines with more or fewer fields.
    """
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    rows = [(f"line {number}", line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    wanted = len(columns.split())
    bad = [f"{where} has {len(fields)} fields" for where, fields in rows if len(fields) != wanted]
    refuse_bad(file, bad, len(rows), f"{wanted} fields ({columns})")
    if not rows:
        raise ValueError(f"{file} lists nothing; its lines are: {columns}")
    return rows


def refuse_bad(where: object, bad: Sequence[str], count: int, expected: str) -> None:
    """Tell names or lines that cannot be read: how many of ``count``, and the first three.

    Raises:
        ValueError: there are some.
    """
    if bad:
        listed = ", ".join(bad[:3]) + (" ..." if len(bad) > 3 else "")
        raise ValueError(f"{where}: {len(bad)} of {count} are not {expected}: {listed}")
