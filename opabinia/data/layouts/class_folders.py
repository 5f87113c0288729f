"""Images or videos in one folder per class, with and without folders of splits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS as IMAGES
from opabinia.data.decoding.video import EXTENSIONS as VIDEOS
from opabinia.data.file_search import find_files
from opabinia.data.layouts.folder import DoubtfulLayout, Folder, UnreadableLayout, listed, split_in, split_of
from opabinia.data.layouts.identities import identity_layout, may_be_identities
from opabinia.data.layouts.images import unread_annotations, unread_lists
from opabinia.data.layouts.layout import Layout, TaskName
from opabinia.data.layouts.pairing import PARTS, is_dataset
from opabinia.data.sources.folder import select_listed
from opabinia.runtime.text import plural

_ASKED = 50
"""Folders that are looked at to see what classes are, at most."""
_COUNTED = 1000
"""Files of a class that are counted, at most."""
_ANNOTATIONS = (".txt", ".xml", ".json", ".csv", ".mat")
"""Suffixes of annotations of one image each."""


_PART = re.compile(r"(^|[_ -])(part|images?|imgs?|chunk|batch)[_ -]?\d+$", re.IGNORECASE)
"""Names of folders that many images are divided into."""


@dataclass(frozen=True)
class _Kind:
    """Files that a source reads from class folders."""

    name: str
    task: TaskName
    source: str
    noun: str
    suffixes: Sequence[str]


_IMAGES = _Kind("class_folders", "classification", "image_folder", "image", IMAGES)
_LEAVES = replace(_IMAGES, name="leaf_folders")
_VIDEOS = _Kind("video_folders", "video", "videos", "video", [name for name in VIDEOS if name != ".gif"])


@dataclass(frozen=True)
class _Split:
    """The class folders of a split.

    Attributes:
        folder: holds them.
        classes: names of those with files.
        list_file: names the files that are in the split; empty: all.
    """

    folder: Folder
    classes: Sequence[str]
    list_file: str = ""


def read_class_folders(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of images in class folders; if these may be identities, too, a second one.

    Raises:
        UnreadableLayout: there is one class, or no training data, or validation data has other classes, in this case
            after the reading as identities; or, after all readings, folders in those of classes may be the classes,
            or there are annotations of the images.
    """
    splits = _find_splits(folder, _IMAGES)
    if splits is None:
        return
    names = splits["train"].classes
    apart = any(not {*split.classes} & {*names} for split in splits.values())
    ambiguous = apart or may_be_identities(splits["train"].folder, names)
    description = _description(splits, "folders of images of one identity each")
    folders = {name: (split.folder, split.classes) for name, split in splits.items()}
    identities = identity_layout(folders, "identity_folders" if ambiguous else _IMAGES.name, description)
    if apart:
        yield identities
    yield _layout(folder, splits, _IMAGES)
    yield identities
    if (inner := _folders_in_classes(splits["train"].folder, names)) is not None:
        leaves = {name: replace(split, classes=_leaves(split)) for name, split in splits.items()}
        with suppress(UnreadableLayout):  # those of splits differ
            description = _description(leaves, "innermost folders of images, each of a class,")
            yield replace(_layout(folder, leaves, _LEAVES), description=description)
        raise UnreadableLayout(
            f"{inner.text} holds folders of images, {listed(inner.folders, 3)}: if these are the classes, "
            f"{inner.command()}"
        )
    _check_annotations(splits["train"].folder, names)


def read_video_folders(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of videos in class folders.

    Raises:
        UnreadableLayout: there is one class, or no training data, or validation data has other classes.
    """
    splits = _find_splits(folder, _VIDEOS)
    if splits is not None:
        yield _layout(folder, splits, _VIDEOS)


def _find_splits(folder: Folder, kind: _Kind) -> dict[str, _Split] | None:
    """Return the class folders of each split, or of the folder itself; None if there are none.

    Raises:
        UnreadableLayout: there is one class, or none to train on.
    """
    found: dict[str, _Split] = {}
    for split, name in folder.splits.items():
        place = _descend(folder.sub(name))
        if classes := _classes(place, kind):
            found[split] = _Split(place, classes)
    if "train" not in found:
        classes = _classes(folder, kind)
        train = folder.splits.get("train")
        if train is not None:  # a class of this name, if there are others beside it
            classes = sorted([*classes, train]) if len(folder.splits) == 1 and len(classes) > 1 else []
        if classes:
            found = {"train": _Split(folder, classes), **found}
    inner = [split.folder.sub(name) for split in found.values() for name in split.classes[:20]]
    nested = [place.text for place in inner if is_dataset(place)]
    if nested and max(len(split.classes) for split in found.values()) == 1:
        return None
    if nested:
        raise UnreadableLayout(f"{folder.text} holds several folders of data; give one of them, such as {nested[0]}")
    if "train" not in found and found:
        first = next(iter(found.values()))
        example = f"{folder.at('train')}/{first.classes[0]}"
        raise UnreadableLayout(
            f"{first.folder.text} has class folders, but there is none to train on; expected {example} ... beside it"
        )
    if not found:
        return None
    train_split = found["train"]
    direct = train_split.folder.named(*kind.suffixes)
    if len(train_split.classes) > 1:
        return found if len(found) > 1 else _listed_splits(train_split, kind) or found
    name = train_split.classes[0]
    if not direct and train_split.folder.sub(name).named(*kind.suffixes) and not unread_annotations(folder):
        without = f" Without labels: {folder.command('--task', 'selfsup')}" if kind is _IMAGES else ""
        raise DoubtfulLayout(
            f"{train_split.folder.text} has one folder with {kind.noun}s, {name}; expected a folder for each of at "
            f"least two classes.{without}"
        )
    return None


def _listed_splits(whole: _Split, kind: _Kind) -> dict[str, _Split]:
    """Return the splits that text files list, one for each, of files in the same class folders; of several lists of a
    split the first. None without one for training."""
    top, found = whole.folder.top, dict[str, _Split]()
    names = [f"{place}/{name}".lstrip("/") for place in top.places((".txt",)) for name in top.sub(place).named(".txt")]
    known: list[bytes] = []
    for name in names[:_ASKED]:
        split = split_in(name.rpartition("/")[2][:-4])
        if split is None or split in found:
            continue
        known = known or [
            path for folder in whole.classes for path in find_files(whole.folder.path, folder, kind.suffixes)
        ]
        with suppress(ValueError):  # it lists something else
            select_listed(top.path / name, known)
            found[split] = replace(whole, list_file=top.at(name))
    return found if "train" in found and len(found) > 1 else {}


def _folders_in_classes(folder: Folder, classes: Sequence[str]) -> Folder | None:
    """Return the first folder of a class that holds several folders of images and no image itself."""
    for name in classes[:_ASKED]:
        inner = _descend(folder.sub(name))
        below = [sub for sub in inner.folders[:_ASKED] if inner.sub(sub).holds()]
        if len(below) > 1 and not inner.named(*IMAGES):
            return inner
    return None


def _leaves(split: _Split) -> list[str]:
    """Return the folders with images below those of classes, without folders in these."""
    found: list[str] = []
    for place in sorted(
        f"{name}/{place}".rstrip("/") for name in split.classes for place in split.folder.sub(name).places()
    ):
        if not found or not place.startswith(f"{found[-1]}/"):
            found.append(place)
    return found


def _check_annotations(folder: Folder, classes: Sequence[str]) -> None:
    """Raise UnreadableLayout if there is a file that may be annotations for at least every third image."""
    places = [(name, folder.sub(name)) for name in classes[:_ASKED]]
    found = [(name, place.tree(_ANNOTATIONS, _COUNTED)) for name, place in places]
    files = [f"{name}/{file}" for name, of_class in found if len(of_class) > 1 for file in of_class]
    if not files:
        return
    count = sum(len(place.tree(IMAGES, _COUNTED)) for _, place in places)
    if len(files) >= count / 3:
        raise UnreadableLayout(
            f"{folder.text} has {len(files)} files next to {count} images, such as {files[0]}, in no format of "
            "annotations that is recognized"
        )


def _descend(folder: Folder) -> Folder:
    """Return the folder that holds several others, if the first ones hold one only: ``train/train``."""
    while len(folder.folders) == 1 and not folder.files and folder.sub(folder.folders[0]).folders:
        folder = folder.sub(folder.folders[0])
    return folder


def _classes(folder: Folder, kind: _Kind) -> list[str]:
    """Return the folders that hold such files and may be classes; none if most folders do not."""
    skipped = {*folder.splits.values()}
    names = [name for name in folder.folders if name not in skipped and split_of(name) is None]
    found = [name for name in names if name.lower() not in PARTS and folder.sub(name).holds(kind.suffixes)]
    return (
        found
        if len(found) >= len(names) / 2 and not all(split_in(name) or _PART.search(name) for name in found)
        else []
    )


def _layout(folder: Folder, splits: Mapping[str, _Split], kind: _Kind) -> Layout:
    """Return the reading of class folders.

    Raises:
        UnreadableLayout: validation or test data has classes that there are none of to train on.
    """
    train = splits["train"]
    read = [name for split, name in folder.splits.items() if split in splits]
    notes = [*folder.others([*read, *(folder.folders if train.folder is folder else ())])]
    if direct := train.folder.named(*kind.suffixes):
        notes.append(f"{train.folder.text}: {plural(len(direct), kind.noun)} outside of the class folders are not read")
    sections = {name: _section(name, split, train.classes, kind, notes) for name, split in splits.items()}
    if not train.list_file:
        notes += unread_lists(folder.top, ())
    description = _description(splits, f"class folders of {kind.noun}s")
    return Layout(kind.name, kind.task, description, sections, notes=notes)


def _description(splits: Mapping[str, _Split], noun: str) -> str:
    places = [os.path.basename(split.folder.text) for split in splits.values()]
    if lists := [os.path.basename(split.list_file) for split in splits.values() if split.list_file]:
        return f"{len(splits['train'].classes)} {noun}, with splits in {listed(lists)}"
    where = "in one folder" if len(places) == 1 else f"in {', '.join(f'{place}/' for place in places)}"
    return f"{len(splits['train'].classes)} {noun} {where}"


def _section(name: str, split: _Split, classes: Sequence[str], kind: _Kind, notes: list[str]) -> dict[str, Any]:
    """Return the source of a split.

    Raises:
        UnreadableLayout: it has classes that there are none of to train on.
    """
    folder, present = split.folder, split.classes
    new = [cls for cls in present if cls not in classes]
    if new and name == "test" and len(new) < len(present):  # nothing is learned from it
        notes.append(f"{folder.text}: {listed(new)} are no classes of the training data, and not read")
        present = [cls for cls in present if cls in classes]
    elif new:
        raise UnreadableLayout(
            f"{folder.at(new[0])}: {listed(new)} of {folder.text} are no classes of the training data "
            f"({listed(classes)}); expected the same folders"
        )
    section: dict[str, Any] = {"name": kind.source, "root": folder.text}
    if list(folder.folders) != list(present):
        section["classes"] = list(present)
        empty = [name for name in folder.folders if name not in present and not folder.sub(name).holds(kind.suffixes)]
        notes += [f"{folder.text}: not read, since they hold no {kind.noun}: {listed(empty)}"] if empty else []
    if split.list_file:
        section["list_file"] = split.list_file
    if list(classes) == list(present):
        return section
    missing = [name for name in classes if name not in present]
    notes.append(f"{folder.text} has no {kind.noun} of {listed(missing)}")
    return {"name": "concat", "sources": [section], "classes": list(classes)}
