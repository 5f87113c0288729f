"""Images in parquet files, as the Hugging Face hub stores datasets."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import Channels, Sample, SourceInfo
from opabinia.data.decoding.images import EncodedImage, decode_sample
from opabinia.data.sources.file_names import sort_names
from opabinia.data.sources.labels import check_no_empty, class_indices, encode_numbers
from opabinia.data.sources.list_files import cell_text, existing_file
from opabinia.data.sources.named import NamedSamples


@register.source
class ParquetImages(NamedSamples):
    """Images and labels in parquet files, without the ``datasets`` library (needs the extra ``opabinia[tables]``).

    The encoded images are held in memory, once for all processes of a loader. A sample's id is the name of its file
    and its row, ``train-00000.parquet/17``.

    Args:
        files: the files of a split, in order.
        image: the column with the images: files as bytes, or a struct with ``bytes``.
        label: the column with the labels: names, or class numbers from 0.
        classes: names in the order of their labels; when not given those in the file's description of its columns (the
            hub's class labels), or all that occur, sorted.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: pyarrow is not installed, a file is none of parquet, or a column is missing or has other values.
    """

    def __init__(
        self,
        *,
        files: Annotated[list[str], MinLen(1)],
        image: str = "image",
        label: str = "label",
        classes: list[str] | None = None,
        channels: Channels = 3,
    ) -> None:
        paths = [existing_file(Path(file)) for file in files]
        tables = [_read(path, image, label) for path in paths]
        names = [
            os.fsencode(f"{path.name}/{row}")
            for path, table in zip(paths, tables, strict=True)
            for row in range(len(table))
        ]
        self._chunks = [chunk for table in tables for chunk in table.column("image").chunks]
        self._ends = np.cumsum([len(chunk) for chunk in self._chunks])
        values = [value for table in tables for value in table.column("label").to_pylist()]
        where = f"{paths[0]}: {label}"
        classes = classes or stored_classes(paths[0], label)
        labels, classes = _encode(values, classes, where)
        super().__init__(names, SourceInfo(channels=channels, classes=tuple(classes), labels=labels, encoded=True))

    def __getitem__(self, index: int) -> Sample:
        return decode_sample(self.encoded(index))

    def encoded(self, index: int) -> Sample:
        """Return the sample with its image not yet decoded."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} images")
        number = int(np.searchsorted(self._ends, index, "right"))
        content = self._chunks[number][index - int(self._ends[number])].as_py()
        if content is None:
            raise ValueError(f"{self.id(index)} has no image")
        return self.sample(EncodedImage(content, self.id(index), self.channels), index)


def _encode(values: Sequence[Any], classes: Sequence[str] | None, where: str) -> tuple[Any, list[str]]:
    """Return the label of each value, and the names of the classes.

    Raises:
        ValueError: a value is empty, or none of the classes.
    """
    check_no_empty(where, values)
    if values and all(type(value) is int for value in values):
        return encode_numbers(where, values, classes)
    texts = [cell_text(value, where) for value in values]
    names = list(classes or sort_names(set(texts)))
    by_name = class_indices(names)
    if unknown := sorted({text for text in texts if text not in by_name}):
        raise ValueError(f"{where}: {', '.join(unknown[:5])} are none of the {len(names)} classes")
    return np.array([by_name[text] for text in texts], dtype=np.int64), names


# --- files ------------------------------------------------------------------------------------------------------------


def _read(file: Path, image: str, label: str) -> Any:
    """Return a table of the encoded images and the labels of a file.

    Raises:
        ValueError: pyarrow is not installed, it is no such file, or a column is missing or of another type.
    """
    parquet, arrow = _import_pyarrow(file)
    try:
        names = parquet.read_schema(file).names
        if absent := [name for name in (image, label) if name not in names]:
            raise ValueError(f"{file}: no column {absent[0]!r}; columns: {', '.join(names)}")
        with parquet.ParquetFile(file) as content:
            table = content.read(columns=[image, label])
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{file} is not a parquet file: {' '.join(str(error).split())}") from error
    column = table.column(image)
    if arrow.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = arrow.chunked_array([chunk.field("bytes") for chunk in column.chunks], column.type.field("bytes").type)
    if not (arrow.types.is_binary(column.type) or arrow.types.is_large_binary(column.type)):
        raise ValueError(f"{file}: column {image!r} holds {column.type}, expected the bytes of image files")
    return arrow.table({"image": column, "label": table.column(label)})


def stored_classes(file: Path, label: str) -> list[str] | None:
    """Return the names of the classes in a file's description of its columns, which the ``datasets`` library writes.

    Raises:
        ValueError: pyarrow is not installed, or it is no parquet file.
    """
    parquet, arrow = _import_pyarrow(file)
    try:
        metadata = parquet.read_schema(file).metadata or {}
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        names = features[label]["names"]
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{file} is not a parquet file: {' '.join(str(error).split())}") from error
    except (ValueError, KeyError, TypeError):
        return None
    return names if isinstance(names, list) and names and all(isinstance(name, str) for name in names) else None


def _import_pyarrow(file: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"{file}: reading parquet needs pyarrow: pip install 'opabinia[tables]'") from error
    return parquet, pyarrow
