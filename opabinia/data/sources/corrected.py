"""Samples with corrections: labels from a list, such as the reviewed ``labels.csv`` of ``opabinia data labels``, or
whole samples from another source, such as boxes corrected in an annotation tool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import (
    CLASS_SEPARATOR,
    NO_CLASS,
    Batch,
    GroundTruth,
    Indices,
    InputPath,
    Sample,
    Source,
    SourceInfo,
    SourcePart,
)
from opabinia.data.sources.file_names import short_digest
from opabinia.data.sources.labels import check_class, multi_hot
from opabinia.data.sources.list_files import read_rows
from opabinia.data.sources.tool_classes import read_image_classes
from opabinia.data.sources.wrapper import Wrapper, find_ids, relabel, select_samples
from opabinia.runtime.text import first_of, plural

REMOVED = "-"
"""Correction of a sample that belongs to no class: it is removed."""


@register.source
def corrected(*, source: SourcePart, file: InputPath) -> Source:
    """The samples of a labeled source with corrected labels: those of the column ``corrected`` of a list.

    ``opabinia data labels`` writes such a list of suspicious labels, with the column empty. Rows that are left so keep
    their label, and so do samples that are not listed; ``-`` removes the sample. In multi-label data the column has all
    classes of the sample with ``;`` between them, or ``no class``. The file may also be that of an annotation tool with
    classes of images, in which a sample that is no image file is called ``ID.png``.

    Args:
        source: images or videos with labels, one for each or several.
        file: .csv, .tsv, .jsonl or .parquet with the columns ``id``, as in the source, and ``corrected``, a class of
            the source. Or the file of a tool: CVAT's .xml with tags, Label Studio's .json with choices, or the folder
            of LabelMe's .json files with flags.

    Example::

        source: {name: corrected, source: {name: image_folder, root: photos}, file: labels.csv}

    Raises:
        ValueError: the file cannot be read, a class or a sample in it is not in the source, a sample has two different
            corrections, or the source has no labels.
    """
    if source.info.labels is None or not source.classes:
        raise ValueError(f"source: the samples of {type(source).__name__} have no labels of their own to correct")
    corrections = _read_corrections(file.expanduser(), source)
    labels, kept = source.info.labels.copy(), np.ones(len(source), dtype=bool)
    for index, value in corrections.items():
        kept[index] = value is not None
        labels[index] = labels[index] if value is None else value
    changed: Source = _Corrected(source, labels)
    return changed if kept.all() else select_samples(changed, np.flatnonzero(kept))


def _read_corrections(file: Path, source: Source) -> dict[int, Any]:
    """Return the new label of each corrected sample by its index; None: it is removed."""
    texts: dict[str, tuple[str, str]] = {}
    for location, name, text in _rows(file, source):
        if text and texts.setdefault(name, (text, location))[0] != text:
            first, where = texts[name]
            raise ValueError(f"{file}: {name} is corrected to {first!r} in {where} and to {text!r} in {location}")
    labels = {name: _label(f"{file}, {location}: the source", text, source) for name, (text, location) in texts.items()}
    indices = _find(file, list(labels), source)
    return {index: labels[name] for name, index in indices.items()}


def _rows(file: Path, source: Source) -> Iterator[tuple[str, str, str]]:
    """Yield location, id and correction of each row of a list, or of each image of a tool."""
    if (images := read_image_classes(file)) is None:
        for location, row in read_rows(file, ("id", "corrected")):
            yield location, str(row["id"]), str(row["corrected"] or "").strip()
        return
    nothing = "" if source.info.single_labels is not None else NO_CLASS
    for name, classes in images:
        yield name, name, f"{CLASS_SEPARATOR} ".join(classes) or nothing


def _label(where: str, text: str, source: Source) -> NDArray[np.float32] | int | None:
    if text == REMOVED and REMOVED not in source.classes:
        return None
    is_one = source.info.single_labels is not None or text in source.classes
    names = [text] if is_one else [name.strip() for name in text.split(CLASS_SEPARATOR)]
    names = [] if text == NO_CLASS and not is_one else names
    for name in names:
        check_class(where, name, source.classes)
    labels = [source.classes.index(name) for name in names]
    return labels[0] if source.info.single_labels is not None else multi_hot([labels], len(source.classes))[0]


def _find(where: object, names: Iterable[str], source: Source) -> dict[str, int]:
    """Return the index of each of these samples; the name of one may have ``.png`` behind its id.

    Raises:
        ValueError: some are not in the source.
    """
    wanted = list(names)
    indices = find_ids(source, wanted, ("", ".png"))
    if missing := [name for name in wanted if name not in indices]:
        count = plural(len(wanted), "corrected sample")
        raise ValueError(
            f"{where}: {len(missing)} of {count} {'is' if len(missing) == 1 else 'are'} not in the source: "
            f"{first_of(missing)}"
        )
    return indices


class _Corrected(Wrapper):
    """A source with these labels (N, or N x K)."""

    def __init__(self, source: Source, labels: NDArray[Any]) -> None:
        super().__init__(source, replace(source.info, labels=labels))
        self._labels = labels

    def convert(self, sample: Sample, index: int) -> Sample:
        return {**sample, "label": self.info.labels_of(index)["label"]}

    def batch(self, indices: Indices) -> Batch | None:
        batch = self.source.batch(indices)
        return None if batch is None else {**batch, "label": torch.from_numpy(self._labels[indices])}

    def fingerprint(self) -> str:
        """Return the source's, with the labels."""
        return f"{self.source.fingerprint()}, {short_digest(self._labels.tobytes())}"


@register.source
def replaced(*, source: SourcePart, by: SourcePart) -> Source:
    """The samples of a source; those that another source has, too, are read from it.

    So corrected annotations of some images take the place of the old ones: the folder ``images`` that ``opabinia data
    labels --export`` writes has the ids of the source as file names, or ``ID.png`` of samples that are no image files.

    Args:
        source: any samples.
        by: samples of the same kind, with ids and classes of the source.

    Example::

        source: {name: replaced, source: {name: coco, root: photos, file: train.json},
                 by: {name: cvat, root: labels/cvat/images, file: corrected.xml}}

    Raises:
        ValueError: a class or a sample of ``by`` is not in the source, or its samples are of another kind.
    """
    for name in by.classes:
        check_class("by: the source", name, source.classes)
    for kind in ("boxes", "masks", "oriented", "maps"):
        if getattr(source.info, kind) and not getattr(by.info, kind):
            raise ValueError(f"by: {type(by).__name__} has no {kind}, which the samples of the source have")
    corrections = relabel(by, source.classes, {})
    numbers = {corrections.id(number): number for number in range(len(corrections))}
    rows = np.arange(len(source))
    for name, index in _find("by", numbers, source).items():
        rows[index] = len(source) + numbers[name]
    return _Replaced(source, corrections, rows)


class _Replaced(Source):
    """Samples of two sources, one after the other, by the rows of both (int64, N); ids are those of the first."""

    def __init__(self, source: Source, by: Source, rows: Indices) -> None:
        self._source, self._by, self._rows = source, by, rows
        self.info = SourceInfo.concat([source.info, by.info]).select(rows)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        source, row = self._locate(index)
        return {**source[row], "id": self.id(index)}

    def encoded(self, index: int) -> Sample:
        source, row = self._locate(index)
        return {**source.encoded(row), "id": self.id(index)}

    def id(self, index: int) -> str:
        return self._source.id(index)

    def split_keys(self) -> Iterable[str]:
        return self._source.split_keys()

    def ground_truth(self, index: int) -> GroundTruth | None:
        source, row = self._locate(index)
        return source.ground_truth(row)

    def paths(self, index: int) -> Sequence[bytes]:
        source, row = self._locate(index)
        return source.paths(row)

    def fingerprint(self) -> str:
        """Return a text that changes with both sources, and with the samples that are replaced."""
        texts = f"{self._source.fingerprint()}; {self._by.fingerprint()}"
        return f"{len(self)} samples, {short_digest(texts.encode(), self._rows.tobytes())}"

    def _locate(self, index: int) -> tuple[Source, int]:
        row = int(self._rows[index])
        return (self._source, row) if row < len(self._source) else (self._by, row - len(self._source))
