"""Files of annotation tools: Pascal VOC's XML (LabelImg), LabelMe's JSON, CVAT's XML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.folder import Folder, UnreadableLayout, listed, split_in, split_of
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.readings import check_training, make_layout, with_alternatives, with_masks

_READ = 20_000
"""Files that are read to collect the names of all classes."""

# --- Pascal VOC -------------------------------------------------------------------------------------------------------


def read_voc(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of XML files of Pascal VOC, in a folder ``Annotations`` or beside their images.

    Raises:
        UnreadableLayout: there are lists of images, and none to train on; or no image beside the XML files.
    """
    if folder.only is not None:
        return
    annotations = _voc_folder(folder)
    if annotations is not None:
        section = _voc_section(folder, annotations)
        lists = [name[:-4] for name in _lists(folder)]
        sections = {split: {**section, "split": name} for name in lists if (split := split_of(name))}
        if "train" not in sections and "trainval" in lists:
            sections["train"] = {**section, "split": "trainval"}
        check_training(folder, sections, "expected ImageSets/Main/train.txt")
        sections = sections or {"train": {**section, "split": None}}
        used = {annotations, section.get("images", "JPEGImages"), "ImageSets"}
        note = [] if len(sections) > 1 or lists else ["there is no folder ImageSets/Main with lists of splits"]
        how = "listed in ImageSets/Main" if lists else "in one folder"
    else:
        places = {split: name for split, name in folder.splits.items() if _voc_folder(folder.sub(name)) is not None}
        if not places:
            return
        check_training(folder, {split: {} for split in places}, "expected a folder train")
        classes = sorted({name for place in places.values() for name in _voc_names(folder.sub(place))})
        sections = {}
        for split, place in places.items():
            inner = folder.sub(place)
            section = _voc_section(inner, _voc_folder(inner) or "")
            sections[split] = {**section, "split": None, "classes": classes}
        used, note, how = set(places.values()), [], f"in {' and '.join(f'{name}/' for name in places.values())}"
    description = f"boxes in XML files of Pascal VOC, {how}"
    yield make_layout("voc", "detection", description, sections, notes=[*note, *folder.others(used)])


def _voc_folder(folder: Folder) -> str | None:
    """Return the folder with XML files of Pascal VOC: ``Annotations`` or alike, or an empty text for the folder itself;
    None if there is none."""
    named = [name for name in folder.folders if name.lower() in ("annotations", "annotation", "xmls", "labels")]
    places = ["", *named, *(f"{name}/xmls" for name in named if "xmls" in folder.sub(name).folders)]
    for place in reversed(places):
        files = folder.sub(place).named(".xml")
        start = folder.sub(place).head(files[0], 4096) if files else ""
        if "<annotation>" in start or re.search(r"<annotation\s", start):
            return place
    return None


def _voc_section(folder: Folder, annotations: str) -> dict[str, Any]:
    """Return the source without its split.

    Raises:
        UnreadableLayout: there are no images.
    """
    section: dict[str, Any] = {"name": "voc", "root": folder.text}
    if not annotations:
        if not folder.named(*EXTENSIONS):
            raise UnreadableLayout(f"{folder.text} has XML files, but no image beside them")
        return section
    images = folder.find("jpegimages", "images", "image", "imgs", "img", "photos") or ""
    if not folder.sub(images).named(*EXTENSIONS):
        place = folder.at("JPEGImages")
        raise UnreadableLayout(f"{folder.at(annotations)} has XML files, but there are no images in {place}")
    named = {"annotations": (annotations, "Annotations"), "images": (images, "JPEGImages")}
    return section | {key: name for key, (name, usual) in named.items() if name not in ("", usual)}


def _lists(folder: Folder) -> list[str]:
    """Return the lists of images of splits, and no lists of the images of a class."""
    if not folder.has("ImageSets/Main"):
        return []
    return [name for name in folder.sub("ImageSets/Main").named(".txt") if "_" not in name]


def _voc_names(folder: Folder) -> set[str]:
    """Return the names of all objects."""
    place = folder.sub(_voc_folder(folder) or "")
    texts = (place.head(name, 1 << 22) for name in place.named(".xml")[:_READ])
    return {name.strip() for text in texts for name in re.findall(r"<object>\s*<name>([^<]+)</name>", text)}


# --- LabelMe ----------------------------------------------------------------------------------------------------------


def read_labelme(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of a JSON file of LabelMe beside each image."""
    if folder.only is not None:
        return
    places = {split: name for split, name in folder.splits.items() if _is_labelme(folder.sub(name))}
    if not places and _is_labelme(folder):
        places = {"train": ""}
    if not places:
        return
    check_training(folder, {split: {} for split in places}, "expected a folder train")
    names = sorted({name for place in places.values() for name in _labelme_names(folder.sub(place))})
    classes: Mapping[str, Any] = {"classes": names} if len(places) > 1 else {}
    sections = {split: {"name": "labelme", "root": folder.at(place), **classes} for split, place in places.items()}
    description = f"shapes of {len(names)} classes in JSON files of LabelMe"
    used = [*places.values(), *(folder.folders if "" in places.values() else ())]
    layout = make_layout("labelme", "detection", description, sections, notes=folder.others([*used, *folder.files]))
    yield from with_alternatives(layout, with_masks(layout))


def _is_labelme(folder: Folder) -> bool:
    files = folder.tree((".json",), 5)
    return bool(files) and all('"imagePath"' in (text := _whole(folder, file)) and '"shapes"' in text for file in files)


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
    names = [name for name in folder.named(".xml") if _is_cvat(folder, name)]
    names += [
        f"{place}/{name}"
        for place in folder.folders
        if place.lower() == "annotations" or split_of(place)
        for name in folder.sub(place).named(".xml")[:5]
        if _is_cvat(folder.sub(place), name)
    ]
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
    layout = make_layout("cvat", "detection", description, sections, notes=folder.others(used))
    yield from with_alternatives(layout, with_masks(layout))


def _is_cvat(folder: Folder, name: str) -> bool:
    start = folder.head(name, 1 << 16)
    return "<annotations>" in start and ("<image " in start or "<meta>" in start)


def _cvat_root(folder: Folder, name: str, split: str | None) -> str:
    """Return the folder that image names are relative to.

    Raises:
        UnreadableLayout: they are not found.
    """
    text = folder.head(name, 1 << 20)
    images = re.findall(r'<image [^>]*name="([^"]+)"', text)[:20]
    if not images and "<track " in text:
        raise UnreadableLayout(f"{folder.at(name)} has tracks of a video; export it as CVAT for images 1.1")
    whole = folder.whole
    own = [sub for sub in whole.folders if split and split_of(sub) == split]
    candidates: Sequence[str] = [
        name.rpartition("/")[0],
        "images",
        *own,
        *(f"images/{sub}" for sub in own),
        *whole.folders,
    ]
    for candidate in ["", *candidates]:
        if any(whole.has(f"{candidate}/{image}".lstrip("/")) for image in images):
            return candidate
    first = f", such as {images[0]}," if images else ""
    raise UnreadableLayout(f"{folder.at(name)}: its images{first} are not found in {folder.text}")
