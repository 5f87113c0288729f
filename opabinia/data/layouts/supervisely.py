"""Folders of Supervisely, and of Dataset Ninja, which has its format."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

from opabinia.data.layouts.folder import DoubtfulLayout, Folder
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.pairing import above, split_of_path
from opabinia.data.layouts.readings import check_training, together, with_alternatives, with_masks
from opabinia.data.sources.file_names import printable
from opabinia.runtime.text import plural

_READ = 20_000
"""Files that are read to collect the names of all classes."""
_TITLE = re.compile(r'"classTitle"\s*:\s*("(?:[^"\\]|\\.)+")')


def read_supervisely(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of folders ``img`` and ``ann`` with a JSON file for each image, of one or several datasets.

    Raises:
        DoubtfulLayout: images have tags, and no objects.
    """
    places = [above(place) for place in folder.places((".json",)) if _is_supervisely(folder, place)]
    if folder.only is not None or not places:
        return
    by_split: dict[str, list[str]] = defaultdict(list)
    for place in places:
        by_split[split_of_path(place) or "train"].append(place)
    check_training(folder, by_split, "expected a folder train")
    names = sorted({name for place in places for name in _class_names(folder.sub(place))})
    if not names:
        raise DoubtfulLayout(
            f"{folder.text} has JSON files of Supervisely without objects; tags of images are not read"
        )
    sections = {
        split: together([{"name": "supervisely", "root": folder.at(place), "classes": names} for place in group])
        for split, group in by_split.items()
    }
    used = [place.partition("/")[0] for place in places] if "" not in places else ["ann", "img"]
    description = f"shapes of {plural(len(names), 'class', 'es')} in the format of Supervisely"
    notes = folder.others([*used, "meta.json"])
    layout = Layout("supervisely", "detection", description, sections, notes=notes)
    yield from with_alternatives(layout, with_masks(layout))


def _is_supervisely(folder: Folder, place: str) -> bool:
    """Return whether a folder has the annotations of images in ``img`` beside it."""
    if place.rpartition("/")[2] != "ann" or not folder.has(f"{above(place)}/img".lstrip("/")):
        return False
    inner = folder.sub(place)
    texts = [inner.head(name, 1 << 16) for name in inner.named(".json")[:5]]
    return all('"objects"' in text and '"size"' in text for text in texts)


def _class_names(folder: Folder) -> set[str]:
    """Return the names of the classes of all objects of a dataset."""
    inner = folder.sub("ann")
    quoted = {name for file in inner.tree((".json",), _READ) for name in _TITLE.findall(inner.head(file, 1 << 26))}
    names = set[str]()
    for name in quoted:
        with suppress(ValueError):  # an escape that JSON does not have; the source reports the file
            names.add(printable(json.loads(name)))
    return names
