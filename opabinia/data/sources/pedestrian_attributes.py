"""Attributes of pedestrians: PA-100K, and the attributes of Market-1501 and DukeMTMC-reID."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources.annotation_values import errors_in
from opabinia.data.sources.list_files import check_files_exist, existing_file
from opabinia.data.sources.named import ImageFiles
from opabinia.data.sources.reid_base import MARKET_FOLDERS, dataset_root, read_folders
from opabinia.data.sources.table import label_info

AttributeSplit = Literal["train", "test"]


@register.source
def pa100k(*, root: InputPath, split: Literal["train", "val", "test"] = "train", channels: Channels = 3) -> ImageFiles:
    """PA-100K (Liu et al. 2017): 100,000 pedestrians with 26 attributes, multi-label.

    ``annotation.mat`` lists the names of the images in the folder ``data`` and their labels: 80,000 to train, 10,000
    each to validate and to test.

    Args:
        root: the folder that holds both, or the folder ``PA-100K`` that does.
        split: ``train``, ``val`` or ``test``.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the annotations are missing or malformed, or an image is missing.
    """
    root = dataset_root(root, "PA-100K")
    file = root / "annotation.mat"
    content = read_mat(file)
    with errors_in(f"{file} has no images, labels and attributes of PA-100K: ", KeyError, ValueError, TypeError):
        names = [f"data/{name}" for name in np.atleast_1d(content[f"{split}_images_name"])]
        labels = np.asarray(content[f"{split}_label"], np.float32).reshape(len(names), -1)
        classes = [str(name) for name in np.atleast_1d(content["attributes"])]
    check_files_exist(file, root, [(f"{split} {index}", name) for index, name in enumerate(names)])
    return ImageFiles(root, [os.fsencode(name) for name in names], label_info(classes, labels, channels))


@register.source
def market1501_attributes(*, root: InputPath, split: AttributeSplit = "train", channels: Channels = 3) -> ImageFiles:
    """Attributes of the identities of Market-1501 (Lin et al. 2019), multi-label.

    ``market_attribute.mat`` has the attributes of each identity. Those of two values are one class; others (age) have a
    class for each value, such as ``age=2``. Distractors and junk are dropped.

    Args:
        root: the folder of ``market1501`` with ``market_attribute.mat``.
        split: ``train`` or ``test`` (the gallery).
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder or the annotations are missing or malformed, or an identity has no attributes.
    """
    return _identity_attributes(dataset_root(root, "Market-1501-v15.09.15"), "market_attribute", 6, split, channels)


@register.source
def dukemtmc_attributes(*, root: InputPath, split: AttributeSplit = "train", channels: Channels = 3) -> ImageFiles:
    """Attributes of the identities of DukeMTMC-reID (Lin et al. 2019), multi-label: ``duke_attribute.mat``.

    Args:
        root: the folder of ``dukemtmc`` with ``duke_attribute.mat``.
        split: ``train`` or ``test`` (the gallery).
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: see ``market1501_attributes``.
    """
    return _identity_attributes(dataset_root(root, "DukeMTMC-reID"), "duke_attribute", 8, split, channels)


def _identity_attributes(root: Path, name: str, cameras: int, split: AttributeSplit, channels: Channels) -> ImageFiles:
    """Return the images of a dataset in Market-1501's layout with the attributes of their identities."""
    file = root / f"{name}.mat"
    subset: Literal["train", "gallery"] = "train" if split == "train" else "gallery"
    folders = {subset: [folder] for subset, folder in MARKET_FOLDERS.items()}
    images = read_folders(root, folders, subset, cameras, channels, {"0000"})
    where = f"{file} has no attributes by identity ({name}.{split}): "
    with errors_in(where, KeyError, ValueError, TypeError, AttributeError):
        tables = read_mat(file)[name]
        table = tables[split]
        rows = {f"{int(identity):04d}": row for row, identity in enumerate(np.atleast_1d(table["image_index"]))}
        # Both splits must give the same classes.
        counts = {key: max(int(np.max(part[key])) for part in tables.values()) for key in table if key != "image_index"}
        columns: dict[str, NDArray[Any]] = {}
        for key, values in sorted(counts.items()):
            wanted = {key: 2} if values == 2 else {f"{key}={value}": value for value in range(1, values + 1)}
            columns |= {label: np.atleast_1d(table[key]) == value for label, value in wanted.items()}
        by_identity = np.stack(list(columns.values()), 1).astype(np.float32)
    identities = [images.classes[label] for label in np.asarray(images.info.labels)]
    kept = [index for index, identity in enumerate(identities) if identity != "0000"]
    if unknown := sorted({identities[index] for index in kept} - set(rows)):
        raise ValueError(f"{file} has no attributes of the identities {', '.join(unknown[:3])} in {split}")
    labels = by_identity[[rows[identities[index]] for index in kept]]
    return ImageFiles(root, [images.names[index] for index in kept], label_info(list(columns), labels, channels))


def read_mat(file: Path) -> dict[str, Any]:
    """Read a MATLAB file (version 7 or before) as nested dictionaries.

    Raises:
        ValueError: it is missing, or no such file.
    """
    from scipy.io import loadmat  # slow to import

    existing_file(file)
    # A damaged file can fail in any way.
    with errors_in(f"{file} is no MATLAB file of version 7 or before: ", Exception):
        content: dict[str, Any] = loadmat(str(file), simplify_cells=True)
    return content
