"""Files of VIA (VGG Image Annotator)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from opabinia.data.layouts.folder import Folder, UnreadableLayout, listed
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.pairing import above, locate, split_of_path
from opabinia.data.layouts.readings import check_training, with_alternatives, with_masks
from opabinia.data.sources.file_names import sort_names
from opabinia.data.sources.via import ViaImage, read_via, region_class
from opabinia.runtime.text import plural

_FILES = 20
"""Files of a folder that are looked at."""
_CLASS = re.compile(r"class|label|categor|type|name|object|species|tag", re.IGNORECASE)
"""Names of attributes of the class."""


def read_via_files(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of projects and exported files of VIA.

    Raises:
        UnreadableLayout: a file is broken, its images are not found, or there are several of a split.
    """
    found: dict[str, list[tuple[str, list[ViaImage]]]] = defaultdict(list)
    places = folder.places((".json", ".csv")) if folder.only is None else [""]
    candidates = (f"{place}/{name}".lstrip("/") for place in places for name in _files(folder.sub(place)))
    for name in islice(candidates, _FILES):
        images = list(read_via(folder.path / name))
        known = [images for _, images in found[split_of_path(name) or "train"]]
        if images not in known:  # a project and its export are the same
            found[split_of_path(name) or "train"].append((name, images))
    files = {split: group[0] for split, group in found.items() if group}
    if not files:
        return
    for group in found.values():
        if len(group) > 1:
            names = listed([folder.at(name) for name, _ in group])
            raise UnreadableLayout(f"{names} are files of VIA with other regions; remove or rename all but one")
    check_training(folder, files, "expected a folder train")
    attribute, notes = _attribute([image for _, images in files.values() for image in images])
    regions = [attributes for _, images in files.values() for image in images for _, attributes in image.regions]
    names_of_classes = {region_class(attributes, attribute) for attributes in regions} if attribute else {"object"}
    classes = sort_names({name for name in names_of_classes if name is not None})
    sections = {split: _section(folder, *file) for split, file in files.items()}
    options: dict[str, Any] = {"attribute": attribute} if attribute else {}
    options |= {"classes": classes} if len(files) > 1 else {}
    description = (
        f"shapes of {plural(len(classes), 'class', 'es')} in {listed([name for name, _ in files.values()])} of VIA"
    )
    used = [part.partition("/")[0] for name, _ in files.values() for part in (name, above(name))]
    used += [
        str(section["root"]).removeprefix(folder.text).strip("/").partition("/")[0] for section in sections.values()
    ]
    layout = Layout(
        "via",
        "detection",
        description,
        {split: section | options for split, section in sections.items()},
        notes=[*notes, *folder.others(used)],
    )
    yield from with_alternatives(layout, with_masks(layout))


def _files(folder: Folder) -> list[str]:
    """Return the files of VIA in a folder."""
    names = folder.named(".json", ".csv")
    return [
        name for name in sorted(names[:_FILES], key=lambda name: "via" not in name.lower()) if _is_via(folder, name)
    ]


def _is_via(folder: Folder, name: str) -> bool:
    start = folder.head(name)
    if name.lower().endswith(".csv"):
        return "region_shape_attributes" in start.partition("\n")[0]
    return '"_via_settings"' in start or (
        '"filename"' in start and '"regions"' in start and '"file_attributes"' in start
    )


def _section(folder: Folder, name: str, images: Sequence[ViaImage]) -> dict[str, Any]:
    """Return the source of a file without its classes.

    Raises:
        UnreadableLayout: its images are not found.
    """
    names = [image.name for image in images]
    place = locate(folder, names[:100], split_of_path(name)) if names else None
    if place is None or place.prefix or place.suffix:
        first = f", such as {names[0]}," if names else ""
        raise UnreadableLayout(f"{folder.at(name)}: its images{first} are not found in {folder.text}")
    return {"name": "via", "file": folder.at(name), "root": folder.at(place.root)}


def _attribute(images: Sequence[ViaImage]) -> tuple[str | None, list[str]]:
    """Return the attribute of regions that has the class, None if none is filled in, and a remark."""
    regions = [attributes for image in images for _, attributes in image.regions]
    counts = Counter(
        chain.from_iterable(
            [name for name in attributes if region_class(attributes, name) is not None] for attributes in regions
        )
    )
    if not counts:
        return None, ["regions have no attribute with a class: all objects are of one class"]
    best = max(counts, key=lambda name: (bool(_CLASS.search(name)), counts[name]))
    others = [name for name in counts if name != best]
    notes = [f"the class is the attribute {best}; others are not used: {listed(others)}"] if others else []
    missing = len(regions) - counts[best]
    notes += [f"{plural(missing, 'region')} without it: an error, unless broken: drop is set"] if missing else []
    return best, notes
