"""Searching folders for images and other files of data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.decoding.values import ARRAY_EXTENSIONS


def list_images(folder: Path) -> list[bytes]:
    """Return the names of all images in a folder, sorted by their bytes; if there are none, of the arrays of NumPy.
    Hidden files and subfolders are skipped.

    Raises:
        ValueError: the folder is not readable.
    """
    with _search_errors():
        names = sorted(entry.name for entry in _visible(os.fsencode(folder)) if not entry.is_dir())
    images, arrays = (
        [name for name in names if name.lower().endswith(tuple(map(os.fsencode, suffixes)))]
        for suffixes in (EXTENSIONS, ARRAY_EXTENSIONS)
    )
    return images or arrays


def find_files(root: Path, folder: str = "", suffixes: Sequence[str] = EXTENSIONS) -> list[bytes]:
    """Return the paths below ``root`` of all images in one of its folders, or in all, sorted by their bytes. If there
    are none, arrays of NumPy are the images.

    Symbolic links are followed unless they lead to a parent folder; hidden files are skipped.

    Args:
        root: the folder that paths are relative to.
        folder: search only this folder below it.
        suffixes: of the files to return, in lower case.

    Raises:
        ValueError: a folder is not readable.
    """
    found = list[bytes]()
    with _search_errors():
        parents = [os.stat(root)] if folder else []
        for searched in (suffixes, ARRAY_EXTENSIONS) if tuple(suffixes) == EXTENSIONS else (suffixes,):
            wanted = tuple(map(os.fsencode, searched))
            found = found or sorted(_walk(os.fsencode(root), os.fsencode(folder), parents, wanted))
    return found


@contextmanager
def _search_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"{os.fsdecode(error.filename)} cannot be searched: {error.strerror}") from error


def _visible(folder: bytes) -> Iterator[os.DirEntry[bytes]]:
    """Yield the files and folders in a folder that are not hidden."""
    with os.scandir(folder) as entries:
        yield from (entry for entry in entries if not entry.name.startswith(b"."))


def _walk(root: bytes, folder: bytes, parents: list[os.stat_result], suffixes: tuple[bytes, ...]) -> Iterator[bytes]:
    status = os.stat(os.path.join(root, folder))
    if any(os.path.samestat(status, parent) for parent in parents):
        return
    for entry in _visible(os.path.join(root, folder)):
        name = os.path.join(folder, entry.name)
        if entry.is_dir():
            yield from _walk(root, name, [*parents, status], suffixes)
        elif entry.name.lower().endswith(suffixes):
            yield name
