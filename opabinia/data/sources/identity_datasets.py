"""Published datasets of re-identification and image retrieval: each function reads the layout of one of them."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from annotated_types import Ge

from opabinia.config import register
from opabinia.contracts import Channels, Count, InputPath
from opabinia.data.file_search import find_files
from opabinia.data.sources.file_names import decode_name
from opabinia.data.sources.folder import ImageFolder, existing_folder, list_class_folders
from opabinia.data.sources.list_files import match_names, raise_for_invalid, read_fields, read_lines
from opabinia.data.sources.named import ImageFiles
from opabinia.data.sources.reid_base import (
    MARKET_FOLDERS,
    OpenSplit,
    ReidImage,
    Split,
    Subset,
    check_identities,
    check_pairs,
    dataset_root,
    existing_images,
    identity_files,
    open_split,
    read_folders,
    read_split,
)
from opabinia.runtime.seeds import hash32

# --- names of files with identity and camera --------------------------------------------------------------------------


@register.source
def market1501(
    *,
    root: InputPath,
    split: Split = "train",
    cameras: Count = 6,
    more_distractors: bool = False,
    channels: Channels = 3,
) -> ImageFiles:
    """Market-1501 (Zheng et al. 2015), and other datasets with its layout and file names.

    The folders ``bounding_box_train``, ``query`` and ``bounding_box_test`` hold images whose names begin with identity
    and camera, such as ``0002_c1s1_000451_03.jpg``. Images of identity -1 (junk) are dropped; those of identity 0
    (distractors) are in the gallery and never trained on. 12,936 images of 751 identities to train, 3,368 queries of
    750, 15,913 in the gallery.

    Args:
        root: the folder that holds these three, or the folder ``Market-1501-v15.09.15`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        cameras: number of cameras. For your own data in this naming, the largest number after ``c``.
        more_distractors: add the folder ``images`` (the 500,000 distractors) to the gallery.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder is missing or empty, names do not follow the pattern, there is one identity only to train
            on, or no query has a match.
    """
    folders = {subset: [name] for subset, name in MARKET_FOLDERS.items()}
    folders["gallery"] += ["images"] * more_distractors
    return read_folders(dataset_root(root, "Market-1501-v15.09.15"), folders, split, cameras, channels, {"0000"})


@register.source
def dukemtmc(*, root: InputPath, split: Split = "train", cameras: Count = 8, channels: Channels = 3) -> ImageFiles:
    """DukeMTMC-reID (Zheng et al. 2017), in the layout of Market-1501, with names like ``0005_c2_f0046985.jpg``.

    16,522 images of 702 identities to train, 2,228 queries of 702, 17,661 in the gallery. Its authors have withdrawn
    the dataset; this source reads other data with this naming, too.

    Args:
        root: the folder that holds ``bounding_box_train``, ``query`` and ``bounding_box_test``, or the folder
            ``DukeMTMC-reID`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        cameras: number of cameras.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: see ``market1501``.
    """
    folders = {subset: [name] for subset, name in MARKET_FOLDERS.items()}
    return read_folders(dataset_root(root, "DukeMTMC-reID"), folders, split, cameras, channels, {"0000"})


@register.source
def veri(*, root: InputPath, split: Split = "train", channels: Channels = 3) -> ImageFiles:
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


@register.source
def gallery_folders(
    *,
    root: InputPath,
    train: str = "train",
    query: str = "query",
    gallery: str = "gallery",
    split: Split = "train",
    channels: Channels = 3,
) -> ImageFiles:
    """Images with identities in three folders, of training, queries and gallery: in a folder for each identity
    (``query/0007/1.jpg``), or with names that begin with it (``query/0007_c2_1.jpg``).

    If all names have a camera (``_c2``, ``-cam2``), images of an identity by the query's own camera are ignored.

    Args:
        root: the folder that holds the three.
        train: the folder of images to train on.
        query: the folder of queries.
        gallery: the folder that is searched.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder is missing or empty, a name has no identity, there is one identity only to train on, or no
            query has a match.
    """
    root = existing_folder(root)
    folders: dict[Subset, str] = {"train": train, "query": query, "gallery": gallery}
    images = {subset: _identity_images(root, folder) for subset, folder in folders.items()}
    seen = {image.camera for of_subset in images.values() for image in of_subset}
    cameras = max(camera or 0 for camera in seen) + 1 if None not in seen and len(seen) > 1 else 0
    if not cameras:
        images = {subset: [image._replace(camera=None) for image in found] for subset, found in images.items()}
    return identity_files(root, read_split(root, split, images.__getitem__), cameras=cameras, channels=channels)


_IDENTITY = re.compile(r"(.*?\d+)[_-].*")
_CAMERA = re.compile(r"[_-]c(?:am)?_?(\d{1,6})")


def _identity_images(root: Path, folder: str) -> list[ReidImage]:
    """Return the images below a folder, with the identities and cameras in their paths."""
    existing_folder(root / folder)
    paths = [name.split(b"/") for name in find_files(root, folder)]
    depth = folder.count("/") + 1
    flat = [decode_name(path[-1]) for path in paths if len(path) == depth + 1]
    expected = "in a folder of an identity, or named <identity>_..., such as 0002_c1_3.jpg"
    match_names(root / folder, _IDENTITY, flat, expected)
    images = []
    for path in paths:
        name = decode_name(path[-1])
        match, camera = _IDENTITY.fullmatch(name), _CAMERA.search(name)
        identity = match[1] if match is not None and len(path) == depth + 1 else decode_name(path[depth])
        images.append(ReidImage(b"/".join(path), identity, int(camera[1]) if camera else None))
    return images


# --- lists of persons -------------------------------------------------------------------------------------------------


@register.source
def msmt17(*, root: InputPath, split: Split = "train", with_val: bool = False, channels: Channels = 3) -> ImageFiles:
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
    pattern = re.compile(r"\d+_\d+_(0[1-9]|1[0-5])_.*")

    def read_list(folder: str, name: str) -> list[ReidImage]:
        file = root / f"list_{name}.txt"
        rows = read_fields(file, "path identity")
        names = [os.path.basename(path) for _, (path, _) in rows]
        expected = "images named <identity>_<number>_<camera, 01 to 15>_..."
        matches = match_names(file, pattern, names, expected, [location for location, _ in rows])
        entries = zip(rows, matches, strict=True)
        return existing_images(
            file,
            root,
            [(place, f"{folder}/{path}", identity, int(match[1]) - 1) for (place, (path, identity)), match in entries],
        )

    def read(subset: Subset) -> list[ReidImage]:
        if subset != "train":
            return read_list(test, subset)
        lists = ("train", "val") if with_val or split == "all" else ("train",)
        return [image for name in lists for image in read_list(train, name)]

    return identity_files(root, read_split(root, split, read), cameras=15, channels=channels, reuses_names=True)


@register.source
def cuhk03(
    *,
    root: InputPath,
    split: Split = "train",
    boxes: Literal["labeled", "detected"] = "labeled",
    channels: Channels = 3,
) -> ImageFiles:
    """CUHK03 (Li et al. 2014) by the new protocol (Zhong et al. 2017), as torchreid unpacks its archive.

    The folder ``images_labeled`` holds images named by pair of cameras, person, side and number,
    ``1_001_1_01.png``; ``splits_new_labeled.json`` is a list with one object, whose ``train``, ``query`` and
    ``gallery`` list them as ``[path, identity, camera]``. Only the name of the file counts: ``1_001`` is the identity,
    and the side its camera, of two. Labeled boxes: 7,368 images of 767 identities to train, 1,400 queries of 700, 5,328
    in the gallery; detected boxes: 7,365, 1,400 and 5,332.

    Args:
        root: the folder that holds both, or the folder ``cuhk03`` that does.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        boxes: labeled by people, or detected (``images_detected``, ``splits_new_detected.json``).
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the list is missing or malformed, names cannot be parsed, an image is missing, there is one identity
            only to train on, or no query has a match.
    """
    root = dataset_root(root, "cuhk03")
    file = root / f"splits_new_{boxes}.json"
    if not file.is_file():
        raise ValueError(
            f"there is no file {file}; torchreid and FastReID write it, and the images, from cuhk-03.mat, which the "
            "source cuhk03_archive reads"
        )
    try:
        (content,) = json.loads(file.read_text(encoding="utf-8"))
        subsets = {name: [os.path.basename(entry[0]) for entry in content[name]] for name in get_args(Subset)}
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        expected = 'expected [{"train": [[path, identity, camera], ...], "query": ..., "gallery": ...}]'
        raise ValueError(f"{file} cannot be read ({type(error).__name__}: {error}); {expected}") from error
    pattern = re.compile(r"(\d+_\d+)_([12])_\d+\.\w+")

    def read(subset: Subset) -> list[ReidImage]:
        expected = "named <pair>_<person>_<side, 1 or 2>_<number>, as 1_001_1_01.png"
        matches = match_names(f"{file}, {subset}", pattern, subsets[subset], expected)
        rows = [
            (f"{subset} {index}", f"images_{boxes}/{match[0]}", match[1], int(match[2]) - 1)
            for index, match in enumerate(matches)
        ]
        return existing_images(file, root, rows)

    return identity_files(root, read_split(root, split, read), cameras=2, channels=channels)


# --- lists of vehicles ------------------------------------------------------------------------------------------------

_WILD_CAMERAS = 174


@register.source
def veri_wild(
    *,
    root: InputPath,
    split: Split = "train",
    test_size: Literal[3000, 5000, 10000] = 3000,
    channels: Channels = 3,
) -> ImageFiles:
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
    cameras = _read_wild_cameras(root / "train_test_split" / "vehicle_info.txt")
    names = {"train": "train_list", "query": f"test_{test_size}_query", "gallery": f"test_{test_size}"}

    def read(subset: Subset) -> list[ReidImage]:
        file = root / "train_test_split" / f"{names[subset]}.txt"
        rows = [(location, name.removesuffix(".jpg")) for location, (name,) in read_fields(file, "vehicle/image")]
        unknown = [f"{name} ({location})" for location, name in rows if name not in cameras]
        raise_for_invalid(file, unknown, len(rows), "images of vehicle_info.txt")
        images = [(place, f"images/{name}.jpg", name.partition("/")[0], cameras[name]) for place, name in rows]
        return existing_images(file, root, images)

    return identity_files(root, read_split(root, split, read), cameras=_WILD_CAMERAS, channels=channels)


def _read_wild_cameras(file: Path) -> dict[str, int]:
    """Return the camera of each image, from 0, by ``vehicle/image``."""
    cameras: dict[str, int] = {}
    invalid: list[str] = []
    lines = read_lines(file)[1:]  # the first line names the columns
    for location, line in lines:
        image, *fields = line.split(";")
        if fields and re.fullmatch(r"\d{1,3}", fields[0]) and 1 <= int(fields[0]) <= _WILD_CAMERAS:
            cameras[image] = int(fields[0]) - 1
        else:
            invalid.append(f"{line[:80]} ({location})")
    raise_for_invalid(file, invalid, len(lines), f"vehicle/image;camera, 1 to {_WILD_CAMERAS};...")
    return cameras


@register.source
def vehicleid(
    *,
    root: InputPath,
    split: Split = "train",
    test_size: Literal[800, 1600, 2400] = 800,
    gallery_seed: int = 0,
    channels: Channels = 3,
) -> ImageFiles:
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

    def read_list(name: str) -> list[ReidImage]:
        file = root / "train_test_split" / name
        rows = read_fields(file, "image vehicle")
        invalid = [f"{vehicle} ({place})" for place, (_, vehicle) in rows if not re.fullmatch(r"\d{1,18}", vehicle)]
        raise_for_invalid(file, invalid, len(rows), "vehicle numbers")
        images = [(place, f"image/{image}.jpg", vehicle, None) for place, (image, vehicle) in rows]
        return sorted(existing_images(file, root, images))

    def read(subset: Subset) -> list[ReidImage]:
        if subset == "train":
            return read_list("train_list.txt")
        images = read_list(f"test_list_{test_size}.txt")
        by_vehicle: dict[str, list[ReidImage]] = defaultdict(list)
        for image in images:
            by_vehicle[image.identity].append(image)
        key = hash32(2016, 776)  # fixed, so that a run's seed does not change the gallery
        gallery = {group[hash32(key, gallery_seed, int(vehicle)) % len(group)] for vehicle, group in by_vehicle.items()}
        return [image for image in images if (image in gallery) == (subset == "gallery")]

    return identity_files(root, read_split(root, split, read), channels=channels)


# --- products and classes ---------------------------------------------------------------------------------------------


@register.source
def in_shop(*, root: InputPath, split: Split = "train", channels: Channels = 3) -> ImageFiles:
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
    invalid = [place for place, fields in rows if len(fields) != 3 or fields[2] not in get_args(Subset)]
    raise_for_invalid(file, invalid, len(rows), "an image, its piece and train, query or gallery")
    images: dict[str, list[ReidImage]] = defaultdict(list)
    listed = existing_images(file, root, [(place, path, item, None) for place, (path, item, _) in rows])
    for image, (_, (*_, status)) in zip(listed, rows, strict=True):
        images[status].append(image)
    return identity_files(root, read_split(root, split, images.__getitem__), channels=channels)


@register.source
def online_products(*, root: InputPath, split: OpenSplit = "train", channels: Channels = 3) -> ImageFiles:
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
    header = "image_id class_id super_class_id path"
    images: list[ReidImage] = []
    for name in ("train", "test"):
        if split in (name, "all"):
            file = root / f"Ebay_{name}.txt"
            rows = [row for row in read_fields(file, header) if row[1] != header.split()]
            listed = [(place, path, product, None) for place, (_, product, _, path) in rows]
            images += existing_images(file, root, listed)
    return identity_files(root, open_split(root, split, images), channels=channels)


@register.source
def class_folders(
    *,
    root: InputPath,
    split: OpenSplit = "train",
    train_classes: Annotated[int, Ge(0)] | None = None,
    classes: list[str] | None = None,
    channels: Channels = 3,
) -> ImageFolder:
    """Images in one folder per class; the first classes are for training, the others for testing.

    This is the split of CUB-200-2011 (Wah et al. 2011; the folder ``images``: 5,864 images of the first 100 species to
    train, 5,924 of the others) and Cars196 (98 of 196) in metric learning since Song et al. 2016. Folders are sorted by
    name; ``001.Black_footed_Albatross`` comes first. Each test image is a query for the others.

    Args:
        root: the folder that holds the class folders, which are searched like those of ``image_folder``.
        split: ``train``, ``test``, or ``all`` to train on everything.
        train_classes: number of classes for training; half of them, rounded down, when not given. 0: all are for
            testing.
        classes: folders to use; all of them, sorted, when not given.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the root or a class is missing or has no images, ``train_classes`` leaves none for testing, there
            is one class only to train on, or none of the test classes has two images.
    """
    root = existing_folder(root, "root is the folder that holds the class folders")
    names = list_class_folders(root) if classes is None else classes
    count = len(names) // 2 if train_classes is None else train_classes
    if count >= len(names):
        raise ValueError(f"train_classes: {count} of the {len(names)} classes in {root} leave none to test")
    chosen = {"train": names[:count], "test": names[count:], "all": names}[split]
    if split != "test":
        check_identities(root, chosen)
    source = ImageFolder(root=root, classes=chosen, channels=channels)
    if split == "test":
        check_pairs(root, np.bincount(np.asarray(source.info.labels)).tolist())
    return source
