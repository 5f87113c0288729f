"""Data sets of the Hugging Face library."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Sample
from opabinia.data.decode import from_pil


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
        self._rows = _loaded(dataset, subset, split)
        self._image, self.channels = image, channels
        for column in (image, label):
            if column not in self._rows.column_names:
                known = ", ".join(self._rows.column_names)
                raise ValueError(f"{dataset}, {split}: no column {column!r}; columns: {known}")
        self.labels = np.asarray(self._rows[label][:], dtype=np.int64)
        largest = int(self.labels.max(initial=-1))
        names = getattr(self._rows.features[label], "names", None) or [str(number) for number in range(largest + 1)]
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(names):
            raise ValueError(
                f"{dataset}, {split}: labels {self.labels.min()} to {self.labels.max()} for {len(names)} classes; "
                "a split without labels cannot be trained or measured on"
            )
        self.classes = tuple(names)
        self._told = f"{dataset}/{subset or ''}/{split}"

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        pixels = from_pil(self._rows[index][self._image], self.channels)
        return {"image": tv_tensors.Image(pixels), "label": int(self.labels[index]), "id": str(index)}

    def fingerprint(self) -> str:
        """Changes with the content, as the library tells."""
        return f"{self._told}, {len(self)} samples, {self._rows._fingerprint}"


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
            return found
        return datasets.load_dataset(dataset, subset, split=split)
    except (OSError, ValueError) as error:  # not there, no network, no such split
        raise ValueError(f"dataset: {dataset!r} cannot be loaded: {error}") from error
