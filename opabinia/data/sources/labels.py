"""Class names and labels: choosing classes, and labels as numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.data.sources.annotation_values import MAX_CLASSES, MAX_TEXT, shortened
from opabinia.data.sources.file_names import sort_names
from opabinia.data.sources.list_files import read_json, read_lines


def class_indices(classes: Sequence[str], where: object = "classes") -> dict[str, int]:
    """Return the label of each class.

    Raises:
        ValueError: a class is listed twice; the text begins with ``where``.
    """
    duplicate = next((name for name, count in Counter(classes).items() if count > 1), None)
    if duplicate is not None:
        raise ValueError(f"{where}: {shortened(duplicate)} is listed twice")
    return {name: label for label, name in enumerate(classes)}


def select_classes(where: object, names: Sequence[str], classes: Sequence[str] | None) -> list[int]:
    """Return the indices in ``names`` of the selected classes, in the order of their labels; None selects all.

    Raises:
        ValueError: a class is unknown or listed twice; the text begins with ``where``.
    """
    if classes is None:
        return list(range(len(names)))
    index_of = {name: index for index, name in enumerate(names)}
    for name in classes:
        if name not in index_of:
            check_class(where, name, names)
    return [index_of[name] for name in class_indices(classes)]


def check_class(where: object, name: str, classes: Sequence[str]) -> None:
    """Raise ValueError, with the nearest names, if there is no such class."""
    if name not in classes:
        nearest = get_close_matches(name, classes, 1) or classes[:5]
        raise ValueError(f"{where} has no class {name!r}; there is {', '.join(nearest)}")


def multi_hot(rows: Sequence[Iterable[int]], num_classes: int) -> NDArray[np.float32]:
    """Return several labels per sample as float32 of 0 and 1 (N x K).

    Raises:
        ValueError: they would need more than 16 GiB of memory.
    """
    if len(rows) * num_classes > 2**32:
        raise ValueError(f"several labels of {len(rows)} samples and {num_classes} classes: too many for the memory")
    labels = np.zeros((len(rows), num_classes), dtype=np.float32)
    for row, indices in zip(labels, rows, strict=True):
        row[np.array(list(indices), dtype=np.int64)] = 1
    return labels


def numbered_classes(where: str, largest: str, samples: int) -> list[str]:
    """Return the class names 0, 1, 2 ... up to the largest label in a list of samples.

    Raises:
        ValueError: they are more than :data:`MAX_CLASSES` and more than the samples; the text begins with ``where``.
    """
    if len(largest) > 18 or int(largest) >= max(MAX_CLASSES, samples):
        raise ValueError(f"{where}: label {shortened(largest)}: too many classes; labels are class numbers from 0")
    return list(map(str, range(int(largest) + 1)))


def check_no_empty(where: str, values: Sequence[Any]) -> None:
    """Raise ValueError if some of the labels in a column are missing; the text begins with ``where``."""
    if empty := sum(value is None for value in values):
        raise ValueError(f"{where} is empty in {empty} of {len(values)} rows")


def encode_numbers(where: str, values: Sequence[int], classes: Sequence[str] | None) -> tuple[Any, list[str]]:
    """Return class numbers as labels (int64, N), and the names of the classes, by default 0, 1, 2 ...

    Raises:
        ValueError: a number is below 0, or there is no such class; the text begins with ``where``.
    """
    low, high = min(values, default=0), max(values, default=-1)
    names = list(classes or numbered_classes(where, str(max(high, 0)), len(values)))
    if not low >= 0 or high >= len(names):
        hint = "; a split without labels can neither be trained nor evaluated on" if low < 0 else ""
        raise ValueError(f"{where}: labels {low} to {high} for {len(names)} classes{hint}")
    return np.array(values, dtype=np.int64), names


def without_numbers(lines: Sequence[str]) -> list[str]:
    """Return the names in lines, without their numbers if all have them in order: ``0 cat`` or ``0: cat``."""
    parts = [line.split(maxsplit=1) for line in lines]
    are_numbered = all(len(part) == 2 and part[0].rstrip(":") == str(number) for number, part in enumerate(parts))
    return [part[1] for part in parts] if are_numbered else list(lines)


def encode_labels(
    file: Path, locations: Sequence[str], labels: Sequence[Sequence[str]], classes: list[str] | None, multi_label: bool
) -> tuple[Any, tuple[str, ...]]:
    """Encode labels of a list: class names, or class indices from 0 if all are integers and not all are class names.

    Without class names, indices define as many classes as the largest one says, so that a class that is missing from
    one list does not shift the others.

    Args:
        file: the list.
        locations: of each entry, such as ``line 3``.
        labels: of each entry, as written; exactly one unless ``multi_label``.
        classes: names, in the order of their labels; those that occur when not given.
        multi_label: whether an entry may have several labels, or none.

    Returns:
        int64, N, or float32 of 0 and 1, N x K; and the K class names.

    Raises:
        ValueError: a label is unknown; the text names its line.
    """
    distinct = {label for entry in labels for label in entry}
    integers = bool(distinct) and all(re.fullmatch(r"\d+", label) for label in distinct)
    by_index = integers and not (classes and distinct <= set(classes))
    for entry, location in zip(labels, locations, strict=True):
        if too_long := [label for label in entry if len(label) > MAX_TEXT]:
            raise ValueError(f"{file}, {location}: label {shortened(too_long[0])} has {len(too_long[0])} characters")
    if classes is None and integers:
        place, largest = max(
            ((location, label) for location, entry in zip(locations, labels, strict=True) for label in entry),
            key=lambda item: int(item[1]),
        )
        classes = numbered_classes(f"{file}, {place}", largest, len(labels))
    elif classes is None:
        classes = sort_names(distinct)
    if not classes:
        raise ValueError(f"{file}: no entry has a label, and classes is empty")
    by_name = class_indices(classes)

    def encode(label: str, location: str) -> int:
        index = int(label) if by_index else by_name.get(label, -1)
        if 0 <= index < len(by_name):
            return index
        if by_index:
            hint = f" (0 to {len(by_name) - 1})"
            if "0" not in distinct:
                hint += "; does the list count from 1? Labels count from 0"
        else:
            hint = f": {', '.join(list(by_name)[:5])}" + (" ..." if len(by_name) > 5 else "")
        raise ValueError(f"{file}, {location}: label {label!r} is none of the {len(by_name)} classes{hint}")

    rows = [[encode(label, location) for label in entry] for location, entry in zip(locations, labels, strict=True)]
    if multi_label:
        return multi_hot(rows, len(classes)), tuple(classes)
    return np.array([row[0] for row in rows], dtype=np.int64), tuple(classes)


def read_classes(classes: list[str] | None, class_file: Path | None) -> list[str] | None:
    """Return class names, from a list or from a file with a name per line (or ``index name``, in order), or from a
    .json with the index of each name.

    Raises:
        ValueError: both are given, or the file cannot be read.
    """
    if class_file is None:
        return classes
    if classes is not None:
        raise ValueError("classes and class_file exclude each other; give one of them")
    if class_file.suffix.lower() == ".json":
        return _classes_by_index(class_file.expanduser())
    lines = [line for _, line in read_lines(class_file.expanduser())]
    return list(class_indices(without_numbers(lines), class_file))


def _classes_by_index(file: Path) -> list[str]:
    """Read a JSON object with the index of each class.

    Raises:
        ValueError: the file cannot be read, or the indices are not 0, 1, 2 ...
    """
    indices = read_json(file)
    values = list(indices.values()) if isinstance(indices, dict) else [None]
    is_index = all(type(value) in (int, str) for value in values)
    if not is_index or {*map(str, values)} != {*map(str, range(len(values)))}:
        raise ValueError(
            f"{file}: expected an object with the index of each class, from 0 to the number of classes - 1"
        )
    return sorted(indices, key=lambda name: int(indices[name]))
