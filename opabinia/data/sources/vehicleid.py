"""Vehicle re-identification: VehicleID."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Literal

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources.list_files import check_files_exist, raise_for_invalid, read_fields
from opabinia.data.sources.reid_base import IdentityFiles, ReidImage, Split, Subset, dataset_root, read_split
from opabinia.runtime.seeds import hash32


@register.source
def vehicleid(
    *,
    root: InputPath,
    split: Split = "train",
    test_size: Literal[800, 1600, 2400] = 800,
    gallery_seed: int = 0,
    channels: Channels = 3,
) -> IdentityFiles:
    """VehicleID (Liu et al. 2016), without cameras: one image of each vehicle is the gallery, the others are queries.

    Lines such as ``0000001 1234`` in ``train_test_split/train_list.txt`` and ``test_list_800.txt`` give the image
    ``image/0000001.jpg`` and its vehicle. The test set of 800 vehicles has 6,493 images, that of 1,600 has 13,377, that
    of 2,400 has 19,777. The gallery depends on ``gallery_seed`` and the vehicle alone (FastReID draws it again every
    time); published numbers are means over ten galleries.

    Args:
        root: the folder that holds ``image`` and ``train_test_split``, or the folder ``VehicleID_V1.0`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        test_size: number of vehicles in the test set.
        gallery_seed: seed of the choice of gallery images.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a list is missing, lines cannot be parsed, an image is missing, there is one vehicle only to train
            on, or no query has a match.
    """
    root = dataset_root(root, "VehicleID_V1.0")

    def read(subset: Subset) -> list[ReidImage]:
        if subset == "train":
            return _read_list(root, "train_list.txt")
        images = _read_list(root, f"test_list_{test_size}.txt")
        by_vehicle: dict[str, list[ReidImage]] = defaultdict(list)
        for image in images:
            by_vehicle[image.identity].append(image)
        key = hash32(2016, 776)  # fixed, so that a run's seed does not change the gallery
        gallery = {group[hash32(key, gallery_seed, int(vehicle)) % len(group)] for vehicle, group in by_vehicle.items()}
        return [image for image in images if (image in gallery) == (subset == "gallery")]

    return IdentityFiles(root, read_split(root, split, read), channels=channels)


def _read_list(root: Path, name: str) -> list[ReidImage]:
    file = root / "train_test_split" / name
    rows = read_fields(file, "image vehicle")
    invalid = [f"{vehicle} ({location})" for location, (_, vehicle) in rows if not re.fullmatch(r"\d{1,18}", vehicle)]
    raise_for_invalid(file, invalid, len(rows), "vehicle numbers")
    check_files_exist(file, root, [(location, f"image/{image}.jpg") for location, (image, _) in rows])
    return sorted(ReidImage(os.fsencode(f"image/{image}.jpg"), vehicle) for _, (image, vehicle) in rows)
