"""Arrays that grow on the disk: a row for each sample, as NumPy and vector databases read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from opabinia.contracts import DataMismatch

IDS = "ids"


class Piece(NamedTuple):
    """Some samples.

    Attributes:
        columns: arrays with a row for each sample, by name.
        ids: of the samples.
    """

    columns: dict[str, NDArray[Any]]
    ids: list[str]


class Writer(Protocol):
    """Takes samples in pieces."""

    def append(self, piece: Piece) -> None: ...

    def close(self) -> None: ...


class NpyFiles:
    """A file for each column, as ``np.load`` reads them, also mapped (``mmap_mode="r"``); ids as a JSON list."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, _NpyFile] = {}
        self._ids = (folder / f"{IDS}.json").open("w", encoding="utf-8")
        self._before = "[\n"

    def append(self, piece: Piece) -> None:
        """Write further rows.

        Raises:
            Unfit: they have another length than those before.
        """
        for name, values in piece.columns.items():
            if name not in self._columns:
                self._columns[name] = _NpyFile(self._folder / f"{name}.npy", values)
            _refuse_other_rows(name, self._columns[name].like, values)
            self._columns[name].append(values)
        for one in piece.ids:
            self._ids.write(self._before + json.dumps(one))
            self._before = ",\n"

    def close(self) -> None:
        """Write what is known at the end only: how many rows there are."""
        self._ids.write("\n]\n" if self._before != "[\n" else "[]\n")
        self._ids.close()
        for column in self._columns.values():
            column.close()


class _NpyFile:
    """An array of which nobody knows yet how many rows it will have.

    NumPy leaves room in the header for the first number of the shape to grow.
    """

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


def _refuse_other_rows(name: str, before: NDArray[Any], values: NDArray[Any]) -> None:
    if (values.shape[1:], values.dtype) != (before.shape[1:], before.dtype):
        raise DataMismatch(
            f"{name}: {_row(values)} for some samples, {_row(before)} for others; where images differ in size take "
            "a layer whose output does not depend on it"
        )


def _row(values: NDArray[Any]) -> str:
    return f"{' x '.join(map(str, values.shape[1:])) or 'one'} {values.dtype}"


def read_pieces(folder: Path, rows: int = 256) -> Iterator[Piece]:
    """What :class:`NpyFiles` has written, some rows at a time; the whole is never in memory."""
    ids = json.loads((folder / f"{IDS}.json").read_text(encoding="utf-8"))
    if not ids:
        return
    columns = {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}
    for first in range(0, len(ids), rows):
        part = slice(first, first + rows)
        yield Piece({name: values[part] for name, values in columns.items()}, ids[part])


class Parquet:
    """One table; columns of several numbers a row are lists of fixed length."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "features.parquet"
        self._file: Any = None
        self._waiting: list[Piece] = []

    def append(self, piece: Piece) -> None:
        """Write further rows, sooner or later.

        Raises:
            Unfit: they have another length than those before.
        """
        for name, values in piece.columns.items() if self._waiting else ():
            _refuse_other_rows(name, self._waiting[0].columns[name], values)
        self._waiting.append(piece)
        held = sum(values.nbytes for one in self._waiting for values in one.columns.values())
        if sum(len(one.ids) for one in self._waiting) >= _ROW_GROUP or held >= _HELD:
            self._flush()

    def close(self) -> None:
        """Write what waits."""
        if self._waiting:
            self._flush()
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        import pyarrow
        from pyarrow import parquet

        ids = [_valid(one) for piece in self._waiting for one in piece.ids]
        names = self._waiting[0].columns
        columns = {name: np.concatenate([piece.columns[name] for piece in self._waiting]) for name in names}
        table = pyarrow.table({IDS: ids, **{name: _column(values) for name, values in columns.items()}})
        if self._file is None:
            self._file = parquet.ParquetWriter(self._path, table.schema)
        self._file.write_table(table)
        self._waiting = []


_ROW_GROUP = 8192
_HELD = 2**27  # bytes that wait at most


def _valid(text: str) -> str:
    """Names of files need not be valid UTF-8: such bytes are written as escapes, as in the file of ids."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _column(values: NDArray[Any]) -> Any:
    import pyarrow

    if values.ndim == 1:
        return pyarrow.array(values)
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.ravel()), values.shape[1])
