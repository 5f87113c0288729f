"""Pictures in folders, one folder a class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np

from opabinia.config import register
from opabinia.contracts import Sample
from opabinia.data.decoding.images import EXTENSIONS, Encoded, whole
from opabinia.data.sources.file_names import Names


@register.source
class ImageFolder:
    """Pictures in one folder a class (``root/cat/001.jpg``), searched with subfolders; hidden names are left out.

    Classes and files are sorted, so that samples have the same index on every file system. A sample's id is its path
    below the root.

    Args:
        root: the folder that holds the class folders.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.
        classes: folders to use, in the order of their labels; all of them, sorted, when not given.

    Raises:
        ValueError: the root or a class is missing or holds no picture.
    """

    def __init__(self, *, root: Path, channels: Literal[1, 3] = 3, classes: list[str] | None = None) -> None:
        self.root = existing_folder(root.expanduser(), "root is the folder that holds the class folders")
        self.channels: Literal[1, 3] = channels
        self.classes = tuple(chosen_classes(self.root, classes))
        names = [_of_class(self.root, folder) for folder in self.classes]
        self._names = Names([name for of_class in names for name in of_class])
        self.labels = np.repeat(np.arange(len(names), dtype=np.int64), [len(of_class) for of_class in names])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return whole(self.encoded(index))

    def encoded(self, index: int) -> Sample:
        """The sample with its picture not decoded yet."""
        name = self._names[index]
        image = Encoded.file(os.path.join(os.fsencode(self.root), name), self.channels)
        return {"image": image, "label": int(self.labels[index]), "id": name.decode("utf-8", "backslashreplace")}

    def fingerprint(self) -> str:
        """Changes with the classes, the files' names and their order."""
        content = blake2b(self._names.content() + self.labels.tobytes(), digest_size=8)
        return f"{len(self)} pictures of {len(self.classes)} classes, {content.hexdigest()}"


def existing_folder(folder: Path, hint: str = "") -> Path:
    """``folder``, if it is one.

    Raises:
        ValueError: it is none; the text names what exists of it, or ends with ``hint`` where it is a file.
    """
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ValueError(f"{folder} is a file; {hint or 'a folder is expected'}")
    parent = next(parent for parent in folder.absolute().parents if parent.exists())
    raise ValueError(f"there is no folder {folder}; what exists of it is {parent}")


def class_folders_of(root: Path) -> list[str]:
    """The names of the folders in ``root``, sorted, without hidden ones.

    Raises:
        ValueError: there are none.
    """
    found = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not found:
        raise ValueError(f"{root} holds no folders; pictures belong into one folder a class, such as {root / 'cat'}")
    return found


def is_picture(name: bytes) -> bool:
    """Whether a file is taken for a picture, by its ending."""
    return name.lower().endswith(_EXTENSIONS)


def chosen_classes(root: Path, classes: Sequence[str] | None) -> list[str]:
    """The folders in ``root`` that are classes: all of them, sorted, or those that are named.

    Raises:
        ValueError: one that is named is not there, or named twice; or there is none.
    """
    found = class_folders_of(root)
    if classes is None:
        return found
    for number, name in enumerate(classes):
        if name not in found:
            hint = get_close_matches(name, found, 1) or found[:5]
            raise ValueError(f"{root} holds no class {name!r}; there is {', '.join(hint)}")
        if name in classes[:number]:
            raise ValueError(f"class {name!r} is listed twice")
    return list(classes)


def _of_class(root: Path, folder: str) -> list[bytes]:
    names = pictures_below(root, folder)
    if not names:
        raise ValueError(f"class folder {root / folder} holds no picture ({', '.join(EXTENSIONS)})")
    return names


def pictures_below(root: Path, folder: str = "", wanted: Callable[[bytes], bool] = is_picture) -> list[bytes]:
    """Paths below ``root`` of all pictures in one of its folders, or in all, sorted by their bytes; of other files, if
    ``wanted`` asks for them by their names.

    Links are followed, except back to a folder that they lie in; hidden names are left out.

    Raises:
        ValueError: a folder must not be read.
    """
    try:
        return sorted(_walk(os.fsencode(root), os.fsencode(folder), [os.stat(root)] if folder else [], wanted))
    except OSError as error:
        raise ValueError(f"{os.fsdecode(error.filename)} cannot be searched: {error.strerror}") from error


def _walk(root: bytes, folder: bytes, above: list[os.stat_result], wanted: Callable[[bytes], bool]) -> Iterator[bytes]:
    here = os.stat(os.path.join(root, folder))
    if any(os.path.samestat(here, one) for one in above):
        return
    for entry in os.scandir(os.path.join(root, folder)):
        name = os.path.join(folder, entry.name)
        if entry.name.startswith(b"."):
            continue
        if entry.is_dir():
            yield from _walk(root, name, [*above, here], wanted)
        elif wanted(entry.name):
            yield name


_EXTENSIONS = tuple(extension.encode() for extension in EXTENSIONS)
