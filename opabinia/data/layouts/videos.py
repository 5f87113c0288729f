"""Lists of videos, and packed videos; class folders of videos are in :mod:`opabinia.data.layouts.class_folders`."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS as IMAGES
from opabinia.data.decoding.video import EXTENSIONS as VIDEOS
from opabinia.data.layouts.folder import Folder, listed, split_in
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.lists import LABELS
from opabinia.data.layouts.readings import check_training
from opabinia.data.sources.file_names import sort_names
from opabinia.data.sources.packed_videos import INDEX_FILE


def read_video_lists(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of lists with a video, or a folder of frames, and a label in each line.

    Raises:
        UnreadableLayout: there are lists, and none to train on.
    """
    lists: dict[str, tuple[str, dict[str, Any], set[str]]] = {}
    for name in folder.named(".txt", ".csv", ".tsv"):
        found = _list_section(folder, name)
        if found is not None:
            lists.setdefault(split_in(name) or "train", (name, *found))
    if not lists:
        return
    classes = sort_names(set().union(*(labels for _, _, labels in lists.values())))
    if all(label.isdecimal() for label in classes):  # numbers from 0
        classes = [str(number) for number in range(int(classes[-1]) + 1)]
    sections = {split: section | {"classes": classes} for split, (_, section, _) in lists.items()}
    check_training(folder, sections, "expected train.txt")
    names = [name for name, _, _ in lists.values()]
    kind = "folders of frames" if sections["train"]["name"] == "frame_folders" else "videos"
    notes = folder.others([*names, *folder.folders])
    yield Layout("video_list", "video", f"{kind} and labels listed in {listed(names)}", sections, notes=notes)


def _list_section(folder: Folder, name: str) -> tuple[dict[str, Any], set[str]] | None:
    """Return the source of a list without its classes, and the labels; None if it lists no videos that exist, or the
    labels are the folders of the videos, which are read then."""
    lines = [line.strip() for line in folder.head(name, 1 << 24).splitlines() if line.strip()]
    if not lines:
        return None
    whole = folder.whole
    roots = ["", "videos", *sorted(whole.folders[:50], key=lambda root: split_in(root) != split_in(name))]
    for options, rows in _tables(name, lines):
        paths, labels = [path for path, _ in rows[:10]], {label for _, label in rows}
        if not rows or not all(labels):
            continue
        if all(path.lower().endswith(VIDEOS) for path in paths):
            pairs = {(path.rpartition("/")[0], label) for path, label in rows}
            repeated = 1 < len({parent for parent, _ in pairs if parent}) == len(pairs) == len(labels)
            root = next((root for root in roots if whole.has(f"{root}/{paths[0]}".lstrip("/"))), None)
            if root is not None and not repeated:
                section = {"name": "video_list", "file": folder.at(name), **options}
                return section | ({"root": folder.at(root)} if root else {}), labels
        folders = [re.sub(r"\s+\d+$", "", path) for path in paths]
        for root in roots if "path" not in options else ():
            places = [f"{root}/{path}".lstrip("/") for path in folders]
            if all(os.path.isdir(whole.path / place) and whole.sub(place).named(*IMAGES) for place in places):
                section = {"name": "frame_folders", "file": folder.at(name), **options}
                return section | ({"root": folder.at(root)} if root else {}), labels
    return None


def _tables(name: str, lines: Sequence[str]) -> Iterator[tuple[dict[str, str], list[tuple[str, str]]]]:
    """Yield readings of a list: options of its source, and path and label of each row."""
    comma = "\t" if name.lower().endswith(".tsv") else ","
    if not name.lower().endswith(".txt"):
        header, *cells = list(csv.reader(lines, delimiter=comma))
        cells = [row for row in cells if len(row) == len(header)]
        columns = dict(zip(header, zip(*cells, strict=True), strict=True)) if cells else {}
        paths = [key for key, names in columns.items() if all(name.lower().endswith(VIDEOS) for name in names)]
        path = paths[0] if paths else None
        label = next((key for key in columns if key.lower() in (*LABELS, "tag")), None)
        if path is not None and label is not None and not path.lower().endswith(VIDEOS):
            options = {key: value for key, value in {"path": path, "label": label}.items() if key != value}
            yield options, list(zip(columns[path], columns[label], strict=True))
    for separator in (None, comma, ";"):
        pairs = [line.rsplit(separator, 1) for line in lines]
        if all(len(pair) == 2 for pair in pairs):
            usual = separator is None or (separator == comma and name.lower().endswith(".csv"))
            rows = [(path.strip(), label.strip()) for path, label in pairs]
            yield {} if usual else {"separator": separator or ""}, rows


def read_packed_videos(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of folders that ``opabinia data pack`` has written."""
    places = {split: name for split, name in folder.splits.items() if folder.sub(name).has(INDEX_FILE)}
    if not places and INDEX_FILE in folder.files:
        places = {"train": ""}
    if places:
        sections = {split: {"name": "packed_videos", "root": folder.at(name)} for split, name in places.items()}
        check_training(folder, sections, "expected a folder train")
        yield Layout("packed_videos", "video", "videos packed by opabinia data pack", sections)
