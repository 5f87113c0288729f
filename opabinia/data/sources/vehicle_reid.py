"""Data sets of vehicles as they are published: VeRi-776, VehicleID."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Literal

from opabinia.config import register
from opabinia.data.sources.list_files import fields_of, refuse_bad, refuse_missing
from opabinia.data.sources.reid_base import Identities, Part, Picture, Split, data_root, listed, named_pictures
from opabinia.runtime.seeds import hash32

_FOLDERS: dict[Part, str] = {"train": "image_train", "query": "image_query", "gallery": "image_test"}


@register.source
def veri(*, root: Path, split: Split = "train", channels: Literal[1, 3] = 3) -> Identities:
    """VeRi-776 (Liu et al. 2016), with names such as ``0001_c001_00016450_0.jpg``: vehicle and camera, of 20.

    37,778 pictures of 576 vehicles to train, 1,678 queries of 200, 11,579 in the gallery.

    Args:
        root: the folder that holds ``image_train``, ``image_query`` and ``image_test``, or the folder ``VeRi`` that
            does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: a folder is missing or empty, names cannot be read, there is one vehicle only to train on, or no
            query has a match.
    """
    root, cameras = data_root(root, "VeRi"), 20
    listing = listed(root, split, lambda part: named_pictures(root, _FOLDERS[part], cameras))
    return Identities(root, listing, cameras=cameras, channels=channels)


@register.source
def vehicleid(
    *,
    root: Path,
    split: Split = "train",
    size: Literal[800, 1600, 2400] = 800,
    gallery_seed: int = 0,
    channels: Literal[1, 3] = 3,
) -> Identities:
    """VehicleID (Liu et al. 2016), without cameras: one picture of each vehicle is the gallery, the others are queries.

    Lines such as ``0000001 1234`` in ``train_test_split/train_list.txt`` and ``test_list_800.txt`` name the picture
    ``image/0000001.jpg`` and its vehicle. The test set of 800 vehicles has 6,493 pictures, that of 1,600 has 13,377,
    that of 2,400 has 19,777. Which picture of a vehicle is in the gallery depends on ``gallery_seed`` and the vehicle
    alone (FastReID draws anew every time); published numbers are means over ten such draws.

    Args:
        root: the folder that holds ``image`` and ``train_test_split``, or the folder ``VehicleID_V1.0`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        size: vehicles in the test set.
        gallery_seed: chooses the gallery.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: a list is missing, lines cannot be read, a picture does not exist, there is one vehicle only to
            train on, or no query has a match.
    """
    root = data_root(root, "VehicleID_V1.0")

    def read(part: Part) -> list[Picture]:
        if part == "train":
            return _of_vehicleid(root, "train_list.txt")
        pictures = _of_vehicleid(root, f"test_list_{size}.txt")
        gallery = _one_each(pictures, gallery_seed)
        return [one for one in pictures if (one in gallery) == (part == "gallery")]

    return Identities(root, listed(root, split, read), channels=channels)


def _of_vehicleid(root: Path, name: str) -> list[Picture]:
    file = root / "train_test_split" / name
    rows = fields_of(file, "picture vehicle")
    bad = [f"{vehicle} ({where})" for where, (_, vehicle) in rows if not vehicle.isdecimal()]
    refuse_bad(file, bad, len(rows), "numbers of vehicles")
    paths = [f"image/{picture}.jpg" for _, (picture, _) in rows]
    refuse_missing(file, [where for where, _ in rows], root, paths)
    pictures = [Picture(os.fsencode(path), vehicle) for path, (_, (_, vehicle)) in zip(paths, rows, strict=True)]
    return sorted(pictures)


def _one_each(pictures: list[Picture], seed: int) -> set[Picture]:
    """One picture of each vehicle."""
    of_vehicle: dict[str, list[Picture]] = defaultdict(list)
    for one in pictures:
        of_vehicle[one.identity].append(one)
    return {own[hash32(_GALLERY, seed, int(vehicle)) % len(own)] for vehicle, own in of_vehicle.items()}


_GALLERY = hash32(2016, 776)  # a seed of its own, apart from those of runs
