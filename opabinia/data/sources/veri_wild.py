"""Vehicle re-identification: VeRi-Wild."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources.list_files import check_files_exist, raise_for_invalid, read_fields, read_lines
from opabinia.data.sources.reid_base import IdentityFiles, ReidImage, Split, Subset, dataset_root, read_split

CAMERAS = 174


@register.source
def veri_wild(
    *,
    root: InputPath,
    split: Split = "train",
    test_size: Literal[3000, 5000, 10000] = 3000,
    channels: Channels = 3,
) -> IdentityFiles:
    """VeRi-Wild (Lou et al. 2019): vehicles seen by 174 cameras in a month.

    Lines such as ``00001/000001`` in ``train_test_split/train_list.txt``, ``test_3000_query.txt`` and ``test_3000.txt``
    name a vehicle and an image of it, ``images/00001/000001.jpg``; lines such as ``00001/000001;22;...`` in
    ``vehicle_info.txt`` give its camera. 277,797 images of 30,671 vehicles to train; the test set of 3,000 vehicles has
    41,861 images, that of 5,000 has 69,389, that of 10,000 has 138,517.

    Args:
        root: the folder that holds ``images`` and ``train_test_split``, or the folder ``VERI-Wild`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        test_size: number of vehicles in the test set.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a list is missing, lines cannot be parsed, an image is missing or has no camera, there is one
            vehicle only to train on, or no query has a match.
    """
    root = dataset_root(root, "VERI-Wild", "VeRI-Wild")
    cameras = _read_cameras(root / "train_test_split" / "vehicle_info.txt")
    names = {"train": "train_list", "query": f"test_{test_size}_query", "gallery": f"test_{test_size}"}

    def read(subset: Subset) -> list[ReidImage]:
        return _read_list(root, root / "train_test_split" / f"{names[subset]}.txt", cameras)

    return IdentityFiles(root, read_split(root, split, read), cameras=CAMERAS, channels=channels)


def _read_cameras(file: Path) -> dict[str, int]:
    """Return the camera of each image, from 0, by ``vehicle/image``."""
    cameras: dict[str, int] = {}
    invalid: list[str] = []
    lines = read_lines(file)[1:]  # the first line names the columns
    for location, line in lines:
        image, *fields = line.split(";")
        if fields and re.fullmatch(r"\d{1,3}", fields[0]) and 1 <= int(fields[0]) <= CAMERAS:
            cameras[image] = int(fields[0]) - 1
        else:
            invalid.append(f"{line[:80]} ({location})")
    raise_for_invalid(file, invalid, len(lines), f"vehicle/image;camera, 1 to {CAMERAS};...")
    return cameras


def _read_list(root: Path, file: Path, cameras: dict[str, int]) -> list[ReidImage]:
    rows = [(location, name.removesuffix(".jpg")) for location, (name,) in read_fields(file, "vehicle/image")]
    unknown = [f"{name} ({location})" for location, name in rows if name not in cameras]
    raise_for_invalid(file, unknown, len(rows), "images of vehicle_info.txt")
    check_files_exist(file, root, [(location, f"images/{name}.jpg") for location, name in rows])
    return [ReidImage(os.fsencode(f"images/{name}.jpg"), name.partition("/")[0], cameras[name]) for _, name in rows]
