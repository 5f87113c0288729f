"""Files of annotation tools: Pascal VOC's XML (LabelImg), LabelMe's JSON, CVAT's XML."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from opabinia.data.layouts.folder import DoubtfulLayout, Folder, UnreadableLayout, listed, split_in, split_of
from opabinia.data.layouts.layout import Layout, Section, change_sources
from opabinia.data.layouts.pairing import above, check_alone, images_of, several, split_of_path
from opabinia.data.layouts.readings import check_training, convert, with_alternatives, with_masks
from opabinia.runtime.text import plural

_READ = 20_000
"""Files that are read to collect the names of all classes."""

# --- Pascal VOC -------------------------------------------------------------------------------------------------------


def read_voc(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of XML files of Pascal VOC, in any folder, with images of the same names.

    Raises:
        UnreadableLayout: there are lists of images, and none to train on; no image has the name of an XML file; or
            several folders of XML files are not those of splits.
    """
    places = [] if folder.only is not None else [name for name in folder.places((".xml",)) if _is_voc(folder.sub(name))]
    if not places:
        return
    bases = {place: _above_lists(folder, place) for place in places}
    listing = [place for place, base in bases.items() if base is not None]
    if listing:
        if len(listing) > 1:
            raise several(folder, [bases[place] or "" for place in listing])
        sections, used, how = _listed_voc(folder, listing[0], bases[listing[0]] or "")
        notes: list[str] = []
    else:
        sections, used, how, notes = _unlisted_voc(folder, places)
    check_alone(folder, sorted(used))
    description = f"boxes in XML files of Pascal VOC, {how}"
    layout = Layout("voc", "detection", description, sections, notes=[*notes, *folder.others(used)])
    if any("<robndbox" in text for place in places for text in _first_texts(folder.sub(place))):
        layout = replace(layout, description=f"oriented {description}, as of roLabelImg")
        layout = convert(layout, "detection", lambda section: change_sources(section, _oriented))
    yield layout


def _oriented(section: Section) -> Section:
    """Return a source of Pascal VOC with oriented boxes; one of several sources as it is."""
    return section if "sources" in section else {**section, "oriented": True}


def _first_texts(folder: Folder) -> list[str]:
    return [folder.head(name, 1 << 14) for name in folder.named(".xml")[:5]]


def _is_voc(folder: Folder) -> bool:
    """Return whether the first XML files have boxes of objects."""
    texts = _first_texts(folder)
    opened = [text for text in texts if re.search(r"<annotation[>\s]", text)]
    boxes = any(f"<{kind}" in text for kind in ("bndbox", "robndbox") for text in texts)
    return len(opened) == len(texts) and (boxes or all("<object" not in text for text in texts))


def _above_lists(folder: Folder, place: str) -> str | None:
    """Return the folder above XML files that has lists of images in ``ImageSets/Main`` or in ``ImageSets``."""
    parts = place.split("/")
    above = ("/".join(parts[:end]) for end in range(len(parts), -1, -1))
    return next((base for base in above if _lists(folder.sub(base)) is not None), None)


def _lists(base: Folder) -> str | None:
    """Return the folder of lists of images."""
    if base.has("ImageSets/Main"):
        return "ImageSets/Main"
    return "ImageSets" if base.has("ImageSets") and base.sub("ImageSets").named(".txt") else None


def _listed_voc(folder: Folder, place: str, base: str) -> tuple[dict[str, dict[str, Any]], set[str], str]:
    """Return the sources of lists of images, the folders and what is said of them.

    Raises:
        UnreadableLayout: there is none to train on.
    """
    section, used = _voc_section(folder, place, base)
    at = _lists(folder.sub(base)) or "ImageSets/Main"
    files = folder.sub(base).sub(at).named(".txt")
    lists = [name[:-4] for name in files if "_" not in name]  # others are of one class
    sections = {split: {**section, "split": name} for name in lists if (split := split_of(name))}
    if "train" not in sections and "trainval" in lists:
        sections["train"] = {**section, "split": "trainval"}
    check_training(folder, sections, f"expected {at}/train.txt")
    return sections or {"train": {**section, "split": None}}, {*used, "ImageSets"}, f"listed in {at}"


def _unlisted_voc(folder: Folder, places: Sequence[str]) -> tuple[dict[str, dict[str, Any]], set[str], str, list[str]]:
    """Return the sources of folders of XML files, all folders that are read, what is said of them, and remarks.

    Raises:
        UnreadableLayout: they are no splits, or there is none to train on.
    """
    by_split: dict[str | None, list[str]] = defaultdict(list)
    for place in places:
        by_split[split_of_path(place)].append(place)
    if (None in by_split and len(by_split) > 1) or any(len({*map(above, group)}) > 1 for group in by_split.values()):
        raise several(folder, [above(place) or place for place in places])
    check_training(folder, [split for split in by_split if split], "expected a folder train")
    classes = sorted({name for place in places for name in _voc_names(folder.sub(place))}) if len(places) > 1 else []
    sections, every = dict[str, dict[str, Any]](), set[str]()
    for split, group in by_split.items():
        parts = []
        for place in group:
            section, used = _voc_section(folder, place, place if split_of(place) else above(place))
            parts.append({**section, "split": None} | ({"classes": classes} if classes else {}))
            every |= used
        sections[split or "train"] = parts[0] if len(parts) == 1 else {"name": "concat", "sources": parts}
    if None in by_split:
        where = "in one folder" if len(places) == 1 else f"in {plural(len(places), 'folder')}"
        return sections, every, where, ["there is no folder ImageSets/Main with lists of splits"]
    return sections, every, f"in {' and '.join(f'{place}/' for place in places[:4])}", []


def _voc_section(folder: Folder, place: str, base: str) -> tuple[dict[str, Any], set[str]]:
    """Return the source of a folder of XML files without its split, and the folders below ``folder`` that it reads.

    Raises:
        UnreadableLayout: no image has the name of an XML file.
    """
    images = images_of(folder, place, ".xml", base)
    if images is None:
        place = folder.at(place)
        raise UnreadableLayout(f"{place} has XML files, but there are no images of these names in {folder.text}")
    while base and not all(f"{name}/".startswith(f"{base}/") for name in (place, images)):
        base = above(base)
    names = {"annotations": (place, "Annotations"), "images": (images, "JPEGImages")}
    below = {key: (name.removeprefix(base).lstrip("/"), usual) for key, (name, usual) in names.items()}
    section = {"name": "voc", "root": folder.at(base)}
    section |= {key: name for key, (name, usual) in below.items() if name not in ("", usual)}
    return section, {name.partition("/")[0] for name in (place, images)}


def _voc_names(folder: Folder) -> set[str]:
    """Return the names of all objects in the XML files of a folder."""
    texts = (folder.head(name, 1 << 22) for name in folder.named(".xml")[:_READ])
    return {name.strip() for text in texts for name in _NAME.findall(text)}


_NAME = re.compile(r"<object>\s*(?:<type>\w*</type>\s*)?<name>([^<]+)</name>")


# --- LabelMe ----------------------------------------------------------------------------------------------------------


def read_labelme(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of a JSON file of LabelMe beside each image."""
    if folder.only is not None:
        return
    by_split: dict[str, list[str]] = defaultdict(list)
    for place in folder.places((".json",)):
        if _is_labelme(folder.sub(place)):
            by_split[split_of_path(place) or "train"].append(place)
    if not by_split:
        return
    check_training(folder, by_split, "expected a folder train")
    places = {split: os.path.commonpath(group) if "" not in group else "" for split, group in by_split.items()}
    if len(places) > 1 and "" in places.values():
        raise several(folder, [place for group in by_split.values() for place in group])
    names = sorted({name for place in places.values() for name in _labelme_names(folder.sub(place))})
    if not names:
        raise DoubtfulLayout(f"{folder.text} has JSON files of LabelMe without shapes; flags of images are not read")
    classes: Mapping[str, Any] = {"classes": names} if len(places) > 1 else {}
    sections: dict[str, dict[str, Any]] = {}
    for split, place in places.items():
        base, images = _labelme_images(folder, by_split[split][0], place)
        sections[split] = {"name": "labelme", "root": folder.at(base), **images, **classes}
    description = f"shapes of {plural(len(names), 'class', 'es')} in JSON files of LabelMe"
    used = [*(place.partition("/")[0] for place in places.values()), *(folder.folders if "" in places.values() else ())]
    used += [str(section["images"]).partition("/")[0] for section in sections.values() if "images" in section]
    layout = Layout("labelme", "detection", description, sections, notes=folder.others([*used, *folder.files]))
    yield from with_alternatives(layout, with_masks(layout))


def _is_labelme(folder: Folder) -> bool:
    files = folder.named(".json")[:5]
    return bool(files) and all('"imagePath"' in (text := _whole(folder, file)) and '"shapes"' in text for file in files)


def _labelme_images(folder: Folder, first: str, place: str) -> tuple[str, dict[str, str]]:
    """Return the root of the JSON files in ``place``, and the options for images that are in another folder.

    Raises:
        UnreadableLayout: the images are not found.
    """
    inner = folder.sub(first)
    named = re.search(r'"imagePath"\s*:\s*"([^"]+)"', _whole(inner, inner.named(".json")[0]))
    images = images_of(folder, first, ".json", above(place))
    if images in (None, first) and (images or inner.has(named[1].replace("\\\\", "/") if named else "")):
        return place, {}
    if images is None:
        raise UnreadableLayout(f"{folder.at(first)} has JSON files of LabelMe, and no images of these names")
    if not place or f"{images}/".startswith(f"{place}/"):
        return place, {"images": images.removeprefix(place).lstrip("/")}
    return "", {"annotations": place, "images": images}


def _whole(folder: Folder, name: str) -> str:
    return folder.head(name, 1 << 26)


def _labelme_names(folder: Folder) -> set[str]:
    texts = (_whole(folder, name) for name in folder.tree((".json",), _READ))
    names = {name for text in texts for name in re.findall(r'"label"\s*:\s*("(?:[^"\\]|\\.)*")', text)}
    found = set()
    for name in names:
        with suppress(ValueError):  # the source reports it
            found.add(json.loads(name))
    return found


# --- CVAT -------------------------------------------------------------------------------------------------------------


def read_cvat(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of XML files of CVAT.

    Raises:
        UnreadableLayout: the images are not found, or it is not clear which split a file is.
    """
    places = folder.places((".xml",)) if folder.only is None else [""]
    names = [f"{place}/{name}".lstrip("/") for place in places for name in folder.sub(place).named(".xml")[:5]]
    names = [name for name in names if _is_cvat(folder, name)]
    if not names:
        return
    sections: dict[str, dict[str, Any]] = {}
    for name in names:
        split = split_in(name)
        if split is None and len(names) > 1:
            raise UnreadableLayout(
                f"{folder.at(name)}: its name does not say which split it is; expected train.xml ..."
            )
        root = _cvat_root(folder, name, split)
        sections[split or "train"] = {"name": "cvat", "root": folder.at(root), "file": folder.at(name)}
    check_training(folder, sections, "expected train.xml")
    roots = [
        str(section["root"]).removeprefix(folder.text).lstrip("/").partition("/")[0] for section in sections.values()
    ]
    used = [*roots, *(name.partition("/")[0] for name in names)]
    description = f"shapes in {listed(names)} of CVAT"
    layout = Layout("cvat", "detection", description, sections, notes=folder.others(used))
    yield from with_alternatives(layout, with_masks(layout))


def _is_cvat(folder: Folder, name: str) -> bool:
    start = folder.head(name, 1 << 16)
    return "<annotations>" in start and ("<image " in start or "<meta>" in start) and "<track " not in start


def _cvat_root(folder: Folder, name: str, split: str | None) -> str:
    """Return the folder that image names are relative to.

    Raises:
        UnreadableLayout: they are not found.
    """
    text = folder.head(name, 1 << 20)
    images = re.findall(r'<image [^>]*name="([^"]+)"', text)[:20]
    whole, place = folder.whole, above(name)
    own = [sub for sub in whole.folders if split and split_of(sub) == split]
    root = whole.root_of(images, ["", place, "images", *own, *(f"images/{sub}" for sub in own)])
    if root is not None:
        return root
    first = f", such as {images[0]}," if images else ""
    raise UnreadableLayout(f"{folder.at(name)}: its images{first} are not found in {folder.text}")
