"""Pictures and labels listed in a file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import Sample
from opabinia.data.decoding.images import Encoded, whole
from opabinia.data.sources.file_names import Names, sorted_names
from opabinia.data.sources.list_files import refuse_missing, rows_of, text_of


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
        for where, row in rows_of(file, (path, label)):
            places.append(where)
            paths.append(text_of(row[path], f"{file}, {where}: {path}"))
            found.append(_labels(row[label], f"{file}, {where}: {label}", separator if multi_label else None))
        if not paths:
            raise ValueError(f"{file} lists no picture")
        self._names = Names([os.fsencode(one) for one in paths])
        if classes is None:
            classes = sorted_names({name for names in found for name in names})
        self.classes = tuple(classes)
        if not self.classes:
            raise ValueError(f"{file}: no picture has a label in the column {label!r}, and classes names none")
        self.labels = _numbers(file, places, found, self.classes, multi_label)
        refuse_missing(file, places, self.root, paths)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Sample:
        return whole(self.encoded(index))

    def encoded(self, index: int) -> Sample:
        """The sample with its picture not decoded yet."""
        name = self._names[index]
        image = Encoded.file(os.path.join(os.fsencode(self.root), name), self.channels)
        label = torch.from_numpy(self.labels[index].copy()) if self.multi_label else int(self.labels[index])
        return {"image": image, "label": label, "id": name.decode("utf-8", "backslashreplace")}

    def fingerprint(self) -> str:
        """Changes with the classes, the paths, the labels and their order."""
        content = self._names.content() + self.labels.tobytes() + "\0".join(self.classes).encode()
        digest = blake2b(content, digest_size=8).hexdigest()
        return f"{len(self)} pictures of {len(self.classes)} classes, {digest}"


# --- labels -----------------------------------------------------------------------------------------------------------


def _labels(value: Any, where: str, separator: str | None) -> list[str]:
    """The labels in a cell; with a separator several or none."""
    if separator is None:
        return [text_of(value, where)]
    if isinstance(value, list):
        return [text_of(one, where) for one in value]
    if isinstance(value, dict):
        return [text_of(value, where)]
    if value is None or not str(value).strip():
        return []
    return [text_of(one, where) for one in str(value).split(separator)]


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
