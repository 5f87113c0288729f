"""Retrieval of clothes: In-shop Clothes Retrieval of DeepFashion."""

from __future__ import annotations

import os
from collections import defaultdict

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources.list_files import check_files_exist, raise_for_invalid, read_lines
from opabinia.data.sources.reid_base import IdentityFiles, ReidImage, Split, dataset_root, read_split

SUBSETS = ("train", "query", "gallery")


@register.source
def in_shop(*, root: InputPath, split: Split = "train", channels: Channels = 3) -> IdentityFiles:
    """In-shop Clothes Retrieval (Liu et al. 2016, DeepFashion): pieces of clothing, without cameras.

    Lines such as ``img/WOMEN/Dresses/id_00000002/02_1_front.jpg id_00000002 train`` of ``list_eval_partition.txt``,
    after the number of images and the names of the columns, give an image, its piece and its split (``train``,
    ``query`` or ``gallery``). 25,882 images of 3,997 pieces to train, 14,218 queries of 3,985 others, 12,612 in the
    gallery.

    Args:
        root: the folder that holds ``img`` and ``list_eval_partition.txt`` (also in a folder ``Eval``), or the folder
            ``InShop`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the list is missing, lines cannot be parsed, an image is missing, there is one piece only to train
            on, or no query has a match.
    """
    root = dataset_root(root, "InShop", "In-shop Clothes Retrieval Benchmark")
    name = "list_eval_partition.txt"
    file = next((path for path in (root / "Eval" / name, root / name) if path.is_file()), root / name)
    rows = [(location, line.split()) for location, line in read_lines(file)[2:]]
    invalid = [location for location, fields in rows if len(fields) != 3 or fields[2] not in SUBSETS]
    raise_for_invalid(file, invalid, len(rows), "an image, its piece and train, query or gallery")
    check_files_exist(file, root, [(location, path) for location, (path, *_) in rows])
    images: dict[str, list[ReidImage]] = defaultdict(list)
    for _, (path, item, status) in rows:
        images[status].append(ReidImage(os.fsencode(path), item))
    return IdentityFiles(root, read_split(root, split, images.__getitem__), channels=channels)
