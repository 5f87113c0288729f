"""Videos with tracks of objects: the layouts of MOTChallenge, CVAT for video and KITTI tracking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opabinia.data.layouts.folder import Folder, UnreadableLayout, listed, split_in
from opabinia.data.layouts.layout import Layout, Sections
from opabinia.data.layouts.pairing import check_alone
from opabinia.data.layouts.readings import check_training, with_alternatives
from opabinia.runtime.text import plural

_EVERY = 5
"""One of so many videos is held out for validation if the folder does not have such videos."""


def read_tracks(folder: Folder) -> Iterator[Layout]:
    """Yield the readings of videos with tracks: frames for detection, crops for re-identification.

    Raises:
        UnreadableLayout: there is nothing to train on, a single video is not in a folder of its own, or there are files
            of several formats.
    """
    if folder.only is not None:
        return
    if _is_cvat_video(folder):
        raise UnreadableLayout(
            f"{folder.at('annotations.xml')} has tracks of a video; expected a folder for each video: "
            "a/annotations.xml, a/images/frame_000000.png"
        )
    found = {split: videos for split, place in folder.splits.items() if (videos := _videos(folder.sub(place)))}
    root = None if found else _videos(folder)
    if root is not None:
        found = {split: (root[0], names) for split, names in _by_split(root[1]).items()}
    if not found:
        return
    places = dict.fromkeys(found, "") if root else folder.splits
    formats = sorted({name for name, _ in found.values()})
    if len(formats) > 1:
        raise UnreadableLayout(f"{folder.text} has videos in the formats of {' and '.join(formats)}; give one of them")
    sections: dict[str, dict[str, Any]] = {
        split: {"name": "mot", "root": folder.at(places[split]), "format": formats[0]} for split in found
    }
    check_training(folder, sections, "expected a folder train")
    if root and len(found) > 1:
        for split, (_, of_split) in found.items():
            sections[split]["sequences"] = of_split
    names, notes = _distinct(folder.sub(places["train"]), found["train"][1])
    description = f"tracks in {plural(len(names), 'video')}"
    if len(names) < len(found["train"][1]):
        sections["train"]["sequences"] = names
    if "val" not in sections and len(names) > 1:
        held_out = names[_EVERY - 1 :: _EVERY] or names[-1:]
        train = [name for name in names if name not in held_out]
        sections["val"] = {**sections["train"], "sequences": held_out}
        sections["train"]["sequences"] = train
        notes.append(f"held out for validation: {listed(held_out)}")
    used = _used(root) if root else [places[split].partition("/")[0] for split in found]
    check_alone(folder, used)
    notes += folder.others(used)
    layout = Layout("tracks", "detection", description, sections, notes=notes)
    yield from with_alternatives(layout, [Layout("tracks", "reid", description, _crops(sections), notes=notes)])


def _videos(folder: Folder) -> tuple[str, list[str]] | None:
    """Return the format, as the source calls it, and the names of the videos in a folder; None if there are none."""
    if mot := [name for name in folder.folders if folder.sub(name).has("gt/gt.txt")]:
        return "mot", mot
    if cvat := [name for name in folder.folders if _is_cvat_video(folder.sub(name))]:
        return "cvat", cvat
    if folder.has("image_02") and (kitti := folder.sub("label_02").named(".txt") if folder.has("label_02") else []):
        return "kitti", [name.removesuffix(".txt") for name in kitti]
    return None


def _is_cvat_video(folder: Folder) -> bool:
    return "annotations.xml" in folder.files and "<track " in folder.head("annotations.xml", 1 << 20)


def _distinct(folder: Folder, names: list[str]) -> tuple[list[str], list[str]]:
    """Return the first of the videos with the same ``gt.txt`` (MOT17 has each for three detectors), and a remark about
    the others."""
    first: dict[str, str] = {}
    for name in names:
        inner = folder.sub(name)
        first.setdefault(inner.head("gt/gt.txt", 1 << 24) if inner.has("gt/gt.txt") else name, name)
    others = [name for name in names if name not in first.values()]
    notes = [f"not read, because their tracks are those of others: {listed(others)}"] if others else []
    return sorted(first.values()), notes


def _by_split(names: list[str]) -> dict[str, list[str]]:
    """Return the videos of each split if all names have one, such as ``train-01``; otherwise all are for training."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(split_in(name) or "", []).append(name)
    return {"train": names} if "" in found or "train" not in found else found


def _used(found: tuple[str, list[str]]) -> list[str]:
    return ["image_02", "label_02"] if found[0] == "kitti" else found[1]


def _crops(sections: Sections) -> Sections:
    """Return the sources of crops of the objects."""
    return {
        split: {"name": "track_crops", "split": "train" if split == "train" else "test", "source": section}
        for split, section in sections.items()
    }
