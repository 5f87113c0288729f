"""Videos and labels listed in a file."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from opabinia.config import register
from opabinia.contracts import FrameChannels, InputPath, Video, frame_channels
from opabinia.data.decoding.video import VideoFile
from opabinia.data.sources.annotation_values import errors_in, parse_number, shortened
from opabinia.data.sources.labels import encode_labels, read_classes
from opabinia.data.sources.list_files import cell_text, raise_for_invalid, read_json, read_lines, read_rows
from opabinia.data.sources.videos import VideoFiles
from opabinia.runtime.log import warn_once


class _Entry(NamedTuple):
    """An entry of a list: its location, candidate paths of which one must exist, labels as written, and the part of the
    video between two times."""

    location: str
    paths: list[str]
    labels: list[str]
    span: tuple[float, float | None] | None = None

    def name(self, path: str) -> str:
        """Return the path, with the times as in W3C's media fragments."""
        times = [f"{time:g}" for time in self.span or () if time is not None]
        return f"{path}#t={','.join(times)}" if times else path


@register.source
class VideoList(VideoFiles):
    """Videos and labels as a list, in one of these formats:

    - lines of a path and a label (PaddleVideo, mmaction2, SlowFast): ``v/1.mp4 4``, divided by the last separator;
    - the same with several labels (mmaction2, with ``multi_label``): ``v/1.mp4 1 3 5``;
    - .csv or .tsv with a header line that has the columns ``path`` and ``label``; with ``start`` and ``end`` too, in
      seconds, an entry is this part of the video (an empty ``end``: up to its end), and a video may have several;
    - the .json of Something-Something: a list of objects with ``id`` and ``template`` (or ``label``). Videos are called
      ``<id>.webm`` or ``<id>.mp4``, and ``class_file`` is its labels.json;
    - the csv of Kinetics: ``label,youtube_id,time_start,time_end,split``. Videos are called
      ``<youtube_id>_<start>_<end>.mp4`` with six digits each, in the root or in a folder with the label's name.

    Labels are names, or integers from 0. A sample's id is its path, of a part with its times: ``v/1.mp4#t=1.5,4``.

    Args:
        file: the list.
        root: the folder that the paths are relative to; the list's own folder when not given.
        suffix: added to each path of a list of lines, such as ``.avi``.
        separator: between path and label; when not given a comma in .csv files that have one in every line, else
            whitespace.
        path: the column of a .csv or .tsv with the paths.
        label: its column with the labels.
        classes: names in the order of their numbers; those that occur (0 to the largest number) when not given.
        class_file: instead of ``classes``: a file with a name per line, or ``number name``, or .json with the number of
            each name.
        multi_label: a video may have several labels, or none: ``v/1.mp4 3,5``.
        label_separator: between several labels.
        split: of Kinetics: the entries to use; all when not given.
        missing: handling of missing videos: ``error``, or ``skip``, because many of Kinetics are no longer available.
        channels: 3 for color, 1 for gray; videos are converted.
        flip_sensitive_classes: classes whose mirror image belongs to another class; ``clip_flip`` does not flip them.

    Raises:
        ValueError: an entry has no label or an unknown one, a video (or the same part of it) is missing or listed
            twice, or no entry is left. The text names file and line.
    """

    def __init__(
        self,
        *,
        file: InputPath,
        root: InputPath | None = None,
        suffix: str = "",
        separator: str | None = None,
        path: str = "path",
        label: str = "label",
        classes: list[str] | None = None,
        class_file: InputPath | None = None,
        multi_label: bool = False,
        label_separator: str = ",",
        split: str | None = None,
        missing: Literal["error", "skip"] = "error",
        channels: FrameChannels = 3,
        flip_sensitive_classes: list[str] | None = None,
    ) -> None:
        file = file.expanduser()
        self.root = (root or file.parent).expanduser()
        entries = list(_read_entries(file, separator, label_separator if multi_label else None, split, (path, label)))
        if suffix:
            entries = [entry._replace(paths=[path + suffix for path in entry.paths]) for entry in entries]
        if not entries:
            raise ValueError(f"{file} lists no videos" + (f" of split {split!r}" if split else ""))
        locations, labels = [entry.location for entry in entries], [entry.labels for entry in entries]
        encoded, names = encode_labels(file, locations, labels, read_classes(classes, class_file), multi_label)
        found = _find_videos(file, self.root, entries, skip_missing=missing != "error")
        kept = [entry for entry, _ in found.values()]
        super().__init__(list(map(os.fsencode, found)), encoded[kept], names, channels, flip_sensitive_classes)
        self._spans = {
            name: (path, entries[entry].span) for name, (entry, path) in found.items() if entries[entry].span
        }

    def video(self, index: int) -> Video:
        _, span = self._spans.get(os.fsdecode(self.names[index]), ("", None))
        if span is None:
            return super().video(index)
        return VideoFile(os.fsdecode(self.paths(index)[0]), frame_channels(self.channels), start=span[0], end=span[1])

    def paths(self, index: int) -> Sequence[bytes]:
        name = os.fsdecode(self.names[index])
        path, _ = self._spans.get(name, (name, None))
        return (os.fsencode(os.path.join(self.root, path)),)


def _read_entries(
    file: Path, separator: str | None, label_separator: str | None, split: str | None, columns: tuple[str, str]
) -> Iterator[_Entry]:
    header: list[str] = []
    if separator is None and file.suffix.lower() in (".csv", ".tsv"):
        delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
        location, line = read_lines(file)[0]
        with errors_in(f"{file}, {location}: ", csv.Error):
            header = next(csv.reader([line], delimiter=delimiter))
    if "youtube_id" in header:
        yield from _read_kinetics(file, split)
        return
    if split is not None:
        raise ValueError(f"split: {file} is not a Kinetics csv and has no splits; use the list of one split")
    if {*columns} <= {*header}:
        for location, row in read_rows(file, columns):
            path, text = cell_text(row[columns[0]], f"{file}, {location}: {columns[0]}"), str(row[columns[1]] or "")
            labels = _split_labels(text, f"{file}, {location}", label_separator)
            yield _Entry(location, [path], labels, _read_span(row, f"{file}, {location}"))
        return
    if file.suffix.lower() == ".json":
        yield from _read_something(file)
        return
    lines = read_lines(file)
    if separator is None and file.suffix.lower() == ".csv" and label_separator != ",":
        separator = "," if all("," in line for _, line in lines) else None
    for location, line in lines:
        if separator is None and label_separator == "," and (match := re.fullmatch(r"(.+?\S)\s+([\d,\s]+)", line)):
            yield _Entry(location, [match[1]], re.findall(r"\d+", match[2]))
            continue
        path, *rest = line.rsplit(separator, 1)
        if label_separator is None and not rest:
            expected = f"a path, {separator or 'whitespace'}, a label"
            raise ValueError(f"{file}, {location}: {shortened(line)} has no label; expected {expected}")
        labels = _split_labels(rest[0] if rest else "", f"{file}, {location}", label_separator)
        yield _Entry(location, [path.strip()], labels)


def _read_kinetics(file: Path, split: str | None) -> Iterator[_Entry]:
    columns = ["label", "youtube_id", "time_start", "time_end", *(["split"] if split else [])]
    for location, row in read_rows(file, columns):
        if split and row["split"] != split:
            continue
        with errors_in(f"{file}, {location}: time_start and time_end must be seconds: "):
            start, end = (int(parse_number(row[name])) for name in ("time_start", "time_end"))
        label = cell_text(row["label"], f"{file}, {location}: label")
        name = f"{row['youtube_id']}_{start:06d}_{end:06d}.mp4"
        paths = [name, os.path.join(label, name), os.path.join(label.replace(" ", "_"), name)]
        yield _Entry(location, paths, [label])


def _read_span(row: Mapping[str, Any], where: str) -> tuple[float, float | None] | None:
    """Return start and end in the columns of these names; None without.

    Raises:
        ValueError: they are not such times.
    """
    texts = [str(row.get(name) or "").strip() for name in ("start", "end")]
    if not any(texts):
        return None
    with errors_in(f"{where}: start and end must be seconds: "):
        start, end = (parse_number(text) if text else None for text in texts)
    start = start or 0.0
    if start < 0 or (end is not None and not start < end):
        raise ValueError(
            f"{where}: a part from {start:g} to {texts[1] or 'the end'} is empty; expected 0 <= start < end"
        )
    return start, end


def _read_something(file: Path) -> Iterator[_Entry]:
    """Read a list of Something-Something (Goyal et al. 2017): its classes are templates without their brackets."""
    rows = read_json(file)
    for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
        where = f"{file}, entry {number}"
        if not isinstance(row, dict) or "id" not in row or not {"template", "label"} & set(row):
            raise ValueError(f"{where}: expected an object with id and template (or label)")
        label = cell_text(row.get("template", row.get("label")), f"{where}: template")
        name = cell_text(row["id"], f"{where}: id")
        yield _Entry(f"entry {number}", [f"{name}.webm", f"{name}.mp4"], [re.sub(r"[\[\]]", "", label)])


def _split_labels(text: str, where: str, separator: str | None) -> list[str]:
    if separator is None:
        return [cell_text(text, f"{where}: label")]
    return [label.strip() for label in text.split(separator) if label.strip()]


def _find_videos(
    file: Path, root: Path, entries: Sequence[_Entry], *, skip_missing: bool
) -> dict[str, tuple[int, str]]:
    """Return the names of the videos that exist, each with the index of its entry and its path."""
    found: dict[str, tuple[int, str]] = {}
    seen: dict[str, int] = {}  # by normalized name
    missing = []
    for index, entry in enumerate(entries):
        path = next((path for path in entry.paths if os.path.isfile(os.path.join(root, path))), None)
        if path is None:
            missing.append(f"{entry.paths[0]} ({entry.location})")
        elif (first := seen.setdefault(entry.name(os.path.normpath(path)), index)) != index:
            name = entry.name(path)
            raise ValueError(f"{file} lists {name} twice: {entries[first].location} and {entry.location}")
        else:
            found[entry.name(path)] = index, path
    if missing and skip_missing and found:
        warn_once("%s: %d of %d videos are missing in %s and skipped", file, len(missing), len(entries), root)
    else:
        raise_for_invalid(file, missing, len(entries), f"in {root} (missing: skip ignores them)")
    return found
