"""Readers of list files (.csv, .tsv, .jsonl, .parquet, plain lines), whose errors name the line."""

from __future__ import annotations

import csv
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

from opabinia.data.sources.annotation_values import MAX_TEXT, errors_in, parse_json, shortened
from opabinia.runtime.files import describe_missing
from opabinia.runtime.text import plural

Row = tuple[str, dict[str, Any]]
"""Location of a row, such as ``line 3``, and its values by column."""


def read_rows(
    file: Path, columns: Sequence[str], *, header: Sequence[str] | None = None, separator: str | None = None
) -> Iterator[Row]:
    """Read a list by its suffix: .csv, .tsv, .jsonl (or .ndjson), .parquet (needs pyarrow); or .txt, without a header
    line, with ``path`` and ``label`` in each line.

    Args:
        file: the list.
        columns: names of columns that it must have.
        header: names of all columns of a .csv, .tsv or .txt file that has no line with them.
        separator: between the cells of such a file; with one, a .txt is read like a .csv. A comma when not given, or a
            semicolon or tab if the first line of a .csv has no comma.

    Raises:
        ValueError: the file cannot be read, or a row is incomplete or lacks one of ``columns``; the text names file and
            line.
    """
    file = existing_file(file)
    suffix = file.suffix.lower()
    readers = {".jsonl": _json_rows, ".ndjson": _json_rows, ".parquet": _parquet_rows, ".txt": _text_rows}
    try:
        if suffix in (".csv", ".tsv") or (suffix == ".txt" and separator):
            yield from _csv_rows(file, columns, header, separator or ("\t" if suffix == ".tsv" else _separator(file)))
        elif suffix not in readers:
            raise ValueError(f"{file}: a list must be .csv, .tsv, .jsonl, .parquet or .txt")
        elif header or separator:
            raise ValueError(f"{file}: header and separator are for .csv, .tsv and .txt")
        else:
            yield from readers[suffix](file, columns)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from error


def _separator(file: Path) -> str:
    """Return what separates the cells of a .csv file, by its first line."""
    with file.open(encoding="utf-8-sig") as lines:
        first = next(iter(lines), "")
    return max(";\t", key=first.count) if "," not in first and re.search("[;\t]", first) else ","


def _csv_rows(file: Path, columns: Sequence[str], header: Sequence[str] | None, separator: str) -> Iterator[Row]:
    if len(separator) != 1:
        raise ValueError(f"{file}: separator is {separator!r}, expected one character")
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=True)
        start = 1
        try:
            header = next(reader, []) if header is None else header
            _check_columns(file, header, columns)
            start = reader.line_num + 1
            for values in reader:
                if values and len(values) != len(header):
                    raise ValueError(f"{file}, line {start}: {len(values)} values for {len(header)} columns")
                if values:
                    yield f"line {start}", dict(zip(header, values, strict=True))
                start = reader.line_num + 1
        except csv.Error as error:  # an unclosed quotation mark swallows everything after it
            raise ValueError(f"{file}, line {start}: {error}; is a quotation mark not closed?") from error


def _text_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    _check_columns(file, ("path", "label"), columns)
    for location, line in read_lines(file):
        path, *label = line.rsplit(maxsplit=1)
        if not label:
            raise ValueError(f"{file}, {location}: {shortened(line)} has no label; expected a path and a label")
        yield location, {"path": path, "label": label[0]}


def _json_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = parse_json(line, f"{file}, line {number}")
            if not isinstance(row, dict):
                raise ValueError(f"{file}, line {number}: expected an object, not {type(row).__name__}")
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
            batches = table.iter_batches(columns=list(columns))
            for number, row in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1):
                yield f"row {number}", row
    except (ArrowException, OSError) as error:
        raise ValueError(f"{file} is not a parquet file: {' '.join(str(error).split())}") from error


def _check_columns(where: object, header: Iterable[str], columns: Sequence[str]) -> None:
    header = list(header)
    for column in columns:
        if column not in header:
            nearest = get_close_matches(column, header, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"columns: {', '.join(header) or 'none':.200}"
            raise ValueError(f"{where}: no column {column!r}; {hint}")
        if header.count(column) > 1:
            raise ValueError(f"{where}: {header.count(column)} columns are called {column!r}")


def cell_text(value: Any, where: str) -> str:
    """Return the text or number in a cell, as text.

    Raises:
        ValueError: it is empty, NaN, a list, an object or half a character; the text begins with ``where``.
    """
    if isinstance(value, list):
        raise ValueError(f"{where} is a list, expected one value; several labels need multi_label: true")
    if isinstance(value, dict):
        raise ValueError(f"{where} is an object, expected text or a number")
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    text = "" if missing else str(value).strip()
    if not text:
        raise ValueError(f"{where} is empty")
    if len(text) > MAX_TEXT:
        raise ValueError(f"{where} is {shortened(text)}, which has {len(text)} characters, more than {MAX_TEXT}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} is {text!a}, which is no text: {error.reason}") from error
    if text.lower() == "nan":
        raise ValueError(f"{where} is {text}, expected a name or a number")
    return text


def listed_path(text: str, prefix: str) -> str:
    """Return a path in a list without the prefix, which is the folder of another machine; slashes replace the
    backslashes of a path of Windows."""
    return (text if "/" in text else text.replace("\\", "/")).removeprefix(prefix)


def read_lines(file: Path) -> list[tuple[str, str]]:
    """Return location (``line 3``) and text of the lines of a text file that are not blank.

    Raises:
        ValueError: the file cannot be read or is empty.
    """
    texts = enumerate(read_text(file).splitlines(), 1)
    lines = [(f"line {number}", line.strip()) for number, line in texts if line.strip()]
    if not lines:
        raise ValueError(f"{file} is empty")
    return lines


def read_text(file: Path) -> str:
    """Read a text file in UTF-8, with or without a byte order mark.

    Raises:
        ValueError: it is missing or cannot be read.
    """
    with errors_in(f"{file} cannot be read: ", OSError):
        content = existing_file(file).read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from error


def read_json(file: Path) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: it is missing, cannot be read or is no JSON.
    """
    return parse_json(read_text(file), file)


def existing_file(file: Path) -> Path:
    """Return a file with ``~`` expanded.

    Raises:
        ValueError: it is missing; the text names its nearest parent.
    """
    file = file.expanduser()
    if not file.is_file():
        raise ValueError(f"there is no file {file}; {describe_missing(file)}")
    return file


def read_fields(file: Path, columns: str) -> list[tuple[str, list[str]]]:
    """Return location and fields of the lines of a text file; fields are separated by whitespace.

    Args:
        file: the list.
        columns: names of the fields, separated by spaces; a line must have as many.

    Raises:
        ValueError: the file cannot be read or is empty, or lines have more or fewer fields.
    """
    rows = [(location, line.split()) for location, line in read_lines(file)]
    expected = len(columns.split())
    invalid = [f"{location} has {len(fields)} fields" for location, fields in rows if len(fields) != expected]
    rows_too_long = [location for location, fields in rows for field in fields if len(field) > MAX_TEXT]
    raise_for_invalid(file, rows_too_long, len(rows), f"of fields of at most {MAX_TEXT} characters")
    raise_for_invalid(file, invalid, len(rows), f"{expected} fields ({columns})")
    return rows


def check_files_exist(file: Path, root: Path, entries: Sequence[tuple[str, str]]) -> None:
    """Check that the files of a list exist and are listed once.

    Args:
        file: the list.
        root: the folder that the paths are relative to.
        entries: location, such as ``line 3``, and path of each file.

    Raises:
        ValueError: some are missing, or listed several times.
    """
    locations: dict[str, list[str]] = defaultdict(list)
    for location, path in entries:
        locations[os.path.normpath(path)].append(location)
    duplicates = {path: where for path, where in locations.items() if len(where) > 1}
    if duplicates:
        listed = ", ".join(f"{path} ({', '.join(where[:3])})" for path, where in list(duplicates.items())[:3])
        raise ValueError(f"{file} lists {plural(len(duplicates), 'image')} more than once: {listed}")
    missing = [f"{path} ({location})" for location, path in entries if not os.path.isfile(os.path.join(root, path))]
    if missing:
        raise ValueError(f"{file}: {len(missing)} of {len(entries)} images are not in {root}: {', '.join(missing[:3])}")


def match_names(
    where: object, pattern: re.Pattern[str], names: Sequence[str], expected: str, locations: Sequence[str] = ()
) -> list[re.Match[str]]:
    """Return the match of ``pattern`` with each name.

    Raises:
        ValueError: names do not match; the text says what was ``expected`` and, if given, the locations.
    """
    matches = [pattern.fullmatch(name) for name in names]
    shown = [f"{name} ({place})" for name, place in zip(names, locations, strict=True)] if locations else names
    invalid = [text for text, match in zip(shown, matches, strict=True) if match is None]
    raise_for_invalid(where, invalid, len(names), expected)
    return [match for match in matches if match is not None]


def raise_for_invalid(where: object, invalid: Sequence[str], count: int, expected: str) -> None:
    """Raise ValueError if there are invalid names or lines: with their share of ``count`` and the first three."""
    if invalid:
        listed = ", ".join(f"{text:.300}" for text in invalid[:3]) + (" ..." if len(invalid) > 3 else "")
        raise ValueError(f"{where}: {len(invalid)} of {count} are not {expected}: {listed}")
