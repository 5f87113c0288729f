"""Images in folders, of one class each or without labels, and how folders are searched."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from opabinia.config import register
from opabinia.contracts import Channels, Indices, InputPath, SourceInfo
from opabinia.contracts.ranges import Fraction
from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.file_search import find_files, list_images
from opabinia.data.sources.file_names import decode_name, short_digest
from opabinia.data.sources.labels import class_indices, select_classes
from opabinia.data.sources.list_files import raise_for_invalid, read_lines
from opabinia.data.sources.named import ImageFiles
from opabinia.runtime.files import describe_missing, split_folder
from opabinia.runtime.log import warn_once


@register.source
class ImageFolder(ImageFiles):
    """Images in one folder per class (``root/cat/001.jpg``), including subfolders, without hidden files.

    Classes and files are sorted, so that samples have the same index on every file system. A sample's id is its path
    below the root.

    Args:
        root: the folder that holds the class folders.
        channels: 3 for color, 1 for gray; images are converted.
        classes: folders to use, in the order of their labels, which may be below others (``fruit/apple``); all of them,
            sorted, when not given.
        list_file: use the images in this list: a path below the root in each line, with or without the suffix, and
            perhaps a label after it.

    Raises:
        ValueError: the root or a class is missing or has no images, or the list names others.
    """

    def __init__(
        self,
        *,
        root: InputPath,
        channels: Channels = 3,
        classes: list[str] | None = None,
        list_file: InputPath | None = None,
    ) -> None:
        root, chosen, names, labels = find_class_files(root, classes, "image", EXTENSIONS, list_file)
        super().__init__(root, names, SourceInfo(channels=channels, classes=chosen, labels=labels))

    def fingerprint(self) -> str:
        """Return a text that changes with the classes, the file names and their order."""
        assert self.info.labels is not None
        digest = short_digest(self.names.tobytes(), self.info.labels.tobytes())
        return f"{len(self)} pictures of {len(self.classes)} classes, {digest}"


NAMED_CLASS = re.compile(r"([^\W\d_].*?)[ ._(-]*\d+\)?")
"""Name of a file, without suffix, that begins with a class: ``cat.1``, ``pug_12``, ``Leaf smut (3)``."""
CLASS_AT_END = re.compile(r".*\d.*?[ ._-]+([^\W\d_][^\d]*)")
"""Name of a file, without suffix, that ends with a class after a number: ``img1_cat``, ``ab12-dog``."""


@register.source
def named_images(
    *,
    root: InputPath,
    position: Literal["start", "end"] = "start",
    classes: list[str] | None = None,
    channels: Channels = 3,
) -> ImageFiles:
    """Images in one folder whose names begin with their class, and end with a number: ``cat.1.jpg``, ``pug_12.jpg``; or
    end with it: ``img1_cat.jpg``.

    They are sorted by name, which is the id. Hidden files and subfolders are skipped.

    Args:
        root: the folder.
        position: where the class is in the names.
        classes: names in the order of their labels, other images are skipped; all that occur, sorted, when not given.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the folder is missing or has no images, a name has no class, or a class has no image.
    """
    root = existing_folder(root, "root is the folder that holds the images")
    names = list_images(root)
    pattern = NAMED_CLASS if position == "start" else CLASS_AT_END
    matches = [pattern.fullmatch(decode_name(os.path.splitext(name)[0])) for name in names]
    if not names:
        raise ValueError(f"{root} has no image ({', '.join(EXTENSIONS)})")
    if None in matches:
        first = decode_name(names[matches.index(None)])
        form = "begin with a class and end with a number, such as cat.1.jpg"
        form = form if position == "start" else "end with a class after a number, such as img1_cat.jpg"
        raise ValueError(f"{root}: {first} does not {form}")
    found = [match[1] for match in matches if match]
    chosen = sorted(set(found)) if classes is None else classes
    by_name = class_indices(chosen)
    if absent := [name for name in chosen if name not in found]:
        raise ValueError(
            f"{root} has no image of {', '.join(absent[:5])}; classes: {', '.join(sorted(set(found))[:5])}"
        )
    kept = [name for name, of_class in zip(names, found, strict=True) if of_class in by_name]
    labels = np.array([by_name[name] for name in found if name in by_name], dtype=np.int64)
    return ImageFiles(root, kept, SourceInfo(channels=channels, classes=tuple(chosen), labels=labels))


@register.source
class Images(ImageFiles):
    """All images below a folder, at any depth, without labels; hidden files and files of other types are skipped.

    They are sorted by path, which is the id. Symbolic links are followed unless they lead to a parent folder.

    Args:
        root: the folder.
        split: ``val``: every n-th image, ``train``: the others; null: all images.
        val_fraction: share of the images in ``val``; with 0 ``train`` has all of them.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the folder is missing or has no images.
    """

    def __init__(
        self,
        *,
        root: InputPath,
        channels: Channels = 3,
        split: Literal["train", "val"] | None = None,
        val_fraction: Fraction = 0.1,
    ) -> None:
        root = existing_folder(root, "root is the folder that holds the images")
        names = find_files(root)
        held_out = names[:: max(2, round(1 / val_fraction))] if val_fraction else []
        if split is not None:
            names = held_out if split == "val" else sorted(set(names) - set(held_out))
        if split == "val" and not val_fraction:
            raise ValueError("val_fraction: 0 leaves no image for val")
        super().__init__(root, names, SourceInfo(channels=channels))
        if not len(self):
            found = f"no image for {split}" if held_out else f"no image at any depth ({', '.join(EXTENSIONS)})"
            raise ValueError(f"{root} has {found}")


def existing_folder(folder: Path, hint: str = "a folder is expected") -> Path:
    """Return ``folder`` with ``~`` expanded, or ``validation``, ``valid`` or ``test`` beside it in place of a missing
    ``val``.

    Raises:
        ValueError: it is missing, and the text names its nearest parent; or it is a file, and the text ends with
            ``hint``.
    """
    given, folder = folder, split_folder(folder)
    if folder.name != given.name:
        warn_once("there is no %s: %s is used in its place", given, folder)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ValueError(f"{folder} is a file; {hint}")
    raise ValueError(f"there is no folder {folder}; {describe_missing(folder)}")


def list_class_folders(root: Path) -> list[str]:
    """Return the names of the folders in ``root``, sorted, without hidden ones.

    Raises:
        ValueError: there are none.
    """
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{root} has no folders; expected one folder per class, such as {root / 'cat'}")
    return names


def find_class_files(
    root: Path, classes: Sequence[str] | None, kind: str, suffixes: Sequence[str], list_file: Path | None = None
) -> tuple[Path, tuple[str, ...], list[bytes], Indices]:
    """Find the files of a dataset with one folder per class.

    Args:
        root: the folder that holds the class folders.
        classes: folders to use, in the order of their labels, which may be below others; all of them, sorted, when
            None.
        kind: the kind of files, for errors.
        suffixes: of these files.
        list_file: names those to use; None: all.

    Returns:
        The root with ``~`` expanded, class names, paths below the root sorted within each class, labels (int64, N).

    Raises:
        ValueError: the root or a class is missing or has no such files, or the list names others.
    """
    root = existing_folder(root, "root is the folder that holds the class folders")
    folders = list_class_folders(root)
    folders += [name for name in classes or () if "/" in name and (root / name).is_dir()]
    chosen = tuple(folders[index] for index in select_classes(root, folders, classes))
    files = [find_files(root, folder, suffixes) for folder in chosen]
    for folder, names in zip(chosen, files, strict=True):
        if not names:
            if any(root.glob("annotations/instances_*.json")):
                message = f"{root} holds COCO data (annotations/instances_*.json), not one folder per class"
                raise ValueError(f"{message}; `opabinia train {root}` reads it")
            raise ValueError(f"class folder {root / folder} has no {kind} ({', '.join(suffixes)})")
    if list_file is not None:
        wanted = select_listed(list_file, [name for names in files for name in names])
        files = [[name for name in names if name in wanted] for names in files]
    labels = np.repeat(np.arange(len(chosen), dtype=np.int64), [len(names) for names in files])
    return root, chosen, [name for names in files for name in names], labels


def select_listed(file: Path, names: Sequence[bytes]) -> set[bytes]:
    """Return those of the paths ``<class>/<file>`` that a list names: one in each line, with or without the suffix,
    perhaps with a folder before it and a label after it.

    Raises:
        ValueError: the list cannot be read, or names others.
    """
    by_text = {decode_name(text): name for name in names for text in (os.path.splitext(name)[0], name)}
    entries = [(place, line, _LABEL.sub("", line)) for place, line in read_lines(file.expanduser())]
    found = [by_text.get(line) or by_text.get(path) or by_text.get(path.partition("/")[2]) for _, line, path in entries]
    missing = [f"{path} ({place})" for (place, _, path), name in zip(entries, found, strict=True) if name is None]
    raise_for_invalid(file, missing, len(entries), "files in class folders")
    return {name for name in found if name is not None}


_LABEL = re.compile(r"[\s,;]+[^\s,;/]*$")
"""A label after a path."""
