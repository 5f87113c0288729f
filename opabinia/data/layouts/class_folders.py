"""Images or videos in one folder per class, with and without folders of splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS as IMAGES
from opabinia.data.decoding.video import EXTENSIONS as VIDEOS
from opabinia.data.layouts.folder import Folder, UnreadableLayout, listed, split_of
from opabinia.data.layouts.identities import identity_layout, may_be_identities
from opabinia.data.layouts.layout import Layout, TaskName

PARTS = (
    *("images", "image", "imgs", "img", "jpegimages", "labels", "label", "masks", "mask", "annotations", "annotation"),
    *("maps", "labeltxt", "annfiles", "gt", "leftimg8bit", "gtfine", "gtcoarse", "imagesets", "unlabeled", "frames"),
)
"""Names of folders that are no classes, in lower case."""


@dataclass(frozen=True)
class _Kind:
    """Files that a source reads from class folders."""

    name: str
    task: TaskName
    source: str
    noun: str
    suffixes: Sequence[str]


_IMAGES = _Kind("class_folders", "classification", "image_folder", "image", IMAGES)
_VIDEOS = _Kind("video_folders", "video", "videos", "video", [name for name in VIDEOS if name != ".gif"])


def read_class_folders(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of images in class folders; if these may be identities, too, a second one.

    Raises:
        UnreadableLayout: there is one class, or no training data, or validation data has other classes; in the last
            case after the reading as identities.
    """
    layout = _read(folder, _IMAGES, same_classes=False)
    if layout is None:
        return
    train = folder.sub(folder.splits.get("train", ""))
    names = _classes(train, _IMAGES)
    splits = [
        {*_classes(folder.sub(folder.splits[split]), _IMAGES)} for split in ("val", "test") if split in folder.splits
    ]
    if any(classes and not classes & {*names} for classes in splits):
        yield identity_layout(folder, layout, name="identity_folders")
    layout = _read(folder, _IMAGES)
    if layout is not None:
        yield layout
        ambiguous = may_be_identities(train, names)
        yield identity_layout(folder, layout, name="identity_folders" if ambiguous else layout.name)


def read_video_folders(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of videos in class folders."""
    layout = _read(folder, _VIDEOS)
    if layout is not None:
        yield layout


def _read(folder: Folder, kind: _Kind, *, same_classes: bool = True) -> Layout | None:
    splits = {split: name for split, name in folder.splits.items() if _classes(folder.sub(name), kind)}
    train = folder.sub(splits.get("train", ""))
    classes = [] if "train" in folder.splits and "train" not in splits else _classes(train, kind)
    if not classes and splits:
        first = next(iter(splits.values()))
        raise UnreadableLayout(
            f"{folder.at(first)} has class folders, but there is none to train on; expected {folder.at('train')}/"
            f"{_classes(folder.sub(first), kind)[0]} ... beside it"
        )
    direct = train.named(*kind.suffixes)
    holds_files = len(classes) == 1 and train.sub(classes[0]).named(*kind.suffixes)
    if holds_files and not direct and (splits or not folder.splits):
        raise UnreadableLayout(
            f"{train.text} has one folder with {kind.noun}s, {classes[0]}; expected a folder for each of at least two "
            f"classes. Without labels: {folder.command('--task', 'selfsup')}"
        )
    if len(classes) < 2:
        return None
    notes = list(folder.others([*folder.splits.values()] if splits else classes))
    if direct:
        notes.append(f"{train.text}: {len(direct)} {kind.noun}s outside of the class folders are not read")
    sections: dict[str, dict[str, Any] | None] = {"val": None, "test": None}
    for split in sections:
        if split in splits:
            place = folder.sub(splits[split])
            sections[split] = _section(place, classes if same_classes else _classes(place, kind), kind, notes)
    places = " and ".join(f"{name}/" for name in splits.values()) or "one folder"
    return Layout(
        name=kind.name,
        task=kind.task,
        description=f"{len(classes)} class folders of {kind.noun}s in {places}",
        train=_section(train, classes, kind, notes),
        val=sections["val"],
        test=sections["test"],
        notes=tuple(notes),
    )


def _classes(folder: Folder, kind: _Kind) -> list[str]:
    """Return the folders that hold such files and may be classes."""
    names = [name for name in folder.folders if split_of(name) is None and name.lower() not in PARTS]
    return [name for name in names if folder.sub(name).holds(kind.suffixes)]


def _section(folder: Folder, classes: Sequence[str], kind: _Kind, notes: list[str]) -> dict[str, Any]:
    """Return the source of a split.

    Raises:
        UnreadableLayout: it has classes that there are none of to train on.
    """
    present = _classes(folder, kind)
    if new := [name for name in present if name not in classes]:
        raise UnreadableLayout(
            f"{folder.at(new[0])}: {listed(new)} of {folder.text} are no classes of the training data "
            f"({listed(classes)}); expected the same folders"
        )
    section: dict[str, Any] = {"name": kind.source, "root": folder.text}
    if list(folder.folders) != present:
        section["classes"] = present
        empty = [name for name in folder.folders if name not in present and split_of(name) is None]
        notes += [f"{folder.text}: not read, since they hold no {kind.noun}: {listed(empty)}"] if empty else []
    if list(classes) == present:
        return section
    missing = [name for name in classes if name not in present]
    notes.append(f"{folder.text} has no {kind.noun} of {listed(missing)}")
    return {"name": "concat", "sources": [section], "classes": list(classes)}
