"""Images without labels beside labeled ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from opabinia.data.layouts.folder import Folder
from opabinia.data.layouts.layout import Layout
from opabinia.runtime.storage import is_url

NAMES = ("unlabeled", "unlabelled", "unlabeled_images", "unlabelled_images", "images_unlabeled", "images_unlabelled")
"""Names of folders of images without labels, in lower case."""

_LISTING = ("coco",)
"""Sources whose annotation files name the images that they read below their ``root``."""


class UnlabeledImages(NamedTuple):
    """Images without labels.

    Attributes:
        place: their folder.
        number: how many; there may be labeled ones beside them.
    """

    place: str
    number: int


def unlabeled_images(data: str, reading: Layout, labeled: int) -> UnlabeledImages | None:
    """Return the images without labels of local data: of a folder with such a name, or those in the folder of the
    training images that no annotation file names; None if there are none.

    Args:
        data: the folder of data.
        reading: its reading.
        labeled: number of samples to train on and to validate.
    """
    if is_url(data) or not Path(data).is_dir():
        return None
    found = [UnlabeledImages(folder.text, len(folder.tree())) for folder in _named_folders(Folder(Path(data), data))]
    root = _listed_root(reading)
    if root is not None:
        found.append(UnlabeledImages(root, len(Folder(Path(root), root).tree()) - labeled))
    most = max(found, key=lambda images: images.number, default=None)
    return None if most is None or most.number <= 0 else most


def _named_folders(folder: Folder) -> Iterator[Folder]:
    """Yield the folders with such a name, at most two levels down."""
    for outer in (folder, *(folder.sub(name) for name in folder.splits.values())):
        name = outer.find(*NAMES)
        if name is not None:
            yield outer.sub(name)


def _listed_root(reading: Layout) -> str | None:
    """Return the folder of training images of which annotation files name a part. It has no test data."""
    root = _root(reading.train)
    if root is None or is_url(root) or (reading.test is not None and _root(reading.test) in (root, None)):
        return None
    return root


def _root(section: Mapping[str, Any]) -> str | None:
    return section.get("root") if section.get("name") in _LISTING else None
