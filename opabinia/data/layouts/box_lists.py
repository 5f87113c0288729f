"""Lists of bounding boxes, whose columns are recognized by their names, or by what is in them."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.box_columns import UNNAMED, BoxColumns, box_columns, guess_format
from opabinia.data.layouts.folder import DoubtfulLayout, Folder, UnreadableLayout, listed, split_of
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.lists import SPLIT_COLUMNS, ImageList, find_paths, list_files, parquet_columns
from opabinia.data.layouts.pairing import split_of_path
from opabinia.data.layouts.readings import check_training
from opabinia.data.sources.annotation_errors import ErrorCollector
from opabinia.data.sources.box_lists import Corners, expand_objects, parse_box
from opabinia.data.sources.file_names import sort_names
from opabinia.data.sources.image_headers import read_sizes
from opabinia.data.sources.list_files import listed_path, read_rows
from opabinia.runtime.text import plural

_SAMPLED = 1000
"""Rows that are read to recognize columns."""
_MOST_NUMBERS = 6
"""Columns of numbers in lists of boxes: four, a class, and a score. Lists of landmarks have more."""
_IMAGES = 100
"""Images whose sizes are read to recognize what boxes are."""
_LABEL = re.compile(
    r"class|label|categor|^cls|type|species|breed|object|^obj|tag|^name$|target|diagnosis", re.IGNORECASE
)
"""Names of columns of classes."""
_NUMBER = re.compile(r"\s*-?\d+(\.\d*)?(e-?\d+)?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class _Boxes:
    """A list of boxes.

    Attributes:
        table: the list and its images.
        columns: of the boxes.
        label: column of the classes; None: there is none.
        format: meaning of the numbers.
        relative: they are fractions of the image.
        options: of the source, to read the rows: ``header`` and ``separator``.
        notes: remarks.
    """

    table: ImageList
    columns: BoxColumns
    label: str | None
    format: Corners
    relative: bool
    options: Mapping[str, Any]
    notes: Sequence[str]

    def section(self, folder: Folder) -> dict[str, Any]:
        """Return the source without its classes and split."""
        section = {**self.table.section(folder, "box_list"), **self.options}
        section |= {"label": self.label} if self.label != "label" else {}
        section |= {"box": list(self.columns.names)} if self.columns.names != ["xmin", "ymin", "xmax", "ymax"] else {}
        section |= {"format": self.format} if self.format != "corners" else {}
        return section | ({"relative": True} if self.relative else {})


def read_box_lists(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of lists with a bounding box in each row.

    Raises:
        DoubtfulLayout: there is none to train on.
    """
    names = list_files(folder) if folder.only is None else [folder.only]
    found = [boxes for name in names if (boxes := _read(folder, name)) is not None]
    if any(_is_region(boxes) for boxes in found):
        return
    by_split: dict[str | None, list[_Boxes]] = defaultdict(list)
    for boxes in found:
        by_split[split_of_path(boxes.table.name)].append(boxes)
    if "train" in by_split:  # another list may have all of them
        by_split.pop(None, None)
    if None in by_split and len(by_split) == 1 and len(found) == 1:
        yield from _one_list(folder, found[0])
        return
    if not found:
        return
    named = {split: group[0] for split, group in by_split.items() if split is not None}
    try:
        check_training(folder, named, "expected train.csv")
    except UnreadableLayout as error:  # such lists are often beside other annotations
        raise DoubtfulLayout(str(error)) from error
    if not named or any(len(group) > 1 for group in by_split.values()):
        for boxes in found:
            yield from _one_list(folder, boxes, f"boxes_{boxes.table.name.rpartition('/')[2].partition('.')[0]}")
        return
    classes = sort_names({name for boxes in named.values() for name in _classes(folder, boxes)})
    sections = {split: boxes.section(folder) | {"classes": classes} for split, boxes in named.items()}
    tables = listed([boxes.table.name for boxes in named.values()])
    description = f"boxes of {plural(len(classes), 'class', 'es')} listed in {tables}"
    notes = [*dict.fromkeys(note for boxes in named.values() for note in boxes.notes)]
    yield Layout("boxes", "detection", description, sections, notes=[*notes, *_others(folder, [*named.values()])])


def _is_region(boxes: _Boxes) -> bool:
    """Return whether boxes are regions of images in class folders: one in each image, of the class of its folder, or of
    none in a list in the folder of a class."""
    table = boxes.table
    paths = [str(path) for path in table.values(table.path)]
    if len({*paths}) < len(paths):
        return False
    parents = [PurePosixPath(table.root, path).parent.name for path in paths]
    if boxes.label is None:
        of_list = PurePosixPath(table.name).parent.name
        return bool(of_list) and split_of(of_list) is None and of_list in PurePosixPath(table.name).stem
    pairs = zip(parents, map(str, table.values(boxes.label)), strict=True)
    return all(a == b or (a.isdecimal() and b.isdecimal() and int(a) == int(b)) for a, b in pairs)


def _one_list(folder: Folder, boxes: _Boxes, name: str = "boxes") -> Iterator[Layout]:
    """Yield the reading of one list, which may have a column with the split."""
    table, section = boxes.table, boxes.section(folder)
    sections: dict[str, dict[str, Any]] = {"train": section}
    column = table.column(SPLIT_COLUMNS)
    classes = sort_names(_classes(folder, boxes))
    if column is not None:
        values = {str(row[column]).strip() for row in _rows(folder, table.name, boxes.options)}
        splits = {split: value for value in sorted(values) if (split := split_of(value))}
        options: dict[str, Any] = {"classes": classes} | ({"split_column": column} if column != "split" else {})
        sections = {split: section | {"split": value} | options for split, value in splits.items()} or sections
        check_training(folder, sections, f"the column {column} should have rows of train")
    description = f"boxes of {plural(len(classes), 'class', 'es')} listed in {table.name}"
    yield Layout(name, "detection", description, sections, notes=[*boxes.notes, *_others(folder, [boxes])])


def _others(folder: Folder, lists: Sequence[_Boxes]) -> Sequence[str]:
    """Return a remark on what is not read."""
    used = {part.partition("/")[0] for boxes in lists for part in (boxes.table.name, boxes.table.root)}
    if any(not boxes.table.root for boxes in lists):
        used |= {*folder.folders, *folder.named(*EXTENSIONS)}
    return folder.others(used)


def _classes(folder: Folder, boxes: _Boxes) -> set[str]:
    """Return the names of all classes in a list."""
    if boxes.label is None:
        return {"object"}
    rows = _rows(folder, boxes.table.name, boxes.options)
    return {str(row[boxes.label]).strip() for row in rows if not _is_empty(row, boxes.columns.names)}


def _is_empty(row: Mapping[str, Any], columns: Sequence[str]) -> bool:
    try:
        return parse_box(row, columns) is None
    except ValueError:  # reported by the source
        return True


def _rows(folder: Folder, name: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a list, or of the objects in them."""
    given = dict(options)
    objects = given.pop("objects", None)
    file = folder.path / name
    columns = parquet_columns(file, nested=True) if name.lower().endswith(".parquet") else ()
    for _, row in read_rows(file, columns, **given):
        yield from [row] if objects is None else expand_objects(row, objects, _object_keys(row[objects]))


# --- one list ---------------------------------------------------------------------------------------------------------


def _read(folder: Folder, name: str) -> _Boxes | None:
    """Return a list of boxes; None if it is none, or its images are not found."""
    options: dict[str, Any] = {}
    if name.lower().endswith((".csv", ".tsv", ".txt")):
        options = _cells(folder, name) or {}
        if not options and name.lower().endswith(".txt"):
            return None
    rows: list[dict[str, Any]] = []
    with suppress(ValueError):  # the source reports the line, if it is a list of boxes
        rows.extend(islice(_rows(folder, name, options), _SAMPLED))
    if rows and (objects := next((key for key, value in rows[0].items() if _holds_objects(value)), None)):
        keys = sorted({key for row in rows for key in _object_keys(row[objects])})
        rows = [entry for row in rows for entry in expand_objects(row, objects, keys)]
        options = {"objects": objects}
    columns = box_columns(list(rows[0])) if rows else None
    table = find_paths(folder, name, rows) if columns is not None else None
    if columns is None or table is None:
        return None
    boxes = [(row, box) for row in rows if (box := _box(row, columns.names)) is not None]
    if not boxes:
        return None
    relative = max(max(box) for _, box in boxes) <= 1 and any(value % 1 for _, box in boxes for value in box)
    format, notes = _format(folder, table, columns, boxes, relative)
    label = next((column for column in rows[0] if _is_label(column, table, columns)), None)
    if label is None:
        others = [column for column in rows[0] if column not in (table.path, *columns.names)]
        notes.append(f"no column has classes{f' ({listed(others)})' if others else ''}: all objects are of one class")
    if options.get("separator") in (",", "\t") and not name.lower().endswith(".txt"):
        del options["separator"]
    return _Boxes(table, columns, label, format, relative, options, notes)


def _object_keys(value: Any) -> list[str]:
    """Return the names of what an entry with objects says of them."""
    entries = value if isinstance(value, list) else [value]
    return [key for entry in entries if isinstance(entry, dict) for key in entry]


def _holds_objects(value: Any) -> bool:
    return any(key.lower() in ("bbox", "box", "boxes", "bboxes") for key in _object_keys(value))


def _box(row: Mapping[str, Any], columns: Sequence[str]) -> list[float] | None:
    try:
        return parse_box(row, columns)
    except ValueError:
        return None


def _is_label(column: str, table: ImageList, columns: BoxColumns) -> bool:
    return column not in (table.path, *columns.names) and bool(_LABEL.search(column))


def _format(
    folder: Folder,
    table: ImageList,
    columns: BoxColumns,
    boxes: Sequence[tuple[Mapping[str, Any], Sequence[float]]],
    relative: bool,
) -> tuple[Corners, list[str]]:
    """Return the meaning of the numbers of boxes, and a remark if it is not certain."""
    if columns.format is not None:
        return columns.format, []
    names = [listed_path(str(row[table.path]), table.place.prefix) + table.place.suffix for row, _ in boxes]
    chosen = sorted({*names})[:_IMAGES]
    sizes = [(1, 1)] * len(boxes)
    if not relative:
        root = folder.path / table.root
        measured = read_sizes(root, [name.encode() for name in chosen], ErrorCollector())
        of_name = {name: (width, height) for name, (height, width) in zip(chosen, measured.tolist(), strict=True)}
        sizes = [of_name.get(name, (0, 0)) for name in names]
    known = [(box, size) for (_, box), size in zip(boxes, sizes, strict=True) if all(size)]
    guessed = guess_format([box for box, _ in known], [size for _, size in known])
    if guessed is not None:
        return guessed, []
    usual: Corners = "corners" if len(columns.names) == 4 else "corner_size"
    meaning = "left, top, right, bottom" if usual == "corners" else "left, top, width, height"
    return usual, [f"{folder.at(table.name)}: the numbers of boxes are taken for {meaning}; format says otherwise"]


# --- files without names of columns -----------------------------------------------------------------------------------


def _cells(folder: Folder, name: str) -> dict[str, Any] | None:
    """Return what separates the cells of a file, and names of its columns if it has no line with them; None if it has
    no rows of an image and numbers."""
    lines = [line for line in folder.head(name, 1 << 14).splitlines()[:40] if line.strip()][:20]
    if not lines:
        return None
    separator = max((",", ";", "\t", "|"), key=lines[0].count)
    if name.lower().endswith(".txt") and not lines[0].count(separator):
        separator = " "
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator)]
    width = len(rows[0])
    if width < 2 or any(len(row) != width for row in rows[:-1]):
        return None
    first = rows[0]
    if not any(_NUMBER.fullmatch(cell) or cell.lower().endswith(EXTENSIONS) for cell in first):
        return {"separator": separator}
    header = _header(rows)
    return None if header is None else {"separator": separator, "header": header}


def _header(rows: Sequence[Sequence[str]]) -> list[str] | None:
    """Return names of the columns of rows: of the image, of four numbers after each other, and of the class; None if
    there are no such columns, or as many numbers as those of landmarks."""
    columns = list(zip(*rows, strict=True)) if len({*map(len, rows)}) == 1 else list(zip(*rows[:-1], strict=True))
    numeric = [all(not cell or _NUMBER.fullmatch(cell) for cell in column) and any(column) for column in columns]
    image = next((i for i, column in enumerate(columns) if all(c.lower().endswith(EXTENSIONS) for c in column)), None)
    start = next((i for i in range(len(columns) - 3) if all(numeric[i : i + 4])), None)
    if image is None or start is None or sum(numeric) > _MOST_NUMBERS:
        return None
    header = [f"column_{number}" for number in range(len(columns))]
    header[image] = "path"
    header[start : start + 4] = UNNAMED
    others = [i for i, name in enumerate(header) if name.startswith("column_")]
    others.sort(key=lambda i: numeric[i])  # names of classes before their numbers
    if others:
        header[others[0]] = "label"
    return header
