"""Lines of lists of films, and their labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from opabinia.data.sources.file_names import sorted_names


def lines_of(file: Path) -> list[tuple[str, str]]:
    """The lines of a text file that are not empty: where each stands, such as ``line 3``, and its text.

    Raises:
        ValueError: it cannot be read, or holds nothing.
    """
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    lines = [(f"line {number}", line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{file} lists nothing")
    return lines


def numbered_labels(
    file: Path, places: Sequence[str], found: Sequence[Sequence[str]], classes: Sequence[str] | None, multi_label: bool
) -> tuple[Any, tuple[str, ...]]:
    """Labels as numbers, and the names of the classes.

    Labels that are names of classes are found among them. Whole numbers are the labels themselves, counted from 0, if
    no class is called so; without names of classes there are as many as the largest number says, so that a class that
    happens to be missing from a list does not move the others.

    Args:
        file: the list.
        places: where each entry stands.
        found: labels of each entry, as they are written; exactly one, unless there may be several.
        classes: names, in the order of their numbers; those that occur when not given.
        multi_label: whether an entry may have several, or none.

    Returns:
        int64, N, or float32, N x K, of 0 and 1; and K names.

    Raises:
        ValueError: a label is none of the classes; the text names its line.
    """
    written = {label for labels in found for label in labels}
    whole = bool(written) and all(re.fullmatch(r"\d+", label) for label in written)
    by_number = whole and not (classes and written <= set(classes))
    if classes is None:
        classes = [str(i) for i in range(max(map(int, written)) + 1)] if whole else sorted_names(written)
    if not classes:
        raise ValueError(f"{file}: no entry has a label, and classes names none")
    if len(set(classes)) < len(classes):
        twice = next(name for name, group in groupby(sorted(classes)) if len(list(group)) > 1)
        raise ValueError(f"classes: {twice!r} is listed twice")
    numbers = {str(i): i for i in range(len(classes))} if by_number else {name: i for i, name in enumerate(classes)}
    single = np.zeros(len(found), dtype=np.int64)
    several = np.zeros((len(found) if multi_label else 0, len(classes)), dtype=np.float32)
    for row, (place, labels) in enumerate(zip(places, found, strict=True)):
        for label in labels:
            number = numbers.get(label if not by_number else str(int(label)))
            if number is None:
                hint = _hint(classes, by_number, "0" not in written)
                raise ValueError(f"{file}, {place}: label {label!r} is none of the {len(classes)} classes{hint}")
            if multi_label:
                several[row, number] = 1
            else:
                single[row] = number
    return several if multi_label else single, tuple(classes)


def _hint(classes: Sequence[str], by_number: bool, none_is_0: bool) -> str:
    if by_number:
        return f" (0 to {len(classes) - 1})" + ("; does the list count from 1? Here labels count from 0" * none_is_0)
    return f": {', '.join(classes[:5])}" + (" ..." if len(classes) > 5 else "")


def classes_of(classes: list[str] | None, class_file: Path | None) -> list[str] | None:
    """Names of the classes, from a list or a file with a name a line (also ``number name``, in the order of numbers).

    Raises:
        ValueError: both are given, or the file cannot be read.
    """
    if class_file is None:
        return classes
    if classes is not None:
        raise ValueError("classes and class_file say the same; give one of them")
    lines = [line for _, line in lines_of(class_file.expanduser())]
    parts = [line.split(maxsplit=1) for line in lines]
    if all(len(part) == 2 and part[0] == str(i) for i, part in enumerate(parts)):
        return [part[1] for part in parts]
    return lines
