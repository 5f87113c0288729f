"""Pairs of images for verification: whether both show the same identity."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources.annotation_values import parse_flag
from opabinia.data.sources.list_files import cell_text, check_files_exist, read_lines, read_rows
from opabinia.data.sources.named import ImageFiles
from opabinia.data.sources.table import label_info

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
