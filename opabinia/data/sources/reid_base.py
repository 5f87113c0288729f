"""Re-identification and retrieval: what sources of images with identities share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Channels, Sample
from opabinia.data.decoding.images import EXTENSIONS, EncodedImage, decode_sample
from opabinia.data.sources.file_names import FileNames, decode_name, short_digest, sort_names
from opabinia.data.sources.folder import existing_folder, is_image_file
from opabinia.data.sources.list_files import raise_for_invalid

Subset = Literal["train", "query", "gallery"]
"""The parts that a dataset divides its images into."""

Split = Literal["train", "test", "query", "gallery", "all"]
"""The images of a source: ``test`` is query and gallery, ``all`` everything there is to train on."""

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


class IdentityImages:
    """Images with identities as labels (:class:`opabinia.contracts.IdentitySource`); subclasses define
    ``__getitem__``.

    A sample's id is its path below the root.

    Args:
        split: the images.
        cameras: number of cameras in the whole dataset, whatever the split; 0 if unknown.
        views: number of viewpoints, likewise.
        channels: 3 for color, 1 for gray.
        reuses_names: the test set uses the names of training identities for other ones.

    Attributes:
        labels, cameras, views: of each image (int64, N); the latter two None if unknown.
        queries: as in the split.
        camera_count, view_count: the arguments ``cameras`` and ``views``.
        reuses_names: as given.
    """

    def __init__(
        self, split: ReidSplit, *, cameras: int = 0, views: int = 0, channels: Channels = 3, reuses_names: bool = False
    ) -> None:
        images = split.images
        label_of = {name: label for label, name in enumerate(split.classes)}
        self.channels: Channels = channels
        self.classes = tuple(split.classes)
        self.labels = np.array([label_of[image.identity] for image in images], dtype=np.int64)
        self.cameras = np.array([image.camera for image in images], dtype=np.int64) if cameras else None
        self.views = np.array([image.view for image in images], dtype=np.int64) if views else None
        self.queries = split.queries
        self.camera_count, self.view_count = cameras, views
        self.reuses_names = reuses_names
        self._names = FileNames([image.name for image in images])

    def __len__(self) -> int:
        return len(self._names)

    def _sample(self, image: Any, index: int) -> Sample:
        columns = {"camera": self.cameras, "view": self.views, "query": self.queries}
        known = {key: column[index].item() for key, column in columns.items() if column is not None}
        return {"image": image, "label": int(self.labels[index]), "id": self.id(index), **known}

    def id(self, index: int) -> str:
        """Return the path of an image below the root."""
        return decode_name(self._names[index])

    def fingerprint(self) -> str:
        """Return a text that changes with the identities, the names, cameras, views and queries, and their order."""
        contents = [self._names.tobytes(), "\0".join(self.classes).encode()]
        for name in ("labels", "cameras", "views", "queries"):
            column = getattr(self, name)
            contents += [name.encode(), b"" if column is None else column.tobytes()]
        return f"{len(self)} pictures of {len(self.classes)} identities, {short_digest(*contents)}"


class IdentityFiles(IdentityImages):
    """Image files with identities as labels. Arguments are those of :class:`IdentityImages`, and the folder ``root``
    that names are relative to."""

    def __init__(self, root: Path, split: ReidSplit, **options: Any) -> None:
        super().__init__(split, **options)
        self.root = root

    def __getitem__(self, index: int) -> Sample:
        return decode_sample(self.encoded(index))

    def encoded(self, index: int) -> Sample:
        """Return the sample with its image not yet decoded."""
        return self._sample(EncodedImage.file(self.path(index), self.channels), index)

    def path(self, index: int) -> bytes:
        """Return the path of an image."""
        return os.path.join(os.fsencode(self.root), self._names[index])

    def paths(self, index: int) -> Sequence[bytes]:
        """Return the files of a sample."""
        return (self.path(index),)


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


def read_folders(
    root: Path,
    folders: Mapping[Subset, Sequence[str]],
    split: Split,
    cameras: int,
    channels: Channels,
    distractors: Collection[str] = (),
) -> IdentityFiles:
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

    return IdentityFiles(root, read_split(root, split, read, distractors), cameras=cameras, channels=channels)


def _read_folder(root: Path, folder: str, cameras: int) -> list[ReidImage]:
    """Read the images of one folder; hidden files and subfolders are ignored."""
    path = existing_folder(root / folder)
    with os.scandir(os.fsencode(path)) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith(b".") and is_image_file(entry.name))
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
