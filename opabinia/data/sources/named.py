"""Sources whose samples are listed by name: images and videos, most of them files below a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from opabinia.contracts import Sample, Source, SourceInfo
from opabinia.data.decoding.images import EncodedImage, decode_sample
from opabinia.data.sources.file_names import FileNames, decode_name, short_digest


class NamedSamples(Source):
    """Samples by name, which is the id.

    Args:
        names: as the file system has them.
        info: what is known about the samples.
    """

    def __init__(self, names: Sequence[bytes], info: SourceInfo) -> None:
        self.names, self.info = FileNames(names), info

    def __len__(self) -> int:
        return len(self.names)

    def id(self, index: int) -> str:
        return decode_name(self.names[index])

    def sample(self, image: Any, index: int) -> Sample:
        """Return a sample with its image, labels and id."""
        return {"image": image, **self.info.labels_of(index), "id": self.id(index)}

    def fingerprint(self) -> str:
        """Return a text that changes with the names, the classes, all labels and their order."""
        info, names, classes = self.info, self.names.tobytes(), "\0".join(self.classes).encode()
        if info.labels is None:
            return f"{len(self)} samples, {short_digest(names)}"
        if not info.identities:
            digest = short_digest(names, info.labels.tobytes(), classes)
            return f"{len(self)} samples of {len(info.classes)} classes, {digest}"
        contents = [names, classes]
        for key in ("labels", "cameras", "views", "queries"):
            column = getattr(info, key)
            contents += [key.encode(), b"" if column is None else column.tobytes()]
        return f"{len(self)} samples of {len(info.classes)} identities, {short_digest(*contents)}"


class NamedFiles(NamedSamples):
    """Files below the folder ``root``, with their paths below it as names; other arguments as above."""

    def __init__(self, root: Path, names: Sequence[bytes], info: SourceInfo) -> None:
        super().__init__(names, info)
        self.root = root

    def path(self, index: int) -> bytes:
        """Return the path of a file."""
        return os.path.join(os.fsencode(self.root), self.names[index])

    def paths(self, index: int) -> Sequence[bytes]:
        return (self.path(index),)


class ImageFiles(NamedFiles):
    """Image files with labels, or without any; arguments as above."""

    def __init__(self, root: Path, names: Sequence[bytes], info: SourceInfo) -> None:
        super().__init__(root, names, replace(info, encoded=True))

    def __getitem__(self, index: int) -> Sample:
        return decode_sample(self.encoded(index))

    def encoded(self, index: int) -> Sample:
        return self.sample(EncodedImage.file(self.path(index), self.channels), index)
