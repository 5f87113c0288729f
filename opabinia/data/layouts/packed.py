"""Images packed in files: tar files (WebDataset), folders of the ``datasets`` library, parquet files, idx files."""

from __future__ import annotations

import json
import os
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.folder import Folder, UnreadableLayout, listed, split_in, split_of
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.lists import LABELS, is_image_column, parquet_types
from opabinia.data.layouts.pairing import split_of_path
from opabinia.data.layouts.readings import check_training
from opabinia.runtime.local_copies import open_file
from opabinia.runtime.text import plural

_MEMBERS = 20
"""Members of a tar file that are looked at."""
_LABEL_FIELDS = ("label", "class", "cls", "class_id", "category", "target")

# --- tar files --------------------------------------------------------------------------------------------------------


def read_shards(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of tar files with images and labels: ``train-000.tar``, or in folders of splits.

    Raises:
        UnreadableLayout: they hold no images with labels, or there are none to train on.
    """
    files: dict[str, list[str]] = defaultdict(list)
    for name in folder.named(".tar"):
        files[split_in(name) or "train"].append(name)
    for split, place in folder.splits.items():
        files[split] += [f"{place}/{name}" for name in folder.sub(place).named(".tar")]
    files = {split: names for split, names in files.items() if names}
    if not files:
        return
    check_training(folder, files, "expected files such as train-000.tar")
    options = _label_field(folder, files["train"][0])
    sections = {
        split: {"name": "shards", "files": [folder.at(name) for name in names], **options}
        for split, names in files.items()
    }
    count = sum(map(len, files.values()))
    used = {name.partition("/")[0] for names in files.values() for name in names}
    yield Layout(
        "shards", "classification", f"images and labels in {count} tar files", sections, notes=folder.others(used)
    )


def _label_field(folder: Folder, name: str) -> dict[str, str]:
    """Return the option for the labels in a tar file.

    Raises:
        UnreadableLayout: it cannot be read, or has no images or no labels.
    """
    names: list[str] = []
    fields: list[str] = []
    try:
        with open_file(folder.path / name) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member, _ in zip(tar, range(_MEMBERS), strict=False):
                names.append(member.name)
                content = tar.extractfile(member) if member.name.lower().endswith(".json") else None
                if content is not None and member.size < 1 << 20:
                    row = json.loads(content.read())
                    fields += list(row) if isinstance(row, dict) else []
    except (OSError, ValueError, tarfile.TarError) as error:
        raise UnreadableLayout(f"{folder.at(name)} is not a tar file that can be read: {error}") from error
    suffixes = {os.path.splitext(member)[1].lower() for member in names}
    if suffixes & {*EXTENSIONS} and ".cls" in suffixes:
        return {}
    field = next((field for field in _LABEL_FIELDS if field in fields), None)
    if suffixes & {*EXTENSIONS} and field is not None:
        return {"json_label": field}
    raise UnreadableLayout(
        f"{folder.at(name)} holds {listed(names)}; expected images and labels in WebDataset's format, such as 0001.jpg "
        "and 0001.cls (or 0001.json with a field label). Unpack a tar file of another kind"
    )


# --- folders of the datasets library ----------------------------------------------------------------------------------


def read_hugging_face(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of a folder that ``save_to_disk`` has written.

    Raises:
        UnreadableLayout: it has no column of images, or none of labels.
    """
    if "dataset_dict.json" in folder.files:
        names = [str(name) for name in _read_json(folder, "dataset_dict.json").get("splits") or folder.folders]
        splits = {split: name for name in names if (split := split_of(name))}
        first = folder.sub(next(iter(splits.values()), names[0] if names else ""))
    elif "state.json" in folder.files and "dataset_info.json" in folder.files:
        splits, first = {"train": str(_read_json(folder, "state.json").get("_split") or "train")}, folder
    else:
        return
    check_training(folder, splits, "expected a split train")
    features = _read_json(first, "dataset_info.json").get("features")
    columns: Mapping[str, Any] = features if isinstance(features, dict) else {}
    types = {name: str(value.get("_type")) for name, value in columns.items() if isinstance(value, dict)}
    images = [name for name, kind in types.items() if kind == "Image"]
    labels = [name for name, kind in types.items() if kind == "ClassLabel"]
    labels = labels or [name for name in types if name.lower() in _LABEL_FIELDS]
    if not images or not labels:
        raise UnreadableLayout(
            f"{folder.text}: a dataset of the datasets library with the columns {listed(list(types)) or 'none'}; "
            "expected a column of images and one of class labels"
        )
    options = {"image": images[0]} if "image" not in images else {}
    options |= {"label": labels[0]} if "label" not in labels else {}
    sections = {
        split: {"name": "hugging_face", "dataset": str(folder.path), "split": name, **options}
        for split, name in splits.items()
    }
    yield Layout("hugging_face", "classification", "a dataset saved by the datasets library", sections)


def _read_json(folder: Folder, name: str) -> dict[str, Any]:
    try:
        content = json.loads((folder.path / name).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableLayout(f"{folder.at(name)} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


# --- parquet files ----------------------------------------------------------------------------------------------------


def read_parquet(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of parquet files that hold images, such as ``data/train-00000-of-00002.parquet``.

    Raises:
        UnreadableLayout: pyarrow is not installed, there is no column of labels, or nothing to train on.
    """
    places = folder.places((".parquet",)) if folder.only is None else [""]
    names = [f"{place}/{name}".lstrip("/") for place in places for name in folder.sub(place).named(".parquet")]
    if not names:
        return
    types = parquet_types(folder.path / names[0])
    if not types and not folder.holds():  # of images in folders they may be lists
        raise UnreadableLayout(f"{folder.at(names[0])}: reading parquet needs pyarrow: pip install 'opabinia[tables]'")
    images = [name for name, kind in types.items() if is_image_column(kind)]
    if not images:
        return
    labels = [name for name in types if name.lower() in LABELS]
    if not labels:
        raise UnreadableLayout(
            f"{folder.at(names[0])} has images ({images[0]}), and no column with labels among {listed(list(types))}; "
            "expected one called label"
        )
    files: dict[str, list[str]] = defaultdict(list)
    for name in names:
        files[split_of_path(name) or "train"].append(folder.at(name))
    check_training(folder, files, "expected files such as train-00000.parquet")
    options = {key: name for key, name in (("image", images[0]), ("label", labels[0])) if key != name}
    sections: dict[str, dict[str, Any]] = {
        split: {"name": "parquet_images", "files": paths, **options} for split, paths in files.items()
    }
    description = f"images and labels in {plural(len(names), 'parquet file')}"
    notes = folder.others([name.partition("/")[0] for name in names])
    yield Layout("parquet", "classification", description, sections, notes=notes)


# --- idx files --------------------------------------------------------------------------------------------------------


def read_idx(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of idx files, such as ``train-images-idx3-ubyte.gz``.

    Raises:
        UnreadableLayout: one of them is missing.
    """
    present = {name.removesuffix(".gz") for name in folder.files}
    images, labels = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"
    splits = {"train": "train", "test": "t10k"}
    found = {split: prefix for split, prefix in splits.items() if images.format(prefix) in present}
    if not found:
        return
    for prefix in found.values():
        if labels.format(prefix) not in present:
            raise UnreadableLayout(f"{folder.text} has {images.format(prefix)}, and no {labels.format(prefix)}")
    sections = {split: {"name": "idx", "root": folder.text, "split": split} for split in found}
    check_training(folder, sections, f"expected {images.format('train')}")
    yield Layout("idx", "classification", "images and labels in idx files", sections)
