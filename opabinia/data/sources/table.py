"""Images and labels listed in a file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Channels, InputPath, SourceInfo
from opabinia.data.sources.file_names import decode_name, sort_names
from opabinia.data.sources.labels import class_indices, multi_hot
from opabinia.data.sources.list_files import cell_text, check_files_exist, read_rows
from opabinia.data.sources.named import ImageFiles


def label_info(classes: Sequence[str], labels: NDArray[Any], channels: Channels) -> SourceInfo:
    """Return the facts about images with one label each (int64, N), or with several (float32 of 0 and 1, N x K)."""
    return SourceInfo(channels=channels, classes=tuple(classes), labels=labels, multi_label=labels.ndim == 2)


@register.source
class Table(ImageFiles):
    """Images and labels as a list: .csv or .tsv with a header line, .jsonl with an object per line, or .parquet (needs
    the extra ``opabinia[tables]``).

    Columns, labels and the existence of files are checked before the first step. A sample's id is its path as written.

    Args:
        file: the list.
        root: the folder that the paths are relative to; the list's own folder when not given.
        path: the column with the paths.
        label: the column with the labels.
        classes: labels in the order of their numbers; all that occur, sorted (integers by value), when not given.
        multi_label: an image may have several labels, or none, in one cell: separated, or as a list.
        separator: between several labels in a cell.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a column, label or image is missing, a label is unknown, an image is listed twice, or a row is
            incomplete. The text names file and line.
    """

    def __init__(
        self,
        *,
        file: InputPath,
        root: InputPath | None = None,
        path: str = "path",
        label: str = "label",
        classes: list[str] | None = None,
        multi_label: bool = False,
        separator: Annotated[str, MinLen(1)] = "|",
        channels: Channels = 3,
    ) -> None:
        self.file = file = file.expanduser()
        locations: list[str] = []
        paths: list[str] = []
        labels: list[list[str]] = []
        for location, row in read_rows(file, (path, label)):
            locations.append(location)
            paths.append(cell_text(row[path], f"{file}, {location}: {path}"))
            labels.append(_split_labels(row[label], f"{file}, {location}: {label}", separator if multi_label else None))
        if not paths:
            raise ValueError(f"{file} lists no images")
        if classes is None:
            classes = sort_names({name for names in labels for name in names})
        if not classes:
            raise ValueError(f"{file}: no image has a label in the column {label!r}, and classes is empty")
        by_name = class_indices(classes)
        if unknown := Counter(name for names in labels for name in names if name not in by_name):
            entries = list(zip(locations, labels, strict=True))
            first = {name: location for location, names in reversed(entries) for name in names}
            listed = ", ".join(f"{name!r} ({times} times, {first[name]})" for name, times in unknown.most_common(5))
            raise ValueError(f"{file}: labels that are none of the {len(classes)} classes: {listed}")
        numbers = [[by_name[name] for name in names] for names in labels]
        encoded: Any = multi_hot(numbers, len(by_name)) if multi_label else np.array(numbers, dtype=np.int64)[:, 0]
        root = (root or file.parent).expanduser()
        super().__init__(root, [os.fsencode(name) for name in paths], label_info(classes, encoded, channels))
        check_files_exist(file, root, list(zip(locations, paths, strict=True)))


def _split_labels(value: Any, where: str, separator: str | None) -> list[str]:
    """Return the labels in a cell; with a separator several or none."""
    if separator is None or isinstance(value, dict):
        cells = [value]
    elif isinstance(value, list):
        cells = value
    else:
        cells = str(value).split(separator) if value is not None and str(value).strip() else []
    # JSON may hold names of files, and so of folders, that are not valid UTF-8.
    return [decode_name(os.fsencode(cell_text(cell, where))) for cell in cells]
