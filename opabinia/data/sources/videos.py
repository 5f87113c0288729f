"""Films in folders, one folder a class; and what sources of films have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from opabinia.config import register
from opabinia.contracts import Sample, Video
from opabinia.data.decoding.video import EXTENSIONS, VideoFile, is_film
from opabinia.data.sources.file_names import Names
from opabinia.data.sources.folder import chosen_classes, existing_folder, pictures_below


class Films:
    """Films with labels, whose samples tell whether a mirror image would be of another class.

    Args:
        names: paths as they are written, which are the ids.
        labels: int64, N; float32, N x K, of 0 and 1.
        classes: their names.
        channels: 3 or 1.
        directed: classes that a mirror would change.

    Raises:
        ValueError: ``directed`` names what is no class.
    """

    def __init__(
        self, names: Sequence[bytes], labels: Any, classes: Sequence[str], channels: Literal[1, 3], directed: list[str]
    ) -> None:
        self.channels: Literal[1, 3] = channels
        self.classes = tuple(classes)
        self.labels = labels
        self.multi_label = labels.ndim == 2
        self._names = Names(names)
        self._directed = directed_classes(directed, self.classes)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Sample:
        label = torch.from_numpy(self.labels[index].copy()) if self.multi_label else int(self.labels[index])
        own = self.labels[index] > 0 if self.multi_label else label
        directed = bool(self._directed[own].any())
        return {"video": self.film(index), "label": label, "directed": directed, "id": self.id(index)}

    def film(self, index: int) -> Video:
        """A film, of which nothing has been read."""
        raise NotImplementedError

    def id(self, index: int) -> str:
        """The path of a film, as it is written."""
        return self._names[index].decode("utf-8", "backslashreplace")

    def fingerprint(self) -> str:
        """Changes with the classes, the names, the labels and their order."""
        content = self._names.content() + self.labels.tobytes() + "\0".join(self.classes).encode()
        return f"{len(self)} films of {len(self.classes)} classes, {blake2b(content, digest_size=8).hexdigest()}"


def directed_classes(directed: Sequence[str], classes: Sequence[str]) -> Any:
    """Which classes (bool, K) are among those named in ``directed``.

    Raises:
        ValueError: one is no class; the text names the nearest.
    """
    for name in directed:
        if name not in classes:
            hint = get_close_matches(name, classes, 1) or list(classes[:5])
            raise ValueError(f"directed: there is no class {name!r}; there is {', '.join(hint)}")
    return np.isin(np.array(classes, dtype=object), list(directed))


@register.source
class Videos(Films):
    """Films in one folder a class (``root/juggling/001.mp4``), searched with subfolders; hidden names are left out.

    mp4, m4v, mov, avi, webm, mkv, mpeg, mpg and gif, in small letters or large. Classes and files are sorted. A
    sample's id is its path below the root. Nothing is decoded before the transform ``clip`` asks for frames.

    Args:
        root: the folder that holds the class folders.
        channels: 3 for colour, 1 for grey.
        classes: folders to use, in the order of their labels; all of them, sorted, when not given.
        directed: classes that a mirror image would change, such as turning left; ``clip_flip`` leaves them alone.

    Raises:
        ValueError: the root or a class is missing or holds no film, or ``directed`` names what is no class.

    Example::

        source: {name: videos, root: kinetics/train}
        transforms: [{name: clip, frames: 16, stride: 4}, {name: scale_jitter, size: 224}, clip_flip]
    """

    def __init__(
        self,
        *,
        root: Path,
        channels: Literal[1, 3] = 3,
        classes: list[str] | None = None,
        directed: list[str] | None = None,
    ) -> None:
        self.root = existing_folder(root.expanduser(), "root is the folder that holds the class folders")
        chosen = chosen_classes(self.root, classes)
        names = [_of_class(self.root, folder) for folder in chosen]
        labels = np.repeat(np.arange(len(names), dtype=np.int64), [len(one) for one in names])
        super().__init__([name for one in names for name in one], labels, chosen, channels, directed or [])

    def film(self, index: int) -> Video:
        return VideoFile(os.path.join(self.root, os.fsdecode(self._names[index])), self.channels)


def _of_class(root: Path, folder: str) -> list[bytes]:
    names = pictures_below(root, folder, is_film)
    if not names:
        raise ValueError(f"class folder {root / folder} holds no film ({', '.join(EXTENSIONS)})")
    return names
