"""Lists of images with labels or identities: the columns are recognized by their content."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS as IMAGES
from opabinia.data.layouts.box_columns import box_columns
from opabinia.data.layouts.folder import DoubtfulLayout, Folder, UnreadableLayout, listed, split_in, split_of
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.pairing import Place, above, locate, split_of_path
from opabinia.data.layouts.readings import check_training
from opabinia.data.sources.file_names import sort_names
from opabinia.data.sources.list_files import listed_path, read_rows
from opabinia.data.sources.table import SUBSETS
from opabinia.runtime.text import plural

_SAMPLED = 1000
"""Rows that are read to recognize columns."""
LABELS = (
    *("label", "labels", "class", "classes", "class_name", "category", "target", "tags", "species", "breed"),
    *("label_name", "classname", "y", "diagnosis", "dx", "choice", "name"),
)
_LABEL = re.compile(r"label|class|categor|diagnos|breed|species", re.IGNORECASE)
"""Names of columns of labels, if one column has such a name."""
_IDENTITIES = ("identity", "pid", "person_id", "individual_id", "vehicle_id", "identity_id", "object_id", "person")
_CAMERAS = ("camera", "camid", "cam", "camera_id", "cam_id")
SPLIT_COLUMNS = ("split", "subset", "set", "partition", "phase", "usage")
_SIZES = ("width", "height", "image_width", "image_height")
_RUNS_NAME = re.compile(r"pixels|encod|rle|segmentation", re.IGNORECASE)
_RUNS = re.compile(r"-1|\d+ \d+( \d+ \d+)*\s*")
"""Names and values of columns with run lengths of masks."""
_FILES = 50
"""Lists that are looked at, at most."""
_SEPARATORS = ("|", ";", ",", " ")


@dataclass(frozen=True)
class ImageList:
    """A list of images.

    Attributes:
        name: the file.
        path: the column of paths.
        place: where the images are.
        rows: the first ones.
        header: names of the columns, if the list has no line with them.
    """

    name: str
    path: str
    place: Place
    rows: Sequence[Mapping[str, Any]]
    header: Sequence[str] = ()

    @property
    def root(self) -> str:
        """The folder that the paths are relative to."""
        return self.place.root

    def values(self, column: str) -> list[Any]:
        """Return the values in a column."""
        return [row.get(column) for row in self.rows]

    def column(self, names: Sequence[str]) -> str | None:
        """Return the column whose name is one of ``names`` in lower case."""
        columns = {column.strip().lower(): column for column in self.rows[0]}
        return next((columns[name] for name in names if name in columns and columns[name] != self.path), None)

    @property
    def identities(self) -> str | None:
        """The column of identities. One called ``person`` has more of them than 0 and 1: it may be a label."""
        name = self.column(_IDENTITIES)
        if name is not None and name.strip().lower() == "person" and {*map(str, self.values(name))} <= {"0", "1"}:
            return None
        return name

    def section(self, folder: Folder, source: str) -> dict[str, Any]:
        """Return a source of this list without other columns."""
        section: dict[str, Any] = {"name": source, "file": folder.at(self.name)}
        if self.root != above(self.name):
            section["root"] = folder.at(self.root)
        given = {"path": self.path, "prefix": self.place.prefix, "suffix": self.place.suffix}
        section |= {"folders": list(self.place.folders)} if self.place.folders else {}
        section |= {"header": list(self.header)} if self.header else {}
        return section | {key: value for key, value in given.items() if value not in ("", "path")}


def read_lists(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of lists of images: with labels, or with identities.

    Raises:
        UnreadableLayout: it is not clear which column has the labels, or the lists of splits do not fit together.
    """
    tables = [table for name in list_files(folder) if (table := _read_list(folder, name)) is not None]
    tables = [table for table in tables if not (_repeats_folders(folder, table) or _describes_classes(folder, table))]
    if not tables:
        return
    if any(table.identities for table in tables):
        yield from _identities(folder, tables)
        return
    unnamed = [table for table in tables if _split_of_file(table.name) is None]
    groups = _lists_of_splits(folder, tables)
    if len(groups) > 1:  # other labels of the same images
        for name, by_split in groups.items():
            with suppress(DoubtfulLayout):
                yield from _split_lists(folder, by_split, f"list_{name}")
    elif groups:
        yield from _split_lists(folder, next(iter(groups.values())))
    elif len(unnamed) == 1:
        yield from _one_list(folder, unnamed[0])
    else:
        for table in unnamed:
            options = _label_options(folder, table, needed=False)
            if options is not None:
                section = table.section(folder, "table") | options
                stem = os.path.splitext(os.path.basename(table.name))[0]
                yield Layout(
                    f"list_{stem}", "classification", f"images and labels listed in {table.name}", {"train": section}
                )


def _lists_of_splits(folder: Folder, tables: Sequence[ImageList]) -> dict[str, dict[str, ImageList]]:
    """Return the lists of splits by what else is in their names; of any names if one name at most has training data."""
    groups: dict[str, dict[str, ImageList]] = {}
    for table in tables:
        split = _split_of_file(table.name)
        if split is not None and (split != "test" or _label_options(folder, table, needed=False) is not None):
            words = re.split(r"[^A-Za-z0-9]+", os.path.splitext(os.path.basename(table.name))[0])
            rest = "_".join(word for word in words if split_in(word) is None)
            groups.setdefault(rest, {}).setdefault(split, table)
    trained = {name: group for name, group in groups.items() if "train" in group}
    if len(trained) > 1:
        return trained
    merged = {split: table for group in reversed(groups.values()) for split, table in group.items()}
    merged |= next(iter(trained.values()), {})
    return {"": merged} if merged else {}


SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".txt")
"""Suffixes of lists."""


def list_files(folder: Folder) -> list[str]:
    """Return the paths of files that may be lists, some of each folder; answers for a competition are none."""
    files = [f"{place}/{name}".lstrip("/") for place in folder.places(SUFFIXES) for name in _some(folder.sub(place))]
    files = [name for name in files if "submission" not in name.lower()]
    return files[:_FILES]


def _some(folder: Folder) -> list[str]:
    """Return a few lists in a folder; if there are many text files, these are labels of one image each."""
    texts = folder.named(".txt")
    return [name for name in folder.named(*SUFFIXES) if len(texts) <= _FILES or name not in texts][:_FILES]


def _split_of_file(name: str) -> str | None:
    return split_of_path(os.path.splitext(name)[0])


def _read_list(folder: Folder, name: str) -> ImageList | None:
    """Return a list of images; None if no column has their paths, or it lists boxes."""
    file = folder.path / name
    columns = parquet_columns(file) if name.lower().endswith(".parquet") else ()
    rows: list[dict[str, Any]] = []
    with suppress(ValueError):  # the source reports the line if it is a list of images
        if columns or not name.lower().endswith(".parquet"):
            rows.extend(row for _, row in islice(read_rows(file, columns), _SAMPLED))
    if not rows or box_columns(list(rows[0])) or _is_box_row(rows[0]):
        return None
    if any(isinstance(value, dict) for value in rows[0].values()):  # objects of each image
        return None
    header: Sequence[str] = ()
    if name.lower().endswith((".csv", ".tsv")) and any(cell.strip().lower().endswith(IMAGES) for cell in rows[0]):
        cells = [[*rows[0]], *([*row.values()] for row in rows)]
        header = [f"column_{number}" for number in range(1, len(rows[0]) + 1)]
        rows = [dict(zip(header, row, strict=True)) for row in cells]
    table = find_paths(folder, name, rows)
    if table is None or len(table.rows) < _SAMPLED:
        return table and replace(table, header=header)
    every = [str(row[table.path]) for _, row in read_rows(file, [table.path], header=header or None)]
    place = locate(folder, every[:: len(every) // _SAMPLED], _split_of_file(name))
    return replace(table, header=header, place=place or table.place)


def _is_box_row(cells: Iterable[str]) -> bool:
    """Return whether the first line of a list has an image and a box, and no names of columns."""
    texts = [cell.strip().lower() for cell in cells]
    return sum(text.isdecimal() for text in texts) >= 4 and any(text.endswith(IMAGES) for text in texts)


def find_paths(folder: Folder, name: str, rows: Sequence[Mapping[str, Any]]) -> ImageList | None:
    """Return a list with its column of paths of images; None if it has none."""
    columns = {column: [str(row.get(column) or "").strip() for row in rows[:20]] for column in rows[0]}
    suffixed = [column for column, values in columns.items() if all(value.lower().endswith(IMAGES) for value in values)]
    for column in dict.fromkeys([*suffixed, *columns]):
        values = columns[column]
        place = locate(folder, values, _split_of_file(name)) if all(values) else None
        if place is not None:
            return ImageList(name, column, place, rows)
    return None


def _repeats_folders(folder: Folder, table: ImageList) -> bool:
    """Return whether the labels in a list are the folders of the images, by name or one for each, or it has none: then
    the folders are read."""
    if table.identities:
        return False
    options = _label_options(folder, table, needed=False)
    parents = [PurePosixPath(table.root, str(value)).parent.name for value in table.values(table.path)]
    if options is None:
        return len({*parents}) > 1
    if "label_columns" in options:
        return False
    labels = [str(value) for value in table.values(options.get("label", "label"))]
    index = folder.whole.images_by_name
    names = [PurePosixPath(str(value)).name + table.place.suffix for value in table.values(table.path)]
    folders = [{PurePosixPath(path).parent.name for path in index.get(name, ())} for name in names]
    if all(label in found for label, found in zip(labels, folders, strict=True)):
        return True
    pairs = {*zip(parents, labels, strict=True)}
    return 1 < len(pairs) == len({*parents}) == len({*labels})


def _describes_classes(folder: Folder, table: ImageList) -> bool:
    """Return whether a list has an image for each class, of many more images."""
    named = [table.values(name) for name in table.rows[0] if name != table.path and _LABEL.search(name)]
    distinct = any(len({*map(str, values)}) == len(values) for values in named)
    return distinct and len(table.rows) < len(folder.whole.images_by_name) / 8


def parquet_columns(file: Path, *, nested: bool = False) -> list[str]:
    """Return the columns with texts and integers, and with numbers and lists if ``nested``; none without pyarrow, or if
    there are images in the file."""
    types = parquet_types(file)
    if any(is_image_column(kind) for kind in types.values()):
        return []
    wanted = ("string", "large_string", "int64", "int32")
    return [name for name, kind in types.items() if kind in wanted or (nested and not kind.startswith("struct"))]


def parquet_types(file: Path) -> dict[str, str]:
    """Return the types of the columns of a parquet file; none without pyarrow."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        return {}
    try:
        with parquet.ParquetFile(file) as table:
            return {column.name: str(column.type) for column in table.schema_arrow}
    except (ArrowException, OSError):
        return {}


def is_image_column(kind: str) -> bool:
    """Return whether a column of this type may hold image files."""
    return kind in ("binary", "large_binary") or "bytes: binary" in kind or "bytes: large_binary" in kind


# --- labels -----------------------------------------------------------------------------------------------------------


def _label_options(folder: Folder, table: ImageList, *, needed: bool = True) -> dict[str, Any] | None:
    """Return the options of the source ``table`` for the labels; None if there are none and none are ``needed``.

    Raises:
        UnreadableLayout: it is not clear which column has them.
    """
    column = table.column(LABELS)
    others = [name for name in table.rows[0] if name != table.path and name.lower() not in (*SPLIT_COLUMNS, *_SIZES)]
    if column is None:
        for name in others:
            if _RUNS_NAME.search(name) and all(map(_RUNS.fullmatch, map(str, filter(None, table.values(name))))):
                raise UnreadableLayout(
                    f"{folder.at(table.name)}: {name} has run lengths of masks, which are not read from lists; write "
                    "masks/1_0.png for each object of images/1.jpg, or COCO's format"
                )
        marks = [name for name in others if _marks(table.values(name)) <= {"0", "1", "-1"}]
        if len(marks) >= 2:
            counts = {sum(str(row[name]).strip().startswith("1") for name in marks) for row in table.rows}
            return {"label_columns": marks} | ({"multi_label": True} if counts != {1} else {})
        repeated = [name for name in others if _is_repeated(table.values(name))]
        called = [name for name in repeated if _LABEL.search(name)]
        repeated = called if len(called) == 1 else repeated
        if len(repeated) > 1 and needed:
            are_numbers = all(_is_number(value) for name in repeated for value in table.values(name))
            hint = "; numbers such as those of points are not predicted (regression)" if are_numbers else ""
            columns = f"the columns {listed(repeated)} may be the labels"
            raise UnreadableLayout(f"{folder.at(table.name)}: {columns}; call one of them label{hint}")
        column = repeated[0] if len(repeated) == 1 else None
    if column is None and needed:
        numbers = [name for name in others if all(_is_number(value) for value in table.values(name))]
        found = f"{folder.at(table.name)} has paths of images ({table.path}), and no column with labels"
        if numbers:
            raise DoubtfulLayout(
                f"{found}: {listed(numbers)} has numbers, which are not predicted (regression); ranges of them can be "
                "classes in a column label"
            )
        raise DoubtfulLayout(f"{found} among {listed(others) or 'its columns'}; call it label")
    if column is None:
        return None
    named = {"label": column} if column != "label" else {}
    return named | _several(column, table.values(column))


def _marks(values: Sequence[Any]) -> set[str]:
    """Return the texts in a column, of numbers without a fraction of zero."""
    return {str(value).strip().removesuffix(".0") for value in values}


def _is_number(value: Any) -> bool:
    return re.fullmatch(r"-?\d+(\.\d*)?(e-?\d+)?", str(value).strip().lower()) is not None


def _is_repeated(values: Sequence[Any]) -> bool:
    """Return whether values may be labels: there are at least two, few compared with the rows, and no fractions."""
    texts = [str(value).strip() for value in values]
    distinct = {*texts}
    return 2 <= len(distinct) <= len(texts) / 2 and not any(
        re.fullmatch(r"-?\d*\.\d*[1-9]\d*", text) for text in distinct
    )


def _several(column: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return the options for cells with several labels."""
    if any(isinstance(value, list) for value in values):
        return {"multi_label": True}
    texts = {str(value).strip() for value in values if value is not None}
    for separator in _SEPARATORS:
        parts = {part.strip() for text in texts for part in text.split(separator)}
        numbered = all(part.isdecimal() for part in parts)
        if separator == " " and column.lower() not in ("labels", "tags") and not numbered:
            continue
        if any(separator in text for text in texts) and (numbered or separator == "|" or len(parts) < len(texts)):
            return {"multi_label": True, "separator": separator}
    return {"multi_label": True} if any(value in (None, "") for value in values) else {}


def _one_list(folder: Folder, table: ImageList) -> Iterator[Layout]:
    """Yield the reading of one list, which may have a column with the split."""
    section = table.section(folder, "table") | (_label_options(folder, table) or {})
    sections: dict[str, dict[str, Any]] = {"train": section}
    column = table.column(SPLIT_COLUMNS)
    if column is not None:
        values = {str(row[column]).strip() for _, row in read_rows(folder.path / table.name, [column])}
        splits = {split: value for value in sorted(values) if (split := split_of(value))}
        options = {"split_column": column} if column != "split" else {}
        sections = {split: section | {"split": value} | options for split, value in splits.items()} or sections
        check_training(folder, sections, f"the column {column} should have rows of train")
    description = f"images and labels listed in {table.name}"
    notes = folder.others([table.name.partition("/")[0], table.root.partition("/")[0], *_top_folders(table)])
    yield Layout("list", "classification", description, sections, notes=notes)


def _top_folders(table: ImageList) -> set[str]:
    """Return the files and folders of images in the folder itself."""
    if table.root:
        return set()
    names = [listed_path(str(value), table.place.prefix) + table.place.suffix for value in table.values(table.path)]
    return {name.partition("/")[0] for name in (*names, *table.place.folders)}


def _split_lists(folder: Folder, by_split: Mapping[str, ImageList], name: str = "list") -> Iterator[Layout]:
    """Yield the reading of a list for each split, with the name of the layout."""
    check_training(folder, by_split, "expected train.csv")
    sections = {
        split: table.section(folder, "table") | (_label_options(folder, table) or {})
        for split, table in by_split.items()
    }
    classes = _labels(folder, by_split["train"], sections["train"])
    for split, table in by_split.items():
        present = _labels(folder, table, sections[split])
        if new := [name for name in present if name not in classes]:
            raise UnreadableLayout(
                f"{folder.at(table.name)}: {listed(new)} are no labels in {by_split['train'].name} ({listed(classes)})"
            )
        if present != classes:
            sections[split]["classes"] = classes
    names = [table.name for table in by_split.values()]
    used = {
        part.partition("/")[0] for table in by_split.values() for part in (table.name, table.root, *_top_folders(table))
    }
    description = f"images and labels of {plural(len(classes), 'class', 'es')} listed in {listed(names)}"
    yield Layout(name, "classification", description, sections, notes=folder.others(used))


def _labels(folder: Folder, table: ImageList, section: Mapping[str, Any]) -> list[str]:
    """Return all labels in a list, in the order of the source."""
    if "label_columns" in section:
        return list(section["label_columns"])
    column, several = section.get("label", "label"), section.get("multi_label")
    separator, found = section.get("separator", "|"), set[str]()
    for _, row in read_rows(folder.path / table.name, [column]):
        value = row[column]
        if value is not None:
            parts = value if isinstance(value, list) else str(value).split(separator) if several else [value]
            found |= {str(part).strip() for part in parts if str(part).strip()}
    return sort_names(found)


# --- identities -------------------------------------------------------------------------------------------------------


def _identities(folder: Folder, tables: Sequence[ImageList]) -> Iterator[Layout]:
    """Yield the reading of a list of images with identities.

    Raises:
        UnreadableLayout: there are several, or its paths have no suffix.
    """
    if len(tables) > 1:
        names = listed([folder.at(table.name) for table in tables])
        raise UnreadableLayout(f"{names} have identities; expected one list with a column split ({', '.join(SUBSETS)})")
    table = tables[0]
    if table.place.suffix or table.place.prefix:
        example = f"{folder.at(table.name)}: write paths as they are below {folder.at(table.root)}"
        raise UnreadableLayout(f"{example}, with their suffix")
    usual = {"path": table.path, "identity": table.identities, "camera": table.column(_CAMERAS)}
    section = {"name": "identities", "file": folder.at(table.name)}
    section |= {} if table.root == table.name.rpartition("/")[0] else {"root": folder.at(table.root)}
    columns: dict[str, Any] = {key: column for key, column in usual.items() if column != key}
    column = table.column(SPLIT_COLUMNS)
    values = {str(row[column]).strip() for _, row in read_rows(folder.path / table.name, [column])} if column else set()
    if not column or not values <= {*SUBSETS}:
        given = f"the column {column} has {listed(sorted(values))}, not {', '.join(SUBSETS)}, and is not used"
        note = [given] if column else []
        sections = {"train": section | columns | {"split_column": None, "split": "train"}}
    else:
        note = []
        columns |= {"split_column": column} if column != "split" else {}
        sections = {"train": section | columns | {"split": "train"}}
        if values & {"query", "test"}:
            sections["test"] = section | columns | {"split": "test"}
    notes = [*note, *folder.others([table.name.partition("/")[0], table.root.partition("/")[0], *_top_folders(table)])]
    yield Layout("identity_list", "reid", f"images and identities listed in {table.name}", sections, notes=notes)
