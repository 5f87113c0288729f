"""Data sets for retrieval whose test classes are not trained, and whose test pictures look for each other."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from opabinia.config import register
from opabinia.contracts import Count
from opabinia.data.sources.file_names import sorted_names
from opabinia.data.sources.folder import ImageFolder, class_folders_of, existing_folder
from opabinia.data.sources.list_files import fields_of, refuse_missing
from opabinia.data.sources.reid_base import Identities, Listing, Picture, data_root, refuse_one_identity

Side = Literal["train", "test", "all"]
"""What is made a source of: ``all`` is everything, to train on."""

_HEADER = "image_id class_id super_class_id path"


@register.source
def online_products(*, root: Path, split: Side = "train", channels: Literal[1, 3] = 3) -> Identities:
    """Stanford Online Products (Song et al. 2016): pictures of 22,634 products for sale.

    ``Ebay_train.txt`` and ``Ebay_test.txt`` begin with the line ``image_id class_id super_class_id path``; the class is
    the product. 59,551 pictures of 11,318 products to train; 60,502 of 11,316 others to search, each of which looks
    for the rest: no queries are set apart, and there are no cameras.

    Args:
        root: the folder that holds the lists, or the folder ``Stanford_Online_Products`` that does.
        split: ``train``, ``test``, or ``all`` to train on everything.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: a list is missing, lines cannot be read, a picture does not exist, there is one product only to
            train on, or none to search has two pictures.
    """
    root = data_root(root, "Stanford_Online_Products")
    lists = {"train": ("train",), "test": ("test",), "all": ("train", "test")}[split]
    pictures = [one for name in lists for one in _of_products(root, root / f"Ebay_{name}.txt")]
    return Identities(root, listed_openly(root, split, pictures), channels=channels)


def _of_products(root: Path, file: Path) -> list[Picture]:
    rows = [row for row in fields_of(file, _HEADER) if row[1] != _HEADER.split()]
    paths = [path for _, (_, _, _, path) in rows]
    refuse_missing(file, [where for where, _ in rows], root, paths)
    return [Picture(os.fsencode(path), product) for _, (_, product, _, path) in rows]


def listed_openly(where: object, split: Side, pictures: Sequence[Picture]) -> Listing:
    """The pictures of a split in which none is set apart to be looked for.

    Args:
        where: what errors name, such as the root.
        split: what they are for.
        pictures: in the order of the source.

    Raises:
        ValueError: one identity only to train on, or no two pictures of the same one to search.
    """
    images = Counter(one.identity for one in pictures)
    classes = sorted_names(images)
    if split == "test":
        refuse_single_images(where, list(images.values()))
    else:
        refuse_one_identity(where, classes)
    return Listing(pictures, classes)


def refuse_single_images(where: object, sizes: Sequence[int]) -> None:
    """Tell that nothing can be found.

    Args:
        where: what the text begins with.
        sizes: how many pictures each identity has.

    Raises:
        ValueError: no identity has two pictures.
    """
    if max(sizes, default=0) < 2:
        raise ValueError(f"{where}: none of {len(sizes)} identities to search has 2 pictures, so nothing can be found")


@register.source
def class_folders(
    *, root: Path, split: Side = "train", train_classes: Count | None = None, channels: Literal[1, 3] = 3
) -> ImageFolder:
    """Pictures in one folder a class, of which the first classes are trained and the others searched.

    So are CUB-200-2011 (Wah et al. 2011; the folder ``images``: 5,864 pictures of the first 100 species to train, 5,924
    of the others) and Cars196 (98 of 196) divided in work on metric learning since Song et al. 2016. Folders are sorted
    by name; ``001.Black_footed_Albatross`` comes first. Each picture to search looks for the others.

    Args:
        root: the folder that holds the class folders, which are searched as those of ``image_folder``.
        split: ``train``, ``test``, or ``all`` to train on everything.
        train_classes: how many are trained; half of them, rounded down, when not given.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: the root or a class is missing or holds no picture, ``train_classes`` leaves none to search, there
            is one class only to train on, or none to search has two pictures.
    """
    root = existing_folder(root.expanduser(), "root is the folder that holds the class folders")
    names = class_folders_of(root)
    trained = len(names) // 2 if train_classes is None else train_classes
    if trained >= len(names):
        raise ValueError(f"train_classes: {trained} of the {len(names)} classes in {root} leave none to search")
    chosen = {"train": names[:trained], "test": names[trained:], "all": names}[split]
    if split != "test":
        refuse_one_identity(root, chosen)
    source = ImageFolder(root=root, classes=chosen, channels=channels)
    if split == "test":
        refuse_single_images(root, list(Counter(source.labels.tolist()).values()))
    return source
