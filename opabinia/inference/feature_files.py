"""Feature files that are written row by row: NumPy arrays and Parquet tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from opabinia.contracts import DataMismatch
from opabinia.runtime.json_files import InvalidFile, read_json

IDS = "ids"

MAX_BYTES = 2**27
"""Maximum size of rows that are read at once; each such block is a row group of a Parquet table."""


class FeatureRows(NamedTuple):
    """Features of some samples.

    Attributes:
        columns: arrays with a row per sample, by name.
        ids: names of the samples.
    """

    columns: dict[str, NDArray[Any]]
    ids: list[str]


class NpyFiles:
    """One file per column for ``np.load``, memory-mapped too (``mmap_mode="r"``); ids are a JSON list."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, _NpyFile] = {}
        self._ids = (folder / f"{IDS}.json").open("w", encoding="utf-8")
        self._separator = "[\n"

    def append(self, rows: FeatureRows) -> None:
        """Write further rows.

        Raises:
            DataMismatch: their shape or type differs from those before.
        """
        for name, values in rows.columns.items():
            if name not in self._columns:
                self._columns[name] = _NpyFile(self._folder / f"{name}.npy", values)
            _check_same_rows(name, self._columns[name].like, values)
            self._columns[name].append(values)
        for sample_id in rows.ids:
            self._ids.write(self._separator + json.dumps(sample_id))
            self._separator = ",\n"

    def close(self) -> None:
        """Write the number of rows into the headers and close the files."""
        self._ids.write("\n]\n" if self._separator != "[\n" else "[]\n")
        self._ids.close()
        for column in self._columns.values():
            column.close()


class _NpyFile:
    """An array file with a number of rows that is known only at the end; NumPy reserves room for it in the header."""

    def __init__(self, path: Path, like: NDArray[Any]) -> None:
        self.like = like[:0].copy()
        self._file, self._rows = path.open("wb"), 0
        self._write_header()

    def _write_header(self) -> None:
        header = {**npy_format.header_data_from_array_1_0(self.like), "shape": (self._rows, *self.like.shape[1:])}
        npy_format.write_array_header_1_0(self._file, header)

    def append(self, values: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(values).data)
        self._rows += len(values)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.close()


def _check_same_rows(name: str, before: NDArray[Any], values: NDArray[Any]) -> None:
    if (values.shape[1:], values.dtype) != (before.shape[1:], before.dtype):
        raise DataMismatch(
            f"{name}: {_describe_row(values)} for some samples, {_describe_row(before)} for others; if images differ "
            "in size, take a layer whose output does not depend on it"
        )


def _describe_row(values: NDArray[Any]) -> str:
    return f"{' x '.join(map(str, values.shape[1:])) or 'one'} {values.dtype}"


def load_array(path: Path) -> NDArray[Any]:
    """Map an array file of at least one dimension into memory.

    Raises:
        InvalidFile: it cannot be read, or holds objects or a single number.
    """
    try:
        array: Any = np.load(path, mmap_mode="r")
    except Exception as error:  # a header is parsed as Python source, which can fail in any way
        reason = str(error) or type(error).__name__
        raise InvalidFile(f"{path}: not a valid array: {reason.splitlines()[0]}") from error
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in "biuf":
        raise InvalidFile(f"{path}: not an array of numbers")
    return cast(NDArray[Any], array)


def read_rows(folder: Path) -> Iterator[FeatureRows]:
    """Yield the rows that :class:`NpyFiles` has written, at most :data:`MAX_BYTES` at a time."""
    ids = read_json(folder / f"{IDS}.json", list[str])
    if not ids:
        return
    columns = {path.stem: load_array(path) for path in sorted(folder.glob("*.npy"))}
    if wrong := [name for name, values in columns.items() if len(values) != len(ids)]:
        raise InvalidFile(f"{folder / wrong[0]}.npy: {len(columns[wrong[0]])} rows for {len(ids)} ids")
    count = max(1, MAX_BYTES * len(ids) // sum(values.nbytes for values in columns.values()))
    for first in range(0, len(ids), count):
        rows = slice(first, first + count)
        yield FeatureRows({name: values[rows] for name, values in columns.items()}, ids[rows])


class Parquet:
    """One table; columns with several numbers per row are lists of fixed length."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "features.parquet"
        self._file: Any = None
        self._first: dict[str, NDArray[Any]] = {}

    def append(self, rows: FeatureRows) -> None:
        """Write further rows as a row group.

        Raises:
            DataMismatch: their shape or type differs from those before.
        """
        import pyarrow
        from pyarrow import parquet

        # File names need not be valid UTF-8: such bytes are escaped, as in the file of ids.
        ids = [sample_id.encode("utf-8", "backslashreplace").decode("utf-8") for sample_id in rows.ids]
        columns: dict[str, Any] = {IDS: ids}
        for name, values in rows.columns.items():
            _check_same_rows(name, self._first.setdefault(name, values[:0]), values)
            columns[name] = pyarrow.array(values.ravel())
            if values.ndim > 1:
                columns[name] = pyarrow.FixedSizeListArray.from_arrays(columns[name], values.shape[1])
        table = pyarrow.table(columns)
        if self._file is None:
            self._file = parquet.ParquetWriter(self._path, table.schema)
        self._file.write_table(table)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
