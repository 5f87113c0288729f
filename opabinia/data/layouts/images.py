"""Images without labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.folder import WALKED, Folder, listed
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.readings import make_layout
from opabinia.runtime.text import plural

_ANNOTATIONS = (".json", ".xml", ".csv", ".tsv", ".jsonl", ".parquet", ".mat", ".h5", ".npy", ".npz")


def read_images(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of all images below a folder, without labels."""
    names = [] if folder.only else folder.tree(EXTENSIONS)
    if not names:
        return
    splits = {split: name for split, name in folder.splits.items() if folder.sub(name).holds()}
    if "train" not in splits:
        splits = {"train": ""}
    sections = {split: {"name": "images", "root": folder.at(name)} for split, name in splits.items()}
    count = plural(len(names), "image") if len(names) < WALKED else f"at least {WALKED} images"
    notes = [*_classes_in_names(names), *(folder.others(splits.values()) if splits["train"] else ())]
    yield make_layout("images", "selfsup", f"{count} without labels", sections, notes=notes)


def _classes_in_names(names: Sequence[str]) -> list[str]:
    """Return a remark if names of files begin with what may be a class: ``cat.1.jpg``, ``pug_2.jpg``."""
    matches = (re.match(r"([A-Za-z]{2}[A-Za-z_ -]*?)[ ._-]*\d+", PurePosixPath(name).name) for name in names)
    counts = Counter(match[1] for match in matches if match)
    if 2 <= len(counts) <= len(names) / 5 and counts.total() > 0.9 * len(names):
        classes = listed(sorted(counts))
        return [f"names of files begin with {classes}: if these are classes, put their images into a folder for each"]
    return []


def unread_annotations(folder: Folder) -> list[str]:
    """Return files that may be annotations of the images."""
    files = folder.tree(_ANNOTATIONS, 1000)
    texts = folder.tree((".txt",), 1000)
    return files + (texts if len(texts) > len(folder.tree(EXTENSIONS, 1000)) / 2 else [])
