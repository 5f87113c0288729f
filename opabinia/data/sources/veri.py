"""Vehicle re-identification: VeRi-776."""

from __future__ import annotations

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources.reid_base import IdentityFiles, Split, Subset, dataset_root, read_folders


@register.source
def veri(*, root: InputPath, split: Split = "train", channels: Channels = 3) -> IdentityFiles:
    """VeRi-776 (Liu et al. 2016), with names such as ``0001_c001_00016450_0.jpg``: vehicle and camera, of 20.

    37,778 images of 576 vehicles to train, 1,678 queries of 200, 11,579 in the gallery.

    Args:
        root: the folder that holds ``image_train``, ``image_query`` and ``image_test``, or the folder ``VeRi`` that
            does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder is missing or empty, names do not follow the pattern, there is one vehicle only to train
            on, or no query has a match.
    """
    folders: dict[Subset, list[str]] = {"train": ["image_train"], "query": ["image_query"], "gallery": ["image_test"]}
    return read_folders(dataset_root(root, "VeRi"), folders, split, 20, channels)
