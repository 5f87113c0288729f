"""Films and their labels listed in a file."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from opabinia.config import register
from opabinia.contracts import Video
from opabinia.data.decoding.video import VideoFile
from opabinia.data.sources.list_files import refuse_bad, rows_of, text_of
from opabinia.data.sources.video_labels import classes_of, lines_of, numbered_labels
from opabinia.data.sources.videos import Films
from opabinia.runtime.log import log


class _Entry(NamedTuple):
    """A line: where it stands, paths of which one is to exist, labels as they are written."""

    place: str
    paths: list[str]
    labels: list[str]


@register.source
class VideoList(Films):
    """Films and their labels as a list, in one of these forms:

    - lines of a path and a label (PaddleVideo, mmaction2, SlowFast): ``v/1.mp4 4``, the last separator divides them;
    - .csv or .tsv with a line of column names, of which two are ``path`` and ``label``;
    - the csv of Kinetics: ``label,youtube_id,time_start,time_end,split``. Films are called
      ``<youtube_id>_<start>_<end>.mp4`` with six digits each, in the folder or in a folder of the label's name.

    Labels are names, or numbers from 0. A sample's id is its path.

    Args:
        file: the list.
        root: the folder that the paths count from; the list's own folder when not given.
        separator: between path and label; when not given a comma in .csv files that have one in every line, else
            blanks.
        classes: names in the order of their numbers; those that occur (0 to the largest number) when not given.
        class_file: in their place: a file with a name a line, or ``number name``.
        multi_label: a film may have several labels, or none: ``v/1.mp4 3,5``.
        label_separator: between several labels.
        split: of Kinetics: which entries are taken; all when not given.
        missing: what is done about films that are not there: ``error``, or ``leave_out``, as of Kinetics many are.
        channels: 3 for colour, 1 for grey.
        directed: classes that a mirror image would change; ``clip_flip`` leaves them alone.

    Raises:
        ValueError: naming file and line: it has no label, or one that is no class, a film is missing or listed twice,
            no entry is left.
    """

    def __init__(
        self,
        *,
        file: Path,
        root: Path | None = None,
        separator: str | None = None,
        classes: list[str] | None = None,
        class_file: Path | None = None,
        multi_label: bool = False,
        label_separator: str = ",",
        split: str | None = None,
        missing: Literal["error", "leave_out"] = "error",
        channels: Literal[1, 3] = 3,
        directed: list[str] | None = None,
    ) -> None:
        file = file.expanduser()
        self.root = (root or file.parent).expanduser()
        entries = list(_entries(file, separator, label_separator if multi_label else None, split))
        if not entries:
            raise ValueError(f"{file} lists no film" + (f" of split {split!r}" if split else ""))
        found = [entry.labels for entry in entries]
        names = classes_of(classes, class_file)
        labels, named = numbered_labels(file, [entry.place for entry in entries], found, names, multi_label)
        paths, kept = _existing(file, self.root, entries, missing)
        super().__init__([os.fsencode(path) for path in paths], labels[kept], named, channels, directed or [])

    def film(self, index: int) -> Video:
        return VideoFile(os.path.join(self.root, os.fsdecode(self._names[index])), self.channels)


def _entries(file: Path, separator: str | None, between: str | None, split: str | None) -> Iterator[_Entry]:
    if separator is None and file.suffix.lower() in (".csv", ".tsv"):
        first = next(csv.reader([lines_of(file)[0][1]], delimiter="\t" if file.suffix.lower() == ".tsv" else ","))
        if "youtube_id" in first:
            yield from _of_kinetics(file, split)
            return
        if {"path", "label"} <= set(first):
            _no_split(file, split)
            for where, row in rows_of(file, ("path", "label")):
                path = text_of(row["path"], f"{file}, {where}: path")
                yield _Entry(where, [path], _labels(str(row["label"] or ""), f"{file}, {where}", between))
            return
    _no_split(file, split)
    yield from _of_lines(file, separator, between)


def _no_split(file: Path, split: str | None) -> None:
    if split is not None:
        raise ValueError(f"split: {file} is no csv of Kinetics and tells no splits; take the list of one split")


def _of_kinetics(file: Path, split: str | None) -> Iterator[_Entry]:
    columns = ["label", "youtube_id", "time_start", "time_end", *(["split"] if split else [])]
    for where, row in rows_of(file, columns):
        if split and row["split"] != split:
            continue
        try:
            start, end = (int(float(row[name])) for name in ("time_start", "time_end"))
        except ValueError as error:
            raise ValueError(f"{file}, {where}: time_start and time_end are to be seconds: {error}") from error
        label = text_of(row["label"], f"{file}, {where}: label")
        name = f"{row['youtube_id']}_{start:06d}_{end:06d}.mp4"
        yield _Entry(where, [name, os.path.join(label, name), os.path.join(label.replace(" ", "_"), name)], [label])


def _of_lines(file: Path, separator: str | None, between: str | None) -> Iterator[_Entry]:
    lines = lines_of(file)
    if separator is None and file.suffix.lower() == ".csv" and all("," in line for _, line in lines) and between != ",":
        separator = ","
    for where, line in lines:
        path, *rest = line.rsplit(separator, 1)
        if between is None and not rest:
            raise ValueError(
                f"{file}, {where}: {line!r} has no label; a line is a path, {separator or 'blanks'}, a label"
            )
        yield _Entry(where, [path.strip()], _labels(rest[0] if rest else "", f"{file}, {where}", between))


def _labels(text: str, where: str, between: str | None) -> list[str]:
    if between is None:
        return [text_of(text, f"{where}: label")]
    return [one.strip() for one in text.split(between) if one.strip()]


def _existing(file: Path, root: Path, entries: Sequence[_Entry], missing: str) -> tuple[list[str], list[int]]:
    """Paths of the films that are there, and which entries they are of."""
    paths, kept, lost = [], [], []
    seen: dict[str, str] = {}
    for number, (place, candidates, _) in enumerate(entries):
        path = next((path for path in candidates if os.path.isfile(os.path.join(root, path))), None)
        if path is None:
            lost.append(f"{candidates[0]} ({place})")
            continue
        if path in seen:
            raise ValueError(f"{file} lists {path} twice: {seen[path]} and {place}")
        seen[path] = place
        paths.append(path)
        kept.append(number)
    if lost and missing == "leave_out" and paths:
        log.warning("%s: %d of %d films are not in %s and left out", file, len(lost), len(entries), root)
    else:
        refuse_bad(file, lost, len(entries), f"in {root} (missing: leave_out goes on without them)")
    return paths, kept
