"""Object detection: bounding boxes as a list, one in each row."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Len, MinLen

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken
from opabinia.data.sources.annotation_values import parse_number, shortened
from opabinia.data.sources.detection_base import AnnotatedImages, DetectionListing, Empty, build_source, given_classes
from opabinia.data.sources.list_files import cell_text, listed_path, read_rows

Corners = Literal["corners", "corner_size", "center_size"]
"""The four numbers of a box: left, top, right, bottom; left, top, width, height; or center, width, height."""

Columns = Annotated[list[str], Len(1, 4)]


@register.source
def box_list(
    *,
    file: InputPath,
    root: InputPath | None = None,
    path: str = "path",
    prefix: str = "",
    suffix: str = "",
    label: str | None = "label",
    box: Columns | None = None,
    format: Corners = "corners",
    objects: str | None = None,
    relative: bool = False,
    header: list[str] | None = None,
    separator: Annotated[str, MinLen(1)] | None = None,
    classes: list[str] | None = None,
    split: str | None = None,
    split_column: str = "split",
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images with bounding boxes as a list (.csv, .tsv, .jsonl, .parquet): a row has an image, a class and a box, as in
    CSV files of TensorFlow's object detection, keras-retinanet, Open Images and many competitions.

    With ``objects`` a row has an image with all of its objects, as in metadata.jsonl of the datasets library:
    ``{"file_name": "1.jpg", "objects": {"bbox": [[1, 2, 3, 4]], "category": [0]}}``.

    An image has the boxes of all of its rows. A row whose box is empty is an image without objects. A sample's id is
    its path.

    Args:
        file: the list.
        root: the folder that the paths are relative to; the list's own folder when not given.
        path: the column with the paths.
        prefix: beginning of the paths that is removed, such as the folder of another machine.
        suffix: added to each path, such as ``.jpg``.
        label: the column with the classes; null: all objects are of one class, ``object`` or the one of ``classes``.
        box: the four columns of the box, or one that has all numbers: ``[10, 20, 30, 40]``. null: ``xmin``, ``ymin``,
            ``xmax``, ``ymax``.
        format: the numbers are left, top, right, bottom (``corners``); left, top, width, height (``corner_size``); or
            the center, width and height (``center_size``).
        objects: the column with the objects of an image: lists of boxes and classes of equal length, by the names
            ``box`` and ``label``; or a list of objects with these. null: a row has one object.
        relative: they are fractions of the image's width and height, not pixels.
        header: names of the columns of a .csv, .tsv or .txt file that has no line with them.
        separator: between the cells of such a file; a comma, or a tab in .tsv, when not given.
        classes: names in the order of their labels, objects of others are dropped; all that occur, sorted, when not
            given.
        split: use the rows with this value in ``split_column``; null: all rows.
        split_column: the column with the split of each row.
        empty: ``drop`` drops images without objects.
        broken: handling of broken annotations: ``error`` raises; ``clip`` clips to the image and drops objects without
            area; ``drop`` drops them, and also missing and unreadable images. ``fix`` clips what ``clip`` does and
            drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a column is missing, a row is incomplete, or there are errors that ``broken`` does not allow.
    """
    file = file.expanduser()
    listing = DetectionListing(
        file=file, root=(root or file.parent).expanduser(), classes=given_classes(file, classes), noun="row"
    )
    columns = _Columns(path, prefix, suffix, label, box or _USUAL, split, split_column, (classes or ["object"])[0])
    for image, number, name, values in _read_boxes(listing, columns, header, separator, objects):
        scale = listing.sizes[image, ::-1].tolist() * 2 if relative else [1.0] * 4
        listing.add(image, number, name, _left_top(format, [v * side for v, side in zip(values, scale, strict=True)]))
    return build_source(listing, broken=broken, empty=empty, channels=channels)


_USUAL = ["xmin", "ymin", "xmax", "ymax"]


class _Columns(NamedTuple):
    """Arguments of :func:`box_list` by which rows are read, and the class of objects without a column of classes."""

    path: str
    prefix: str
    suffix: str
    label: str | None
    box: Sequence[str]
    split: str | None
    split_column: str
    single: str


def _read_boxes(
    listing: DetectionListing,
    columns: _Columns,
    header: Sequence[str] | None,
    separator: str | None,
    objects: str | None,
) -> list[tuple[int, int, str, list[float]]]:
    """Add all images; return image, number of the row, class and the four numbers of each box.

    Raises:
        ValueError: a column or cell is missing, or no row is of the split.
    """
    path, prefix, suffix, label, box, split, split_column, single = columns
    if len(box) not in (1, 4):
        raise ValueError(f"box: {', '.join(box)}; expected four columns, or one with four numbers")
    of_object = [*box, *([label] if label else [])]
    needed = [path, *([objects] if objects else of_object), *([split_column] if split is not None else [])]
    images: dict[str, int] = {}
    found: list[tuple[int, int, str, list[float]]] = []
    splits = set[str]()
    rows = read_rows(listing.file, needed, header=header, separator=separator)
    if objects is not None:
        rows = ((location, entry) for location, row in rows for entry in expand_objects(row, objects, of_object))
    for number, (location, row) in enumerate(rows, 1):
        place = f"{listing.file}, {location}"
        if split is not None:
            splits.add(row_split := cell_text(row[split_column], f"{place}: {split_column}"))
            if row_split != split:
                continue
        name = listed_path(cell_text(row[path], f"{place}: {path}"), prefix) + suffix
        if name not in images:
            images[name] = listing.add_image(os.fsencode(os.path.normpath(name)))
        try:
            values = parse_box(row, box)
        except ValueError as error:
            listing.errors.add(kinds.BAD_BOX, name, location, error)
            continue
        if values is not None:
            found.append(
                (images[name], number, cell_text(row[label], f"{place}: {label}") if label else single, values)
            )
    if not images and splits:
        raise ValueError(f"{listing.file} lists no images of split {split!r}; splits: {', '.join(sorted(splits)[:9])}")
    return found


def expand_objects(row: Mapping[str, Any], column: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each object in a column, with its ``keys``; one with empty ones if there are none."""
    value, row = row[column], {key: cell for key, cell in row.items() if key != column}
    if isinstance(value, dict):
        lists: list[list[Any]] = [value[key] if isinstance(value.get(key), list) else [] for key in keys]
        value = [dict(zip(keys, cells, strict=False)) for cells in zip(*lists, strict=False)]
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    return [{**row, **dict.fromkeys(keys), **entry} for entry in entries] or [{**row, **dict.fromkeys(keys)}]


def parse_box(row: Mapping[str, Any], columns: Sequence[str]) -> list[float] | None:
    """Return the four numbers of a box; None if it is empty.

    Raises:
        ValueError: they are not four numbers.
    """
    cells = [row[column] for column in columns]
    if len(cells) == 1 and isinstance(cells[0], str) and cells[0].strip():
        cells = _split(cells[0])
    elif len(cells) == 1 and isinstance(cells[0], list):
        cells = cells[0]
    if all(_is_empty(cell) for cell in cells):
        return None
    if len(cells) != 4:
        raise ValueError(f"{shortened(cells)} are not four numbers")
    return [parse_number(str(cell)) for cell in cells]


def _split(text: str) -> list[Any]:
    """Return the numbers in a text such as ``[1, 2, 3, 4]``, ``1 2 3 4`` or ``(1.0,2.0,3.0,4.0)``."""
    return text.strip(" []()").replace(",", " ").replace(";", " ").split()


def _is_empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell)) or str(cell).strip().lower() in ("", "nan")


def _left_top(format: Corners, values: Sequence[float]) -> tuple[float, float, float, float]:
    """Return left, top, width and height."""
    x, y, third, fourth = values
    if format == "corners":
        return x, y, third - x, fourth - y
    if format == "center_size":
        return x - third / 2, y - fourth / 2, third, fourth
    return x, y, third, fourth
