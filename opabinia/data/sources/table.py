"""Images and labels, pairs or identities listed in a file."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Channels, InputPath, SourceInfo
from opabinia.data.sources.annotation_values import parse_flag
from opabinia.data.sources.file_names import decode_name, sort_names
from opabinia.data.sources.labels import class_indices, multi_hot
from opabinia.data.sources.list_files import cell_text, check_files_exist, listed_path, read_lines, read_rows
from opabinia.data.sources.named import ImageFiles
from opabinia.data.sources.reid_base import ReidImage, ReidSplit, Split, identity_files, open_split, read_split
from opabinia.runtime.log import warn_once


def label_info(classes: Sequence[str], labels: NDArray[Any], channels: Channels) -> SourceInfo:
    """Return the facts about images with one label each (int64, N), or with several (float32 of 0 and 1, N x K)."""
    return SourceInfo(channels=channels, classes=tuple(classes), labels=labels, multi_label=labels.ndim == 2)


@register.source
class Table(ImageFiles):
    """Images and labels as a list: .csv or .tsv with a header line, .jsonl with an object per line, .parquet (needs the
    extra ``opabinia[tables]``), or .txt with a path and a label in each line.

    Columns, labels and the existence of files are checked before the first step. A sample's id is its path as written.

    Args:
        file: the list.
        root: the folder that the paths are relative to; the list's own folder when not given.
        path: the column with the paths.
        label: the column with the labels.
        prefix: beginning of the paths that is removed, such as the folder of another machine.
        suffix: added to each path, such as ``.jpg``.
        folders: folders below the root that each path is searched in; the first that has it counts.
        header: names of the columns of a .csv or .tsv file that has no line with them.
        missing: handling of images that do not exist, and of lines that are repeated: ``error``, or ``skip``.
        label_columns: in place of ``label``: a column for each class, with 1 if an image has it and 0 (or -1) if not.
        classes: labels in the order of their numbers; all that occur in the list, sorted (integers by value), or
            ``label_columns``, when not given.
        multi_label: an image may have several labels, or none, in one cell: separated, or as a list.
        separator: between several labels in a cell.
        split: use the rows with this value in ``split_column``; null: all rows.
        split_column: the column with the split of each row.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a column, label or image is missing, a label is unknown, an image is listed twice, or a row is
            incomplete. The text names file and line.
    """

    def __init__(
        self,
        *,
        file: InputPath,
        root: InputPath | None = None,
        path: str = "path",
        label: str = "label",
        prefix: str = "",
        suffix: str = "",
        folders: list[str] | None = None,
        header: list[str] | None = None,
        missing: Literal["error", "skip"] = "error",
        label_columns: list[str] | None = None,
        classes: list[str] | None = None,
        multi_label: bool = False,
        separator: Annotated[str, MinLen(1)] = "|",
        split: str | None = None,
        split_column: str = "split",
        channels: Channels = 3,
    ) -> None:
        self.file = file = file.expanduser()
        locations: list[str] = []
        paths: list[str] = []
        labels: list[list[str]] = []
        all_labels, splits = set[str](), set[str]()
        columns = [path, *(label_columns or [label]), *([split_column] if split is not None else [])]
        root = (root or file.parent).expanduser()
        for location, row in read_rows(file, columns, header=header):
            place = f"{file}, {location}"
            if label_columns:
                names = _marked_labels(row, label_columns, place, multi_label=multi_label)
            else:
                names = _split_labels(row[label], f"{place}: {label}", separator if multi_label else None)
            all_labels.update(names)
            if split is not None:
                splits.add(row_split := cell_text(row[split_column], f"{place}: {split_column}"))
                if row_split != split:
                    continue
            locations.append(location)
            paths.append(
                _in_folder(root, folders, listed_path(cell_text(row[path], f"{place}: {path}"), prefix) + suffix)
            )
            labels.append(names)
        if missing == "skip":
            locations, paths, labels = _without_missing(file, root, locations, paths, labels)
        if not paths:
            listed = f" of split {split!r}; splits: {', '.join(sorted(splits)[:9])}" if splits else ""
            raise ValueError(f"{file} lists no images{listed}")
        if classes is None:
            classes = label_columns or sort_names(all_labels)
        if not classes:
            raise ValueError(f"{file}: no image has a label in the column {label!r}, and classes is empty")
        by_name = class_indices(classes)
        if unknown := Counter(name for names in labels for name in names if name not in by_name):
            entries = list(zip(locations, labels, strict=True))
            first = {name: location for location, names in reversed(entries) for name in names}
            listed = ", ".join(f"{name!r} ({times} times, {first[name]})" for name, times in unknown.most_common(5))
            raise ValueError(f"{file}: labels that are none of the {len(classes)} classes: {listed}")
        numbers = [[by_name[name] for name in names] for names in labels]
        encoded: Any = multi_hot(numbers, len(by_name)) if multi_label else np.array(numbers, dtype=np.int64)[:, 0]
        super().__init__(root, [os.fsencode(name) for name in paths], label_info(classes, encoded, channels))
        check_files_exist(file, root, list(zip(locations, paths, strict=True)))


def _in_folder(root: Path, folders: Sequence[str] | None, name: str) -> str:
    """Return a path below the root, in the first of some folders that has it."""
    paths = [os.path.join(folder, name) for folder in folders or ()]
    return next((path for path in paths if os.path.isfile(os.path.join(root, path))), name)


def _without_missing(
    file: Path, root: Path, locations: Sequence[str], paths: Sequence[str], labels: Sequence[list[str]]
) -> tuple[list[str], list[str], list[list[str]]]:
    """Return the rows whose images exist, each once; an image with different labels stays, as an error."""
    rows: dict[tuple[str, ...], tuple[str, str, list[str]]] = {}
    for row in zip(locations, paths, labels, strict=True):
        if os.path.isfile(os.path.join(root, row[1])):
            rows.setdefault((os.path.normpath(row[1]), *row[2]), row)
    if skipped := len(paths) - len(rows):
        warn_once(
            "%s: %d of %d rows are repeated, or their images are not in %s: skipped", file, skipped, len(paths), root
        )
    return [row[0] for row in rows.values()], [row[1] for row in rows.values()], [row[2] for row in rows.values()]


def _split_labels(value: Any, where: str, separator: str | None) -> list[str]:
    """Return the labels in a cell; with a separator several or none."""
    if separator is None or isinstance(value, dict):
        cells = [value]
    elif isinstance(value, list):
        cells = value
    else:
        cells = str(value).split(separator) if value is not None and str(value).strip() else []
    # JSON may hold names of files, and so of folders, that are not valid UTF-8.
    return [decode_name(os.fsencode(cell_text(cell, where))) for cell in cells]


def _marked_labels(row: Mapping[str, Any], columns: Sequence[str], where: str, *, multi_label: bool) -> list[str]:
    """Return the columns with 1 in a row.

    Raises:
        ValueError: a value is none of 1, 0 and -1, or there is not exactly one 1 without ``multi_label``.
    """
    marks = {column: cell_text(row[column], f"{where}: {column}").removesuffix(".0") for column in columns}
    if wrong := [column for column, mark in marks.items() if mark not in ("0", "1", "-1")]:
        raise ValueError(f"{where}: {wrong[0]} is {marks[wrong[0]]!r:.60}, expected 1 or 0")
    names = [column for column, mark in marks.items() if mark == "1"]
    if len(names) != 1 and not multi_label:
        raise ValueError(f"{where}: {len(names)} of the columns have 1, expected one; several need multi_label: true")
    return names


# --- pairs ------------------------------------------------------------------------------------------------------------


Pair = tuple[str, tuple[str, str], bool]
"""Location in the list, both paths, and whether they show the same identity."""


@register.source(name="image_pairs")
class ImagePairs(ImageFiles):
    """Pairs of images for the evaluator ``verification``, as a list with the columns ``first``, ``second`` and ``same``
    (1 or 0), or as LFW's ``pairs.txt``.

    Samples 2i and 2i + 1 are pair i; both have the same label if they show the same identity. The order of the list
    counts: the folds of the evaluation are consecutive.

    Args:
        file: the list (.csv, .tsv, .jsonl or .parquet); or a .txt with lines such as ``Anna_Lee 1 4`` (images 1 and 4
            of a person) and ``Anna_Lee 1 Bo_Kim 2`` (of two), which stand for ``Anna_Lee/Anna_Lee_0001.jpg`` (Huang et
            al. 2007). Its first line, the number of folds and pairs, is ignored.
        root: the folder that the paths are relative to; the list's own folder when not given.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the list is missing or malformed, or an image is missing; the text names file and line.
    """

    def __init__(self, *, file: InputPath, root: InputPath | None = None, channels: Channels = 3) -> None:
        file = file.expanduser()
        root = (root or file.parent).expanduser()
        pairs = _lfw_pairs(file) if file.suffix == ".txt" else _listed_pairs(file)
        if not pairs:
            raise ValueError(f"{file} lists no pairs")
        locations = {os.path.normpath(path): location for location, paths, _ in pairs for path in paths}
        check_files_exist(file, root, [(location, path) for path, location in locations.items()])
        names = [os.fsencode(path) for _, paths, _ in pairs for path in paths]
        labels = [2 * pair + side for pair, (*_, same) in enumerate(pairs) for side in (0, int(not same))]
        classes = [f"pair {pair} {side}" for pair in range(1, len(pairs) + 1) for side in "ab"]
        super().__init__(root, names, label_info(classes, np.array(labels, np.int64), channels))

    def id(self, index: int) -> str:
        """Return the number of the pair and the path of an image, which may be in several pairs."""
        return f"{index // 2 + 1}{'ab'[index % 2]}/{super().id(index)}"


def _listed_pairs(file: Path) -> list[Pair]:
    """Read a table."""
    pairs = []
    for location, row in read_rows(file, ("first", "second", "same")):
        first, second, same = (cell_text(row[key], f"{file}, {location}: {key}") for key in ("first", "second", "same"))
        try:
            pairs.append((location, (first, second), parse_flag(same)))
        except ValueError as error:
            raise ValueError(f"{file}, {location}: same is {same!r:.60}, expected 1 or 0") from error
    return pairs


def _lfw_pairs(file: Path) -> list[Pair]:
    """Read LFW's ``pairs.txt``."""
    pairs = []
    for location, line in read_lines(file)[1:]:
        match = re.fullmatch(r"(\S+)\s+(\d{1,9})\s+(?:(\S+)\s+)?(\d{1,9})", line)
        if match is None:
            raise ValueError(f"{file}, {location}: expected <name> <number> <number> or twice <name> <number>")
        name, first, other, second = match.groups()
        other = other or name
        paths = (f"{name}/{name}_{int(first):04d}.jpg", f"{other}/{other}_{int(second):04d}.jpg")
        pairs.append((location, paths, other == name))
    return pairs


# --- identities -------------------------------------------------------------------------------------------------------


SUBSETS = ("train", "query", "gallery", "test")


@register.source(name="identities")
def identity_table(
    *,
    file: InputPath,
    root: InputPath | None = None,
    split: Split = "train",
    path: str = "path",
    identity: str = "identity",
    camera: str | None = "camera",
    view: str | None = None,
    split_column: str | None = "split",
    channels: Channels = 3,
) -> ImageFiles:
    """Images, their identities and their splits as a list: .csv, .tsv, .jsonl or .parquet.

    A row is for ``train``, ``query`` or ``gallery``; or for ``test``, where every image is a query for the others.
    Cameras and views may have any names: they are numbered in sort order (integers by value) over the whole list.
    Images that count neither as matches nor as errors (the junk of Market-1501) must not be in the list.

    Example: ``path,identity,camera,split`` and lines such as ``a/1.jpg,anna,door,train``.

    Args:
        file: the list.
        root: the folder that the paths are relative to; the list's own folder when not given.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        path: the column with the paths.
        identity: the column with the identities.
        camera: the column with the cameras; null if there is none. Images of the query's identity by the query's own
            camera are ignored in its ranking.
        view: the column with the views; null if there is none.
        split_column: the column with the split of each row; null: all rows are for ``train``.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a column or value is missing, a row is incomplete, an image is missing or listed twice, there is
            one identity only to train on, or no query has a match. The text names file and line.
    """
    file = file.expanduser()
    root = (root or file.parent).expanduser()
    names = [name for name in (path, identity, camera, view, split_column) if name is not None]
    entries: list[tuple[str, str]] = []
    rows: list[dict[str, str]] = []
    subsets_of_rows: list[str] = []
    for location, row in read_rows(file, names):
        texts = {name: cell_text(row[name], f"{file}, {location}: {name}") for name in names}
        subset = texts[split_column] if split_column else "train"
        if subset not in SUBSETS:
            raise ValueError(f"{file}, {location}: {split_column} is {subset!r}, none of {', '.join(SUBSETS)}")
        entries.append((location, texts[path]))
        subsets_of_rows.append(subset)
        rows.append(texts)
    if not rows:
        raise ValueError(f"{file} lists no images")
    check_files_exist(file, root, entries)
    cameras, views = _number(rows, camera), _number(rows, view)
    subsets: dict[str, list[ReidImage]] = defaultdict(list)
    for row, subset in zip(rows, subsets_of_rows, strict=True):
        camera_number = cameras[row[camera]] if camera else None
        view_number = views[row[view]] if view else None
        subsets[subset].append(ReidImage(os.fsencode(row[path]), row[identity], camera_number, view_number))
    listing = _select(file, split, subsets)
    return identity_files(root, listing, cameras=len(cameras), views=len(views), channels=channels)


def _number(rows: Sequence[Mapping[str, str]], column: str | None) -> dict[str, int]:
    """Return the number of each distinct value of a column."""
    names = sort_names({row[column] for row in rows}) if column else []
    return {name: number for number, name in enumerate(names)}


def _select(file: Path, split: Split, subsets: Mapping[str, list[ReidImage]]) -> ReidSplit:
    if split in ("train", "all"):
        names = SUBSETS if split == "all" else ("train",)
        return open_split(file, split, [image for name in names for image in subsets.get(name, [])])
    missing = [name for name in ("query", "gallery") if name not in subsets]
    if split == "test" and "test" in subsets and len(missing) == 2:
        return open_split(file, split, subsets["test"])
    if "test" in subsets and len(missing) < 2:
        raise ValueError(f"{file}: a test set is listed as 'test', or as 'query' and 'gallery', not both")
    if missing:
        raise ValueError(f"{file} lists no image for {' and '.join(missing)}")
    return read_split(file, split, subsets.__getitem__)
