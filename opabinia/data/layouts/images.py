"""Images without labels."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import PurePosixPath

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.folder import WALKED, Folder, UnreadableLayout, listed
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.map_values import LOSSLESS, read_values
from opabinia.data.sources.folder import CLASS_AT_END, NAMED_CLASS
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
    yield Layout("images", "selfsup", f"{count} without labels", sections, notes=notes)


def read_named_classes(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of images in one folder, or in folders of splits, whose names begin or end with what may be a
    class, ``cat.1.jpg`` or ``img1_cat.jpg``, and that of images without labels."""
    if folder.only is not None or unread_annotations(folder):
        return
    splits = {split: name for split, name in folder.splits.items() if folder.sub(name).named(*EXTENSIONS)}
    places = splits if "train" in splits else {"train": ""}
    for position, pattern in (("begin", NAMED_CLASS), ("end", CLASS_AT_END)):
        found = {split: _classes_in_names(folder.sub(place), pattern) for split, place in places.items()}
        counts = {split: count for split, count in found.items() if split != "test" or count}  # it may have no labels
        classes = sorted(counts["train"])
        same = all({*count} == {*classes} for count in counts.values())
        if same and 2 <= len(classes) <= counts["train"].total() / 5:
            section = {"name": "named_images"} | ({"position": "end"} if position == "end" else {})
            sections = {split: {**section, "root": folder.at(places[split])} for split in counts}
            number = plural(len(classes), "class", "es")
            description = f"{number} that names of files {position} with: {listed(classes)}"
            notes = folder.others([places[split] for split in counts]) if splits else ()
            yield Layout("file_names", "classification", description, sections, notes=notes)
            yield from read_images(folder)
            return


def _classes_in_names(folder: Folder, pattern: re.Pattern[str]) -> Counter[str]:
    """Return the number of images of each class that names of files begin or end with; none unless all do."""
    matches = [pattern.fullmatch(name.rpartition(".")[0]) for name in folder.named(*EXTENSIONS)]
    return Counter(match[1] for match in matches if match) if all(matches) else Counter()


def unread_annotations(folder: Folder) -> list[str]:
    """Return files that may be annotations of the images."""
    files = [name for name in folder.tree(_ANNOTATIONS, 1000) if "submission" not in name.lower()]
    images = folder.tree(EXTENSIONS, 10_000)
    texts = folder.tree((".txt",), 1000)
    if len(texts) <= len(images) / 2:
        bases = {PurePosixPath(name).name for name in images}
        texts = [name for name in texts if _names_images(folder, name, bases)]
    return files + texts


def unread_lists(folder: Folder, used: Container[str]) -> list[str]:
    """Return a remark on lists of images that are not in ``used`` (paths below the folder): they may have labels or
    splits."""
    bases = {PurePosixPath(name).name for name in folder.tree(EXTENSIONS, 10_000)}
    bases |= {stem for name in bases if not (stem := os.path.splitext(name)[0]).isdecimal()}
    found = [
        f"{place}/{name}".lstrip("/")
        for place in folder.places((".txt",))
        if len(names := folder.sub(place).named(".txt")) <= _LISTS
        for name in names
    ]
    found = [name for name in found[:_LISTS] if name not in used]
    found = [name for name in found if "split" in name.lower() or _names_images(folder, name, bases)]
    return [f"lists of images that are not read: {listed(found, 3)}"] if found else []


_LISTS = 50
"""Lists that are looked at, at most; more text files of a folder are labels of one image each."""


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
