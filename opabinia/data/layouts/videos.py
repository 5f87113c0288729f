"""Lists of videos, and packed videos; class folders of videos are in :mod:`opabinia.data.layouts.class_folders`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS as IMAGES
from opabinia.data.decoding.video import EXTENSIONS as VIDEOS
from opabinia.data.layouts.folder import Folder, listed, split_in
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.readings import check_training, make_layout
from opabinia.data.sources.packed_videos import INDEX_FILE


def read_video_lists(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of lists with a video, or a folder of frames, and a label in each line.

    Raises:
        UnreadableLayout: there are lists, and none to train on.
    """
    lists: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in folder.named(".txt", ".csv", ".tsv"):
        section = _list_section(folder, name)
        if section is not None:
            lists.setdefault(split_in(name) or "train", (name, section))
    if not lists:
        return
    sections = {split: section for split, (_, section) in lists.items()}
    check_training(folder, sections, "expected train.txt")
    names = [name for name, _ in lists.values()]
    kind = "folders of frames" if sections["train"]["name"] == "frame_folders" else "videos"
    notes = folder.others([*names, *folder.folders])
    yield make_layout("video_list", "video", f"{kind} and labels listed in {listed(names)}", sections, notes=notes)


def _list_section(folder: Folder, name: str) -> dict[str, Any] | None:
    """Return the source of a list; None if it lists no videos that exist."""
    lines = [line.strip() for line in folder.head(name).splitlines()[:20] if line.strip()][:10]
    if not lines:
        return None
    whole = folder.whole
    roots = ["", "videos", *whole.folders[:50]]
    if name.lower().endswith((".csv", ".tsv")) and {"path", "label"} <= {*re.split(r"[,\t]", lines[0])}:
        column = re.split(r"[,\t]", lines[0]).index("path")
        paths, lines = [re.split(r"[,\t]", line)[column] for line in lines[1:]], lines[1:]
    else:
        separator = "," if name.lower().endswith(".csv") else None
        paths = [line.rsplit(separator, 1)[0].strip() for line in lines]
    if not paths:
        return None
    if all(path.lower().endswith(VIDEOS) for path in paths):
        root = next((root for root in roots if whole.has(f"{root}/{paths[0]}".lstrip("/"))), None)
        if root is not None:
            return {"name": "video_list", "file": folder.at(name)} | ({"root": folder.at(root)} if root else {})
    folders = [re.sub(r"\s+\d+$", "", path) for path in paths]
    for root in roots:
        places = [f"{root}/{path}".lstrip("/") for path in folders[:5]]
        if all((whole.path / place).is_dir() and Folder(whole.path / place, place).named(*IMAGES) for place in places):
            return {"name": "frame_folders", "file": folder.at(name)} | ({"root": folder.at(root)} if root else {})
    return None


def read_packed_videos(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of folders that ``opabinia data pack`` has written."""
    places = {split: name for split, name in folder.splits.items() if folder.sub(name).has(INDEX_FILE)}
    if not places and INDEX_FILE in folder.files:
        places = {"train": ""}
    if places:
        sections = {split: {"name": "packed_videos", "root": folder.at(name)} for split, name in places.items()}
        check_training(folder, sections, "expected a folder train")
        yield make_layout("packed_videos", "video", "videos packed by opabinia data pack", sections)
