"""Person re-identification: MSMT17."""

from __future__ import annotations

import os
import re
from pathlib import Path

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources.list_files import check_files_exist, match_names, read_fields
from opabinia.data.sources.reid_base import IdentityFiles, ReidImage, Split, Subset, dataset_root, read_split


@register.source
def msmt17(*, root: InputPath, split: Split = "train", with_val: bool = False, channels: Channels = 3) -> IdentityFiles:
    """MSMT17 (Wei et al. 2018), in its first version or in the second, in which faces are masked.

    Lines such as ``0000/0000_000_01_0303morning_0008_0.jpg 0`` in ``list_train.txt``, ``list_val.txt``,
    ``list_query.txt`` and ``list_gallery.txt`` give an image below ``train`` or ``test`` (second version:
    ``mask_train_v2``, ``mask_test_v2``) and its identity; the third number in the name is the camera, 1 to 15. 30,248
    images of 1,041 identities to train and 2,373 others of them for validation, 11,659 queries of 3,060, 82,161 in the
    gallery.

    Args:
        root: the folder that holds the lists, or the folder ``MSMT17_V1`` or ``MSMT17_V2`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        with_val: train on the validation images too. Results are published with and without; ``all`` includes them.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder or list is missing, lines or names cannot be parsed, an image is missing, there is one
            identity only to train on, or no query has a match.
    """
    root = dataset_root(root, "MSMT17_V1", "MSMT17_V2")
    masked = (root / "mask_train_v2").is_dir()
    train, test = ("mask_train_v2", "mask_test_v2") if masked else ("train", "test")

    def read(subset: Subset) -> list[ReidImage]:
        if subset != "train":
            return _read_list(root, test, subset)
        lists = ("train", "val") if with_val or split == "all" else ("train",)
        return [image for name in lists for image in _read_list(root, train, name)]

    return IdentityFiles(root, read_split(root, split, read), cameras=15, channels=channels, reuses_names=True)


def _read_list(root: Path, folder: str, name: str) -> list[ReidImage]:
    file = root / f"list_{name}.txt"
    rows = read_fields(file, "path identity")
    names = [os.path.basename(path) for _, (path, _) in rows]
    locations = [location for location, _ in rows]
    expected = "images named <identity>_<number>_<camera, 01 to 15>_..."
    matches = match_names(file, re.compile(r"\d+_\d+_(0[1-9]|1[0-5])_.*"), names, expected, locations)
    check_files_exist(file, root, [(location, f"{folder}/{path}") for location, (path, _) in rows])
    return [
        ReidImage(os.fsencode(f"{folder}/{path}"), identity, int(match[1]) - 1)
        for (_, (path, identity)), match in zip(rows, matches, strict=True)
    ]
