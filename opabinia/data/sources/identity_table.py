"""Pictures of identities listed in a file."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from opabinia.config import register
from opabinia.data.sources.file_names import sorted_names
from opabinia.data.sources.list_files import refuse_missing, rows_of, text_of
from opabinia.data.sources.online_products import listed_openly
from opabinia.data.sources.reid_base import Identities, Listing, Picture, Split, listed

PARTS = ("train", "query", "gallery", "test")


@register.source(name="identities")
def identity_table(
    *,
    file: Path,
    root: Path | None = None,
    split: Split = "train",
    path: str = "path",
    identity: str = "identity",
    camera: str | None = "camera",
    view: str | None = None,
    part: str = "split",
    channels: Literal[1, 3] = 3,
) -> Identities:
    """Pictures, who or what they show, and what they are for, as a list: .csv, .tsv, .jsonl or .parquet.

    A row is for ``train``, ``query`` or ``gallery``; or for ``test``, where every picture looks for the others. Cameras
    and views may have any names: they are numbered in their order (numbers by value) over the whole list. Pictures that
    count neither as right nor as wrong (the junk of Market-1501) are to be left out of it.

    Example: ``path,identity,camera,split`` and lines such as ``a/1.jpg,anna,door,train``.

    Args:
        file: the list.
        root: the folder that the paths count from; the list's own folder when not given.
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
        path: the column with the paths.
        identity: the column with the identities.
        camera: the column with the cameras; null where nobody tells. What a query's own camera has of the same
            identity does not count when the query is looked for.
        view: the column with the views; null where nobody tells.
        part: the column that says what a picture is for.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: naming file and line: a column or a value is missing, a row is not whole, a picture does not exist
            or is listed twice; there is one identity only to train on, or nothing can be found.
    """
    file = file.expanduser()
    root = (root or file.parent).expanduser()
    columns = _Columns(path, identity, camera, view, part)
    places, rows = _read(file, columns)
    refuse_missing(file, places, root, [row[path] for row in rows])
    parts, cameras, views = _parts(rows, columns)
    return Identities(root, _listing(file, split, parts), cameras=cameras, views=views, channels=channels)


class _Columns(NamedTuple):
    path: str
    identity: str
    camera: str | None
    view: str | None
    part: str


def _read(file: Path, columns: _Columns) -> tuple[list[str], list[dict[str, str]]]:
    """Where each row stands, and its texts."""
    names = [name for name in columns if name is not None]
    places: list[str] = []
    rows: list[dict[str, str]] = []
    for where, row in rows_of(file, names):
        texts = {name: text_of(row[name], f"{file}, {where}: {name}") for name in names}
        if (part := texts[columns.part]) not in PARTS:
            raise ValueError(f"{file}, {where}: {columns.part} is {part!r}, none of {', '.join(PARTS)}")
        places.append(where)
        rows.append(texts)
    if not rows:
        raise ValueError(f"{file} lists no picture")
    return places, rows


def _parts(rows: Sequence[Mapping[str, str]], columns: _Columns) -> tuple[Mapping[str, list[Picture]], int, int]:
    """The pictures of each part; how many cameras and views there are."""
    cameras, views = _numbers(rows, columns.camera), _numbers(rows, columns.view)
    parts: dict[str, list[Picture]] = defaultdict(list)
    for row in rows:
        camera = cameras[row[columns.camera]] if columns.camera else None
        view = views[row[columns.view]] if columns.view else None
        picture = Picture(os.fsencode(row[columns.path]), row[columns.identity], camera, view)
        parts[row[columns.part]].append(picture)
    return parts, len(cameras), len(views)


def _numbers(rows: Sequence[Mapping[str, str]], column: str | None) -> dict[str, int]:
    names = sorted_names({row[column] for row in rows}) if column else []
    return {name: number for number, name in enumerate(names)}


def _listing(file: Path, split: Split, parts: Mapping[str, list[Picture]]) -> Listing:
    if split == "train":
        return listed_openly(file, split, parts.get("train", []))
    if split == "all":
        return listed_openly(file, split, [one for part in PARTS for one in parts.get(part, [])])
    absent = [part for part in ("query", "gallery") if part not in parts]
    if split == "test" and "test" in parts and len(absent) == 2:
        return listed_openly(file, split, parts["test"])
    if "test" in parts and len(absent) < 2:
        raise ValueError(f"{file}: a test set is listed as 'test', or as 'query' and 'gallery'; here is some of both")
    if absent:
        raise ValueError(f"{file} lists no picture for {' and '.join(absent)}")
    return listed(file, split, parts.__getitem__)
