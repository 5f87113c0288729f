"""Labeled images with corrections from a list, such as the reviewed ``labels.csv`` of ``opabinia data labels``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import CLASS_SEPARATOR, NO_CLASS, Batch, Indices, InputPath, Sample, Source, SourcePart
from opabinia.data.sources.file_names import short_digest
from opabinia.data.sources.labels import check_class, multi_hot
from opabinia.data.sources.list_files import read_rows
from opabinia.data.sources.wrapper import Wrapper, select_samples
from opabinia.runtime.text import plural

REMOVED = "-"
"""Correction of a sample that belongs to no class: it is removed."""

_SHOWN = 5


@register.source
def corrected(*, source: SourcePart, file: InputPath) -> Source:
    """The samples of a labeled source with corrected labels: those of the column ``corrected`` of a list.

    ``opabinia data labels`` writes such a list of suspicious labels, with the column empty. Rows that are left so keep
    their label, and so do samples that are not listed; ``-`` removes the sample. In multi-label data the column has all
    classes of the sample with ``;`` between them, or ``no class``.

    Args:
        source: images or videos with labels, one for each or several.
        file: .csv, .tsv, .jsonl or .parquet with the columns ``id``, as in the source, and ``corrected``, a class of
            the source.

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
    for location, row in read_rows(file, ("id", "corrected")):
        text, name = str(row["corrected"] or "").strip(), str(row["id"])
        if text and texts.setdefault(name, (text, location))[0] != text:
            first, where = texts[name]
            raise ValueError(f"{file}: {name} is corrected to {first!r} in {where} and to {text!r} in {location}")
    labels = {name: _label(f"{file}, {location}: the source", text, source) for name, (text, location) in texts.items()}
    indices = _find(file, list(labels), source)
    return {index: labels[name] for name, index in indices.items()}


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


def _find(file: Path, names: Iterable[str], source: Source) -> dict[str, int]:
    """Return the index of each of these samples."""
    missing, indices = dict.fromkeys(names), dict[str, int]()
    for index in range(len(source)):
        if not missing:
            break
        name = source.id(index)
        if name in missing:
            del missing[name]
            indices[name] = index
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        count = plural(len(missing) + len(indices), "corrected sample")
        raise ValueError(
            f"{file}: {len(missing)} of {count} {'is' if len(missing) == 1 else 'are'} not in the source: "
            f"{', '.join(list(missing)[:_SHOWN])}{more}"
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
