"""Images without labels."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import PurePosixPath

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.folder import WALKED, Folder, UnreadableLayout, listed
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.map_values import LOSSLESS, read_values
from opabinia.data.layouts.readings import make_layout
from opabinia.data.sources.folder import NAMED_CLASS
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
    notes = folder.others(splits.values()) if splits["train"] else ()
    yield make_layout("images", "selfsup", f"{count} without labels", sections, notes=notes)


def read_named_classes(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of images in one folder, or in folders of splits, whose names begin with what may be a class,
    ``cat.1.jpg`` and ``pug_2.jpg``, and that of images without labels."""
    if folder.only is not None or unread_annotations(folder):
        return
    splits = {split: name for split, name in folder.splits.items() if folder.sub(name).named(*EXTENSIONS)}
    places = splits if "train" in splits else {"train": ""}
    counts = {split: _classes_in_names(folder.sub(place)) for split, place in places.items()}
    classes = sorted(counts["train"])
    total = counts["train"].total()
    if not 2 <= len(classes) <= total / 5 or any(set(found) != set(classes) for found in counts.values()):
        return
    sections = {split: {"name": "named_images", "root": folder.at(place)} for split, place in places.items()}
    description = f"{plural(len(classes), 'class', 'es')} that names of files begin with: {listed(classes)}"
    notes = folder.others([place for place in places.values() if place])
    yield make_layout("file_names", "classification", description, sections, notes=notes if splits else ())
    yield from read_images(folder)


def _classes_in_names(folder: Folder) -> Counter[str]:
    """Return the number of images of each class that names of files begin with; none unless all do."""
    matches = [NAMED_CLASS.fullmatch(name.rpartition(".")[0]) for name in folder.named(*EXTENSIONS)]
    return Counter(match[1] for match in matches if match) if all(matches) else Counter()


def unread_annotations(folder: Folder) -> list[str]:
    """Return files that may be annotations of the images."""
    files = folder.tree(_ANNOTATIONS, 1000)
    images = folder.tree(EXTENSIONS, 10_000)
    texts = folder.tree((".txt",), 1000)
    if len(texts) <= len(images) / 2:
        bases = {PurePosixPath(name).name for name in images}
        texts = [name for name in texts if _names_images(folder, name, bases)]
    return files + texts


def _names_images(folder: Folder, name: str, images: Container[str]) -> bool:
    """Return whether the first lines of a text file name images, by themselves or with something else."""
    lines = [line.strip() for line in folder.head(name, 1 << 12).splitlines()[:20] if line.strip()][:10]
    words = [[PurePosixPath(word).name for word in re.split(r"[\s,;]+", line)] for line in lines]
    return sum(any(word in images for word in row) for row in words) > len(lines) / 2


_SAMPLED = 60
"""Images that are opened to see whether they are segmentation maps."""
_FEW = 40
"""Different values of a segmentation map, at most."""


def like_maps(folder: Folder) -> list[str]:
    """Return images that look like segmentation maps, since they have few values; none if few images do, or nearly
    all, which are drawings then."""
    names = folder.tree(EXTENSIONS)
    chosen = random.Random(0).sample(names, min(_SAMPLED, len(names)))
    few = [name for name in chosen if name.lower().endswith(LOSSLESS) and _few_values(folder, name)]
    return sorted(few) if len(chosen) / 3 <= len(few) <= 0.9 * len(chosen) else []


def _few_values(folder: Folder, name: str) -> bool:
    try:
        found = read_values([str(folder.path / name)])
    except UnreadableLayout:  # reported where it is read
        return False
    return found.count <= _FEW
