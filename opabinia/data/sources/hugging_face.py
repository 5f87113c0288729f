"""Data sets of the Hugging Face library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Indices, Sample
from opabinia.data.decoding.images import from_pil


@register.source
class HuggingFace:
    """A data set of the ``datasets`` library (the extra ``opabinia[hugging_face]``): from its hub, which downloads it,
    or from a folder that ``save_to_disk`` wrote.

    Args:
        dataset: its name on the hub, such as ``ylecun/mnist``, or such a folder.
        subset: its configuration, where it has several.
        split: which part of it.
        image: the column with the images.
        label: the column with the labels: class labels, or whole numbers from 0.
        channels: 3 for colour, 1 for grey.

    Raises:
        ValueError: the library is not installed, there is no such data set, split or column.
    """

    def __init__(
        self,
        *,
        dataset: str,
        subset: str | None = None,
        split: str = "train",
        image: str = "image",
        label: str = "label",
        channels: Literal[1, 3] = 3,
    ) -> None:
        rows = _loaded(dataset, subset, split)
        for column in (image, label):
            if column not in rows.column_names:
                known = ", ".join(rows.column_names)
                raise ValueError(f"{dataset}, {split}: no column {column!r}; columns: {known}")
        if type(rows.features[image]).__name__ != "Image":
            raise ValueError(f"{dataset}, {split}: column {image!r} holds {rows.features[image]}, not images")
        self._rows = rows.select_columns([image])  # reading a row decodes all of it
        self._image, self.channels = image, channels
        self.labels = _whole_numbers(rows[label][:], f"{dataset}, {split}: column {label!r}")
        largest = int(self.labels.max(initial=-1))
        names = getattr(rows.features[label], "names", None) or [str(number) for number in range(largest + 1)]
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(names):
            raise ValueError(
                f"{dataset}, {split}: labels {self.labels.min()} to {self.labels.max()} for {len(names)} classes; "
                "a split without labels cannot be trained or measured on"
            )
        self.classes = tuple(names)
        self._told = f"{dataset}/{subset or ''}/{split}, {len(self)} samples, {rows._fingerprint}"

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        image = self._rows[int(index)][self._image]
        if image is None:
            raise ValueError(f"row {index} has no image")
        pixels = from_pil(image, self.channels)
        return {"image": tv_tensors.Image(pixels), "label": int(self.labels[index]), "id": self.id(index)}

    def id(self, index: int) -> str:
        """The number of the sample."""
        return str(index)

    def fingerprint(self) -> str:
        """Changes with the content, as the library tells."""
        return self._told


def _whole_numbers(values: Sequence[Any], where: str) -> Indices:
    if empty := sum(value is None for value in values):
        raise ValueError(f"{where} is empty in {empty} of {len(values)} rows")
    found = np.asarray(values) if all(isinstance(value, int) for value in values) else None
    if found is None:
        odd = next(value for value in values if not isinstance(value, int))
        raise ValueError(f"{where} holds {odd!r} where a whole number is expected; class_encode_column makes them")
    return found.astype(np.int64)


def _loaded(dataset: str, subset: str | None, split: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ValueError("this source needs the datasets library: pip install 'opabinia[hugging_face]'") from error
    try:
        if Path(dataset).expanduser().is_dir():
            found: Any = datasets.load_from_disk(str(Path(dataset).expanduser()))
            if hasattr(found, "keys"):
                if split not in found:
                    raise ValueError(f"there is no split {split!r}; splits: {', '.join(found.keys())}")
                return found[split]
            if found.split is not None and str(found.split) != split:
                raise ValueError(f"there is no split {split!r}; it holds {found.split} alone")
            return found
        return datasets.load_dataset(dataset, subset, split=split)
    except (OSError, ValueError) as error:  # not there, no network, no such split
        raise ValueError(f"dataset: {dataset!r} cannot be loaded: {error}") from error
