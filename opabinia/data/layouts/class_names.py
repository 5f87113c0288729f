"""Files with the names of classes, for annotations that have numbers only."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from opabinia.data.layouts.folder import Folder, UnreadableLayout
from opabinia.data.sources.labels import without_numbers
from opabinia.data.sources.list_files import read_lines
from opabinia.data.sources.segmentation_base import Color
from opabinia.data.sources.segmentation_folder import read_class_file
from opabinia.data.sources.yolo import read_data_yaml

CLASS_FILES = (
    *("classes.txt", "labels.txt", "labelmap.txt", "label_colors.txt", "class_names.txt", "names.txt", "codes.txt"),
    *("obj.names", "class_dict.csv", "_classes.csv", "classes.csv", "label_names.txt", "categories.txt"),
)
"""Names of such files, in lower case, and any others with the suffix ``.names``."""

_MAY_NAME_COLORS = re.compile("class|label|colou?r|palette", re.IGNORECASE)
"""Other names of files that are read if they have a color for each class."""
_SMALL = 1 << 16

ClassNames = tuple[Sequence[str], Sequence[Color]]
"""Names of classes, and a color for each, or none at all."""


def find_class_names(folder: Folder, places: Sequence[str]) -> tuple[ClassNames, str] | None:
    """Return the names of classes in a file in the folder or in one of ``places`` below it, and its name.

    Raises:
        UnreadableLayout: the file cannot be read.
    """
    for place in dict.fromkeys(["", *places]):
        inner = folder.whole.sub(place)
        by_name = {name.lower(): name for name in inner.files}
        for name in [*(by_name[name] for name in CLASS_FILES if name in by_name), *inner.named(".names")]:
            path = f"{place}/{name}".lstrip("/")
            try:
                return _read(folder.path / path), path
            except ValueError as error:
                raise UnreadableLayout(str(error)) from error
        for name in (name for name in inner.named(".csv", ".txt") if _MAY_NAME_COLORS.search(name)):
            if (inner.path / name).stat().st_size <= _SMALL:
                with suppress(ValueError):
                    names, colors = _read(inner.path / name)
                    if colors:
                        return (names, colors), f"{place}/{name}".lstrip("/")
        for name in inner.named(".yaml", ".yml"):
            with suppress(ValueError):
                return (list(read_data_yaml(inner.path / name)[1].values()), []), f"{place}/{name}".lstrip("/")
    return None


def _read(file: Path) -> ClassNames:
    """Read a file with a name in each line, with its color or number if need be."""
    if file.suffix.lower() == ".csv":
        return _read_csv(file)
    names, colors = read_class_file(file)
    return [name for name in without_numbers(names) if name != "__ignore__"], colors  # of LabelMe: the value 255


def _read_csv(file: Path) -> ClassNames:
    """Read lines of a name and a color, or of a value and a name in either order, after a line of column names."""
    rows = [_cells(line) for _, line in read_lines(file)]
    colored = [row for row in rows if len(row) >= 4 and all(re.fullmatch(r"\d{1,3}", cell) for cell in row[-3:])]
    if colored:
        names = [next((cell for cell in row[:-3] if not cell.isdecimal()), row[0]) for row in colored]
        return names, [(int(red), int(green), int(blue)) for *_, red, green, blue in colored]
    numbered = [row if row[0].isdecimal() else row[::-1] for row in rows if len(row) == 2]
    numbered = sorted((row for row in numbered if row[0].isdecimal()), key=lambda row: int(row[0]))
    if numbered and [int(row[0]) for row in numbered] == list(range(len(numbered))):
        return [row[1] for row in numbered], []
    if all(len(row) == 1 for row in rows):
        return [row[0] for row in rows], []
    raise ValueError(f"{file} has no names of classes; expected lines such as road,128,64,128 or 0,road")


_COLOR = re.compile(r"[(\[]?\s*(\d{1,3})[,;\s]+(\d{1,3})[,;\s]+(\d{1,3})\s*[)\]]?")


def _cells(line: str) -> list[str]:
    """Return the cells of a line; a color in one of them, such as ``"128,64,128"``, as three."""
    cells = [cell.strip() for cell in next(csv.reader([line]))]
    color = _COLOR.fullmatch(cells[-1])
    return [*cells[:-1], *color.groups()] if color and len(cells) > 1 else cells
