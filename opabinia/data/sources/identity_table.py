"""Images with identities listed in a file."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources.file_names import sort_names
from opabinia.data.sources.list_files import cell_text, check_files_exist, read_rows
from opabinia.data.sources.named import ImageFiles
from opabinia.data.sources.reid_base import ReidImage, ReidSplit, Split, identity_files, open_split, read_split

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
    split_column: str = "split",
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
        split_column: the column with the split of each row.
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
    for location, row in read_rows(file, names):
        texts = {name: cell_text(row[name], f"{file}, {location}: {name}") for name in names}
        if (subset := texts[split_column]) not in SUBSETS:
            raise ValueError(f"{file}, {location}: {split_column} is {subset!r}, none of {', '.join(SUBSETS)}")
        entries.append((location, texts[path]))
        rows.append(texts)
    if not rows:
        raise ValueError(f"{file} lists no images")
    check_files_exist(file, root, entries)
    cameras, views = _number(rows, camera), _number(rows, view)
    subsets: dict[str, list[ReidImage]] = defaultdict(list)
    for row in rows:
        camera_number = cameras[row[camera]] if camera else None
        view_number = views[row[view]] if view else None
        subsets[row[split_column]].append(ReidImage(os.fsencode(row[path]), row[identity], camera_number, view_number))
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
