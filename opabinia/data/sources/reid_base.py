"""Re-identification and retrieval: what sources of images with identities share."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Channels, SourceInfo
from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.file_search import list_images
from opabinia.data.sources.file_names import decode_name, sort_names
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.list_files import check_files_exist, raise_for_invalid
from opabinia.data.sources.named import ImageFiles

Subset = Literal["train", "query", "gallery"]
"""The parts that a dataset divides its images into."""

Split = Literal["train", "test", "query", "gallery", "all"]
"""The images of a source: ``test`` is query and gallery, ``all`` everything there is to train on."""

OpenSplit = Literal["train", "test", "all"]
"""The images of a source without a query set: ``all`` is everything, to train on."""

MARKET_FOLDERS: dict[Subset, str] = {"train": "bounding_box_train", "query": "query", "gallery": "bounding_box_test"}


class ReidImage(NamedTuple):
    """An image as a dataset lists it.

    Attributes:
        name: path below the root, as the file system has it.
        identity: of the person or object.
        camera: from 0; None if unknown.
        view: viewpoint, from 0; None if unknown.
    """

    name: bytes
    identity: str
    camera: int | None = None
    view: int | None = None


class ReidSplit(NamedTuple):
    """The images of a split.

    Attributes:
        images: in the order of the source.
        classes: the identities in the order of their labels.
        queries: which images are queries (bool, N); None if there is no query set.
    """

    images: Sequence[ReidImage]
    classes: Sequence[str]
    queries: NDArray[np.bool_] | None = None


def identity_info(
    split: ReidSplit, *, cameras: int = 0, views: int = 0, channels: Channels = 3, reuses_names: bool = False
) -> SourceInfo:
    """Return the facts about images with identities as labels.

    Args:
        split: the images.
        cameras: number of cameras in the whole dataset, whatever the split; 0 if unknown.
        views: number of viewpoints, likewise.
        channels: 3 for color, 1 for gray.
        reuses_names: the test set uses the names of training identities for other ones.
    """
    label_of = {name: label for label, name in enumerate(split.classes)}
    return SourceInfo(
        channels=channels,
        classes=tuple(split.classes),
        labels=np.array([label_of[image.identity] for image in split.images], dtype=np.int64),
        identities=True,
        reuses_names=reuses_names,
        camera_count=cameras,
        view_count=views,
        cameras=np.array([image.camera for image in split.images], dtype=np.int64) if cameras else None,
        views=np.array([image.view for image in split.images], dtype=np.int64) if views else None,
        queries=split.queries,
    )


def identity_files(root: Path, split: ReidSplit, **facts: Any) -> ImageFiles:
    """Return image files with identities as labels; names are relative to ``root``, ``facts`` as in
    :func:`identity_info`."""
    return ImageFiles(root, [image.name for image in split.images], identity_info(split, **facts))


# --- splits -----------------------------------------------------------------------------------------------------------


def read_split(
    where: object, split: Split, read: Callable[[Subset], Sequence[ReidImage]], distractors: Collection[str] = ()
) -> ReidSplit:
    """Return a split of a dataset with separate query and gallery sets.

    Identities are sorted, by value if all are integers. ``query`` and ``gallery`` have the labels of the whole test
    set. In ``all`` the identities of the test set follow the others, as ``test/0007``, whether or not training uses the
    same names (FastReID's COMBINEALL). Only ``test``, ``query`` and ``gallery`` have queries.

    Args:
        where: the beginning of errors, such as the root.
        split: the split.
        read: returns the images of a subset, without junk, sorted.
        distractors: identities that stand for no particular person; they are not trained on.

    Raises:
        ValueError: there is one identity only to train on, or no query has a match in the gallery.
    """
    if split in ("train", "all"):
        images = [image for image in read("train") if image.identity not in distractors]
        classes = sort_names({image.identity for image in images})
        if split == "all":
            test = [image for subset in _TEST for image in read(subset) if image.identity not in distractors]
            images += [image._replace(identity=f"test/{image.identity}") for image in test]
            classes += [f"test/{name}" for name in sort_names({image.identity for image in test})]
        check_identities(where, classes)
        return ReidSplit(images, classes)
    subsets = {subset: read(subset) for subset in _TEST}
    _check_matches(where, subsets["query"], subsets["gallery"])
    classes = sort_names({image.identity for subset in subsets.values() for image in subset})
    chosen = [subset for subset in _TEST if split in ("test", subset)]
    queries = np.repeat([subset == "query" for subset in chosen], [len(subsets[subset]) for subset in chosen])
    return ReidSplit([image for subset in chosen for image in subsets[subset]], classes, queries)


_TEST: tuple[Subset, Subset] = ("query", "gallery")


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
        check_pairs(where, list(counts.values()))
    else:
        check_identities(where, classes)
    return ReidSplit(images, classes)


def check_pairs(where: object, counts: Sequence[int]) -> None:
    """Raise ValueError if no identity has two images; ``counts`` are their numbers of images."""
    if max(counts, default=0) < 2:
        raise ValueError(f"{where}: none of {len(counts)} test identities has 2 images, so no query has a match")


def check_identities(where: object, classes: Sequence[str]) -> None:
    """Raise ValueError if there are fewer than two identities to train on."""
    if len(classes) < 2:
        present = f"only the identity {classes[0]!r}" if classes else "no identity"
        raise ValueError(f"{where} has {present} to train on; at least 2 are needed")


def _check_matches(where: object, query: Sequence[ReidImage], gallery: Sequence[ReidImage]) -> None:
    """Raise ValueError if no identity of the queries is in the gallery, or only by images of the query's camera."""
    cameras: dict[str, set[int | None]] = {}
    for image in gallery:
        cameras.setdefault(image.identity, set()).add(image.camera)
    if not any(image.identity in cameras for image in query):
        wanted, present = (", ".join(sort_names({image.identity for image in part})[:3]) for part in (query, gallery))
        raise ValueError(
            f"{where}: none of the identities of the queries ({wanted} ...) is in the gallery ({present} ...); "
            "query and gallery must show the same identities"
        )
    if not any(image.camera is None or cameras.get(image.identity, set()) - {image.camera} for image in query):
        raise ValueError(
            f"{where}: the gallery shows the identities of the queries by the query's own camera only, and such images "
            "are ignored; query and gallery must show them by different cameras"
        )


# --- folders and files ------------------------------------------------------------------------------------------------


def dataset_root(root: Path, *names: str) -> Path:
    """Return the folder of a dataset: the first of ``names`` in ``root``, where its archive is unpacked, or ``root``.

    Raises:
        ValueError: there is no such folder.
    """
    root = existing_folder(root)
    return next((root / name for name in names if (root / name).is_dir()), root)


def existing_images(file: Path, root: Path, rows: Sequence[tuple[str, str, str, int | None]]) -> list[ReidImage]:
    """Return the images of a list, of which each row has the location in it, path, identity and camera.

    Raises:
        ValueError: images are missing, or listed several times; the text names file and location.
    """
    check_files_exist(file, root, [(location, path) for location, path, *_ in rows])
    return [ReidImage(os.fsencode(path), identity, camera) for _, path, identity, camera in rows]


def read_folders(
    root: Path,
    folders: Mapping[Subset, Sequence[str]],
    split: Split,
    cameras: int,
    channels: Channels,
    distractors: Collection[str] = (),
) -> ImageFiles:
    """Return a source of images whose names begin with identity and camera; images of identity -1 (junk) are dropped.

    Args:
        root: the folder that paths are relative to.
        folders: the folders of each subset.
        split: the split.
        cameras: number of cameras; names count them from 1.
        channels: 3 for color, 1 for gray; images are converted.
        distractors: see :func:`read_split`.

    Raises:
        ValueError: a folder is missing or has no images but junk, names do not follow the pattern, or see
            :func:`read_split`.
    """

    def read(subset: Subset) -> list[ReidImage]:
        return [image for folder in folders[subset] for image in _read_folder(root, folder, cameras)]

    return identity_files(root, read_split(root, split, read, distractors), cameras=cameras, channels=channels)


def _read_folder(root: Path, folder: str, cameras: int) -> list[ReidImage]:
    """Read the images of one folder; hidden files and subfolders are ignored."""
    path = existing_folder(root / folder)
    names = list_images(path)
    if not names:
        raise ValueError(f"{path} has no images ({', '.join(EXTENSIONS)})")
    images: list[ReidImage] = []
    invalid: list[str] = []
    for name in names:
        match = re.match(r"(-1|\d+)_c(\d+)", decode_name(name))
        if match is None or not 1 <= int(match[2]) <= cameras:
            invalid.append(decode_name(name))
        elif match[1] != "-1":
            images.append(ReidImage(os.fsencode(folder) + b"/" + name, f"{int(match[1]):04d}", int(match[2]) - 1))
    expected = f"<identity>_c<camera, 1 to {cameras}>..., such as 0002_c1s1_000451_03.jpg"
    raise_for_invalid(path, invalid, len(names), expected)
    if not images:
        raise ValueError(f"{path} has only junk images (identity -1)")
    return images
