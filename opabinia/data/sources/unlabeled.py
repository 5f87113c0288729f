"""Pictures without labels: of a folder, or of any other source."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np

from opabinia.config import register
from opabinia.contracts import Batch, Indices, Sample, SourcePart
from opabinia.data.decoding.images import EXTENSIONS, Encoded, whole
from opabinia.data.sources.file_names import Names
from opabinia.data.sources.folder import existing_folder, pictures_below


@register.source
class Images:
    """All pictures below a folder, at any depth, without labels; hidden names and files of other kinds are left out.

    They are sorted by their paths, which are their ids. Links are followed, except back to a folder that they lie in.

    Args:
        root: the folder.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: the folder is missing, or holds no picture.
    """

    classes: tuple[str, ...] = ()

    def __init__(self, *, root: Path, channels: Literal[1, 3] = 3) -> None:
        self.root = existing_folder(root.expanduser(), "root is the folder that holds the pictures")
        self.channels: Literal[1, 3] = channels
        self._names = Names(pictures_below(self.root))
        if not len(self):
            raise ValueError(f"{self.root} holds no picture at any depth ({', '.join(EXTENSIONS)})")

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Sample:
        return whole(self.encoded(index))

    def encoded(self, index: int) -> Sample:
        """The sample with its picture not decoded yet."""
        path = os.path.join(os.fsencode(self.root), self._names[index])
        return {"image": Encoded.file(path, self.channels), "id": self.id(index)}

    def id(self, index: int) -> str:
        """The path of a picture below the folder."""
        return self._names[index].decode("utf-8", "backslashreplace")

    def fingerprint(self) -> str:
        """Changes with the files' names."""
        return f"{len(self)} pictures, {blake2b(self._names.content(), digest_size=8).hexdigest()}"


@register.source
class WithoutLabels:
    """The pictures of any source, and nothing that is known of them: no classes, identities or boxes.

    Sources of different classes, and such without any, can so be ``joined``.

    Args:
        source: whose pictures.

    Example::

        source:
          name: joined
          sources:
            - {name: images, root: photos}
            - {name: without_labels, source: {name: coco, root: coco/train2017, file: coco/instances_train2017.json}}
        sampler: {name: mixed, weights: [3, 1]}
    """

    classes: tuple[str, ...] = ()

    def __init__(self, *, source: SourcePart) -> None:
        self.source = source
        self.channels = source.channels
        for name in _KEPT:
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))
        if hasattr(source, "batch"):
            self.batch = self._batch
        if hasattr(source, "encoded"):
            self.encoded = self._encoded

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        return _without_label(self.source[index])

    def _encoded(self, index: int) -> Sample:
        """The sample with its picture not decoded yet."""
        return _without_label(self.source.encoded(index))  # type: ignore[attr-defined]

    def fingerprint(self) -> str:
        """That of the source."""
        own = getattr(self.source, "fingerprint", None)
        return str(own() if callable(own) else f"{len(self)} pictures")

    def _batch(self, indices: Indices) -> Batch:
        """Samples by their indices (int64, B), as a whole batch."""
        batch: Batch = self.source.batch(np.asarray(indices))  # type: ignore[attr-defined]
        return {"image": batch["image"], "id": batch["id"]}


def _without_label(sample: Sample) -> Sample:
    return {"image": sample["image"], "id": sample["id"]}


_KEPT = ("id", "shards", "sizes", "starts")
"""What a source may tell that says nothing of what its pictures show."""
