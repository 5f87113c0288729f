"""Images with identities: names of files as in Market-1501, lists of published datasets, one folder per identity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.folder import Folder, UnreadableLayout
from opabinia.data.layouts.layout import Layout
from opabinia.data.sources.reid_base import MARKET_FOLDERS

_SAMPLED = 100
_NUMBERED = re.compile(r"(?:[a-z]{1,3}|id|pid|person|identity|object|vehicle|subject)?[ _-]?\d+", re.IGNORECASE)
"""Names of folders such as 0007, p12 or id_3."""

_QUERIES = ("query", "queries", "probe")
_LISTED = {
    "msmt17": ("list_train.txt", "list_query.txt", "list_gallery.txt"),
    "cuhk03": ("images_labeled", "splits_new_labeled.json"),
    "veri_wild": ("images", "train_test_split/train_list.txt", "train_test_split/vehicle_info.txt"),
    "vehicleid": ("image", "train_test_split/train_list.txt", "train_test_split/test_list_800.txt"),
    "in_shop": ("list_eval_partition.txt",),
    "online_products": ("Ebay_train.txt", "Ebay_test.txt"),
}
"""Files of the sources that read lists of one format each."""


def read_named_identities(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of files whose names begin with identity and camera, in a folder each for training, queries and
    gallery; or of the lists of published datasets.

    Raises:
        UnreadableLayout: one of the folders is missing.
    """
    subsets = list(MARKET_FOLDERS.values())
    missing = [name for name in subsets if name not in folder.folders]
    if missing and "bounding_box_train" in folder.folders:
        raise UnreadableLayout(f"{folder.text} has a folder bounding_box_train, but no {' and no '.join(missing)}")
    if not missing:
        cameras = _largest_camera(folder, subsets)
        yield _test_layout(folder, "market1501", subsets, "named <identity>_c<camera>", cameras=cameras)
    veri = ["image_train", "image_query", "image_test"]
    if all(name in folder.folders for name in veri):
        yield _test_layout(folder, "veri", veri, "named <identity>_c<camera>")
    parts = {"train": folder.splits.get("train"), "query": folder.find(*_QUERIES), "gallery": folder.find("gallery")}
    found = [name for name in parts.values() if name is not None]
    if len(found) == len(parts) and all(folder.sub(name).holds() for name in found):
        options = {part: name for part, name in parts.items() if name != part}
        yield _test_layout(folder, "gallery_folders", found, "in folders or names of files", **options)
    for source, files in _LISTED.items():
        if folder.only is None and all(folder.has(name) for name in files) and _is_listed(folder, source):
            yield _test_layout(folder, source, [*folder.folders, *folder.files], f"listed in {files[-1]}")


def _is_listed(folder: Folder, source: str) -> bool:
    """Return whether the list of a source has its format, where other datasets have one of the same name."""
    return source != "in_shop" or "evaluation_status" in folder.head(_LISTED[source][0], 1 << 10)


def _test_layout(folder: Folder, source: str, used: Sequence[str], how: str, **options: Any) -> Layout:
    section = {"name": source, "root": folder.text, **options}
    sections = {split: {**section, "split": split} for split in ("train", "test")}
    description = f"identities {how}, with queries and a gallery"
    return Layout(source, "reid", description, sections, notes=folder.others(used))


def _largest_camera(folder: Folder, subsets: Sequence[str]) -> int:
    """Return the number of cameras in the names of images.

    Raises:
        UnreadableLayout: a name has none.
    """
    largest = 1
    for subset in subsets:
        for name in folder.sub(subset).named(*EXTENSIONS):
            match = re.match(r"(?:-1|\d+)_c(\d{1,6})", name)
            if match is None:
                expected = "<identity>_c<camera>..., such as 0002_c1s1_000451_03.jpg"
                raise UnreadableLayout(f"{folder.at(subset)}: {name} is not named {expected}")
            largest = max(largest, int(match[1]))
    return largest


# --- folders ----------------------------------------------------------------------------------------------------------


def may_be_identities(folder: Folder, names: Sequence[str]) -> bool:
    """Return whether class folders may be identities: there are many with few images, or their names are numbers."""
    step = max(1, len(names) // _SAMPLED)
    few = median(len(folder.sub(name).tree(EXTENSIONS, 200)) for name in names[::step])
    numbered = sum(_NUMBERED.fullmatch(name) is not None for name in names) > len(names) / 2
    return (len(names) >= 50 and few <= 20) or (len(names) >= 20 and numbered and few <= 100)


def identity_layout(splits: Mapping[str, tuple[Folder, Sequence[str]]], name: str, description: str) -> Layout:
    """Return the reading of class folders as identities.

    Args:
        splits: the folder of each split, and the names of the folders in it that hold images.
        name: the name of the layout.
        description: of these folders.
    """
    sections: dict[str, dict[str, Any]] = {}
    for split, (folder, names) in splits.items():
        section: dict[str, Any] = {"name": "class_folders", "root": folder.text, "split": "all"}
        if split != "train":
            section |= {"split": "test", "train_classes": 0}
            if all(len(folder.sub(identity).tree(EXTENSIONS, 2)) < 2 for identity in names):
                continue  # no query would have a match
        sections[split] = section | ({"classes": list(names)} if list(folder.folders) != list(names) else {})
    return Layout(name, "reid", description, sections)
