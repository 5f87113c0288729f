"""Metric-learning datasets with disjoint training and test classes, whose test images are queries and gallery at once:
Stanford Online Products, CUB-200-2011, Cars196."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from opabinia.config import register
from opabinia.contracts import Channels, Count, InputPath
from opabinia.data.sources.file_names import sort_names
from opabinia.data.sources.folder import ImageFolder, existing_folder, list_class_folders
from opabinia.data.sources.list_files import check_files_exist, read_fields
from opabinia.data.sources.reid_base import IdentityFiles, ReidImage, ReidSplit, check_identities, dataset_root

OpenSplit = Literal["train", "test", "all"]
"""The images of a source: ``all`` is everything, to train on."""

_HEADER = "image_id class_id super_class_id path"


@register.source
def online_products(*, root: InputPath, split: OpenSplit = "train", channels: Channels = 3) -> IdentityFiles:
    """Stanford Online Products (Song et al. 2016): images of 22,634 products for sale.

    ``Ebay_train.txt`` and ``Ebay_test.txt`` begin with the line ``image_id class_id super_class_id path``; the class is
    the product. 59,551 images of 11,318 products to train; 60,502 of 11,316 others to test, each of which is a query
    for the rest: there is no query set, and there are no cameras.

    Args:
        root: the folder that holds the lists, or the folder ``Stanford_Online_Products`` that does.
        split: ``train``, ``test``, or ``all`` to train on everything.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a list is missing, lines cannot be parsed, an image is missing, there is one product only to train
            on, or none of the test products has two images.
    """
    root = dataset_root(root, "Stanford_Online_Products")
    images: list[ReidImage] = []
    for name in ("train", "test"):
        if split in (name, "all"):
            file = root / f"Ebay_{name}.txt"
            rows = [row for row in read_fields(file, _HEADER) if row[1] != _HEADER.split()]
            check_files_exist(file, root, [(location, path) for location, (*_, path) in rows])
            images += [ReidImage(os.fsencode(path), product) for _, (_, product, _, path) in rows]
    return IdentityFiles(root, open_split(root, split, images), channels=channels)


def open_split(where: object, split: OpenSplit, images: Sequence[ReidImage]) -> ReidSplit:
    """Return a split without a query set.

    Args:
        where: the beginning of errors, such as the root.
        split: the split.
        images: in the order of the source.

    Raises:
        ValueError: there is one identity only to train on, or no two images of the same one to search.
    """
    counts = Counter(image.identity for image in images)
    classes = sort_names(counts)
    if split == "test":
        _check_pairs(where, list(counts.values()))
    else:
        check_identities(where, classes)
    return ReidSplit(images, classes)


def _check_pairs(where: object, counts: Sequence[int]) -> None:
    """Raise ValueError if no identity has two images."""
    if max(counts, default=0) < 2:
        raise ValueError(f"{where}: none of {len(counts)} test identities has 2 images, so no query has a match")


@register.source
def class_folders(
    *, root: InputPath, split: OpenSplit = "train", train_classes: Count | None = None, channels: Channels = 3
) -> ImageFolder:
    """Images in one folder per class; the first classes are for training, the others for testing.

    This is the split of CUB-200-2011 (Wah et al. 2011; the folder ``images``: 5,864 images of the first 100 species to
    train, 5,924 of the others) and Cars196 (98 of 196) in metric learning since Song et al. 2016. Folders are sorted by
    name; ``001.Black_footed_Albatross`` comes first. Each test image is a query for the others.

    Args:
        root: the folder that holds the class folders, which are searched like those of ``image_folder``.
        split: ``train``, ``test``, or ``all`` to train on everything.
        train_classes: number of classes for training; half of them, rounded down, when not given.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the root or a class is missing or has no images, ``train_classes`` leaves none for testing, there
            is one class only to train on, or none of the test classes has two images.
    """
    root = existing_folder(root, "root is the folder that holds the class folders")
    names = list_class_folders(root)
    count = len(names) // 2 if train_classes is None else train_classes
    if count >= len(names):
        raise ValueError(f"train_classes: {count} of the {len(names)} classes in {root} leave none to test")
    chosen = {"train": names[:count], "test": names[count:], "all": names}[split]
    if split != "test":
        check_identities(root, chosen)
    source = ImageFolder(root=root, classes=chosen, channels=channels)
    if split == "test":
        _check_pairs(root, list(Counter(source.labels.tolist()).values()))
    return source
