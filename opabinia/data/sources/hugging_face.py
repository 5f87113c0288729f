"""Datasets of the Hugging Face ``datasets`` library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Channels, Sample, Source, SourceInfo
from opabinia.data.decoding.images import from_pil
from opabinia.data.sources.labels import check_no_empty, encode_numbers


@register.source
class HuggingFace(Source):
    """A dataset of the ``datasets`` library (the extra ``opabinia[hugging_face]``): downloaded from its hub, or from a
    folder written by ``save_to_disk``.

    Args:
        dataset: name on the hub, such as ``ylecun/mnist``, or such a folder.
        subset: the dataset's configuration, if it has several.
        split: name of the split.
        image: the column with the images.
        label: the column with the labels: class labels, or integers from 0.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the library is not installed, or the dataset, split or column does not exist.
    """

    def __init__(
        self,
        *,
        dataset: str,
        subset: str | None = None,
        split: str = "train",
        image: str = "image",
        label: str = "label",
        channels: Channels = 3,
    ) -> None:
        rows = _load(dataset, subset, split)
        for column in (image, label):
            if column not in rows.column_names:
                known = ", ".join(rows.column_names)
                raise ValueError(f"{dataset}, {split}: no column {column!r}; columns: {known}")
        if type(rows.features[image]).__name__ != "Image":
            raise ValueError(f"{dataset}, {split}: column {image!r} holds {rows.features[image]}, not images")
        self._rows = rows.select_columns([image])  # reading a row decodes all of it
        self._image = image
        values = rows[label][:]
        where = f"{dataset}, {split}: column {label!r}"
        check_no_empty(where, values)
        if others := [value for value in values if not isinstance(value, int)]:
            raise ValueError(f"{where} holds {others[0]!r}, expected an integer; class_encode_column makes them")
        labels, names = encode_numbers(where, values, getattr(rows.features[label], "names", None))
        self.info = SourceInfo(channels=channels, classes=tuple(names), labels=labels)
        self._fingerprint = f"{dataset}/{subset or ''}/{split}, {len(self)} samples, {rows._fingerprint}"

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        try:
            image = self._rows[int(index)][self._image]
        except Exception as error:  # damaged files and images can fail in any way
            raise ValueError(f"row {index} cannot be read: {' '.join(str(error).split())}") from error
        if image is None:
            raise ValueError(f"row {index} has no image")
        pixels = from_pil(image, self.channels)
        return {"image": tv_tensors.Image(pixels), **self.info.labels_of(index), "id": self.id(index)}

    def id(self, index: int) -> str:
        """Return the index of the sample."""
        return str(index)

    def fingerprint(self) -> str:
        """Return a text that changes with the content, based on the library's own fingerprint."""
        return self._fingerprint


def _load(dataset: str, subset: str | None, split: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ValueError("this source needs the datasets library: pip install 'opabinia[hugging_face]'") from error
    try:
        folder = Path(dataset).expanduser()
        if not folder.is_dir():
            return datasets.load_dataset(dataset, subset, split=split)
        loaded: Any = datasets.load_from_disk(str(folder))
        if isinstance(loaded, datasets.DatasetDict):
            if split not in loaded:
                raise ValueError(f"there is no split {split!r}; splits: {', '.join(loaded.keys())}")
            return loaded[split]
        if loaded.split is not None and str(loaded.split) != split:
            raise ValueError(f"there is no split {split!r}; the folder has {loaded.split} only")
        return loaded
    except Exception as error:  # unknown dataset or split, no network; damaged files can fail in any way
        raise ValueError(f"dataset: {dataset!r} cannot be loaded: {type(error).__name__}: {error}") from error
