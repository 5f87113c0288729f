"""Finding the images of annotation files by the names of both."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.folder import Folder, UnreadableLayout, split_in

PARTS = (
    *("images", "image", "imgs", "img", "jpegimages", "labels", "label", "masks", "mask", "annotations", "annotation"),
    *("maps", "labeltxt", "annfiles", "gt", "leftimg8bit", "gtfine", "gtcoarse", "imagesets", "unlabeled", "frames"),
)
"""Names of folders that are no classes, in lower case."""

_USUAL = ("jpegimages", "images", "image", "imgs", "img", "photos")
"""Names of folders of images beside those of annotations, in lower case; the first that there is counts."""

_SAMPLED = 100

_MOST = 0.9
"""Share of the images of a list that are in one folder, if all are."""


class Place(NamedTuple):
    """Where the images of a list are: paths in it are below ``root`` after ``prefix`` is removed and ``suffix`` added.

    Attributes:
        root: the folder below the one that is read.
        prefix: beginning of the paths that is removed, such as the folder of another machine.
        suffix: of the images, if the list has none.
        folders: below the root, if the images are in several.
    """

    root: str
    prefix: str
    suffix: str
    folders: tuple[str, ...] = ()


def locate(folder: Folder, values: Sequence[str], split: str | None = None) -> Place | None:
    """Return where the images with these paths or names are; None if fewer than half of them are found.

    Args:
        folder: that they are searched in.
        values: paths, with or without suffix, relative to any folder.
        split: of the list, whose images are preferred.
    """
    index = folder.whole.images_by_name
    counts: Counter[Place] = Counter()
    for value in (value.replace("\\", "/") for value in values):
        base = value.rpartition("/")[2]
        places = {_place(value, path) for path in index.get(base, ()) or index.get(f"{base}.", ())}
        fewest = min((place.prefix.count("/") for place in places), default=0)
        counts.update(place for place in places if place.prefix.count("/") == fewest)
    if not counts:
        return None
    best = max(counts, key=lambda place: (counts[place], split_of_path(place.root) == split, -place.root.count("/")))
    if counts[best] < _MOST * len(values):  # in several folders
        same = [place for place in counts if place[1:] == best[1:]]
        together, roots = sum(counts[place] for place in same), [place.root.split("/") for place in same]
        above = os.path.commonpath(["/".join(parts) for parts in roots]) if all(map(all, roots)) else ""
        folders = tuple(sorted(os.path.relpath("/".join(parts), above or ".") for parts in roots))
        if together >= max(len(values) / 2, counts[best] / _MOST) and together <= len(values):
            return Place(above, best.prefix, best.suffix, folders)
    return best if counts[best] >= len(values) / 2 else None


def _place(value: str, path: str) -> Place:
    """Return what makes the path of an image of a path in a list, which has the same name."""
    suffix = "" if value.rpartition("/")[2] == path.rpartition("/")[2] else os.path.splitext(path)[1]
    written, real = value.split("/"), path.removesuffix(suffix).split("/")
    same = 0
    while same < min(len(written), len(real)) and written[-1 - same] == real[-1 - same]:
        same += 1
    prefix = "".join(f"{part}/" for part in written[: len(written) - same])
    return Place("/".join(real[: len(real) - same]), "" if prefix == "./" else prefix, suffix)


def above(place: str) -> str:
    """Return the folder that a folder is in."""
    return place.rpartition("/")[0]


def split_of_path(path: str) -> str | None:
    """Return the split that a part of a path stands for, the last one that does."""
    return next((split for part in reversed(path.split("/")) if (split := split_in(part))), None)


def is_dataset(folder: Folder) -> bool:
    """Return whether a folder is no class, since it has folders of splits, or of images and annotations."""
    parts = [name for name in folder.folders if name.lower() in PARTS]
    return len(folder.splits) > 1 or len(parts) > 1


def several(folder: Folder, places: Sequence[str]) -> UnreadableLayout:
    """Return the error for folders of data that are no splits."""
    first = folder.at(max(places, key=len))
    return UnreadableLayout(
        f"{folder.text} holds several folders of data, and their names do not say which split each is; give one of "
        f"them, such as {first}"
    )


def check_alone(folder: Folder, used: Sequence[str]) -> None:
    """Raise UnreadableLayout if there are other folders of data beside those that are used."""
    others = [name for name in folder.folders[:50] if name not in used and is_dataset(folder.sub(name))]
    others = [name for name in others if folder.sub(name).holds()]
    if others:
        raise several(folder, others)


def images_of(folder: Folder, place: str, suffix: str, base: str) -> str | None:
    """Return the folder of the images of annotation files: most of these have an image of the same name there.

    Args:
        folder: that all others are below.
        place: the folder of the annotation files.
        suffix: of their names.
        base: a folder in which usual names of folders of images count first.
    """
    files = folder.sub(place).named(suffix)
    stems = {os.path.splitext(name)[0] for name in files[:: max(1, len(files) // _SAMPLED)]}

    def count(images: str) -> int:
        return len(stems & {os.path.splitext(name)[0] for name in folder.sub(images).named(*EXTENSIONS)})

    split, usual, last = split_of_path(place), folder.sub(base).find(*_USUAL), place.rpartition("/")[2]
    first = [place, *([f"{base}/{usual}".lstrip("/")] if usual else [])]
    others = sorted(
        folder.places(),
        key=lambda name: (split_of_path(name) != split, name.rpartition("/")[2] != last, base not in name),
    )
    best, most = None, 0
    for images in dict.fromkeys([*first, *others]):
        found = count(images)
        if found > most:
            best, most = images, found
        if most == len(stems):
            break
    return best


def paired_folders(folder: Folder, suffix: str, holds: Callable[[Folder], bool]) -> dict[str, tuple[str, str]]:
    """Return the folder of the images, and that of the annotation files with the names of these, of each split.

    Args:
        folder: that all others are below.
        suffix: of the annotation files.
        holds: whether a folder with files of this suffix has annotations.

    Raises:
        UnreadableLayout: there are several, and their names do not say which split each is.
    """
    found: dict[str, tuple[str, str]] = {}
    for place in folder.places((suffix,)) if folder.only is None else ():
        images = images_of(folder, place, suffix, above(place)) if holds(folder.sub(place)) else None
        if images is not None:
            split = split_of_path(place) or split_of_path(images) or "train"
            if split in found:
                raise several(folder, [found[split][0], images])
            found[split] = images, place
    return found
