"""Images with segmentation maps: folders of both, one folder, lists of pairs, and folders of published datasets."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations
from pathlib import PurePosixPath
from typing import Any, Literal

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.class_names import find_class_names
from opabinia.data.layouts.folder import (
    ANNOTATIONS,
    SPLITS,
    DoubtfulLayout,
    Folder,
    UnreadableLayout,
    listed,
    split_in,
    split_of,
)
from opabinia.data.layouts.images import unread_lists
from opabinia.data.layouts.layout import Layout, Sections
from opabinia.data.layouts.map_values import (
    LOSSLESS,
    MAX_CLASSES,
    class_options,
    looks_like_maps,
    number_objects,
    read_values,
)
from opabinia.data.layouts.mask_files import find_object_masks
from opabinia.data.layouts.pairing import split_of_path
from opabinia.data.layouts.readings import check_training, together, with_alternatives, with_masks
from opabinia.runtime.text import plural

_IMAGES = re.compile(r"image|im(g|age)s?$|photo|rgb|input|picture|frame|orig", re.IGNORECASE)
_FOLDERS = 100
"""Folders of images that are compared with each other, at most."""


@dataclass(frozen=True)
class _Place:
    """Images and maps of a split.

    Attributes:
        root: the folder of both below the folder.
        images, labels: below the root.
        naming: options of the source ``segmentation_folder`` by which names of images become those of maps.
    """

    root: str
    images: str
    labels: str
    naming: Mapping[str, str]

    def maps(self, folder: Folder) -> list[str]:
        """Return the paths of the maps."""
        inner, suffix = folder.sub(self.root).sub(self.labels), self.naming.get("label_suffix", ".png")
        names = inner.tree((suffix.lower(),))
        if self.images == self.labels:
            names = [name for name in names if name.endswith(suffix)]
        return [str(inner.path / name) for name in names]

    def section(self, folder: Folder) -> dict[str, Any]:
        """Return the source without its classes."""
        named = {"images": (self.images, "images"), "labels": (self.labels, "labels")}
        folders = {key: value for key, (value, usual) in named.items() if value != usual}
        return {"name": "segmentation_folder", "root": folder.at(self.root), **folders, **self.naming}


def read_maps(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of images and maps; if values may number objects, a second one.

    Raises:
        UnreadableLayout: images have no maps, or the values in the maps cannot be read as classes.
    """
    if folder.only is not None or _pair_lists(folder):
        return
    if any(not masks.may_be_maps for masks in find_object_masks(folder).values()):
        return
    published = list(_read_published(folder))
    yield from published
    if published:
        return
    places = _split_places(folder)
    check_training(folder, places, "expected a folder train")
    if not places:
        return
    pairs = [place for group in places.values() for place in group]
    paths = [path for place in pairs for path in place.maps(folder)]
    found = read_values(paths)
    train = places["train"][0]
    where = folder.sub(train.root).at(train.labels)
    below = [name for place in pairs for name in (place.root, f"{place.root}/{place.labels}".strip("/"))]
    given = find_class_names(folder, below)
    if given is None and number_objects(paths):
        yield from _objects(folder, places, len(paths))
        if len(found.gray) > MAX_CLASSES:
            return
    options, notes = class_options(where, found, given)
    sections = _sections(folder, places, options)
    lists, remarks = ({}, []) if len(pairs) > 1 else _lists(folder, train)
    if lists:
        sections = {split: sections["train"] | {"list_file": name} for split, name in lists.items()}
    used = {part.partition("/")[0] for place in pairs for part in (place.root, place.images, place.labels)}
    used |= {given[1]} if given else set()
    used |= {name.partition("/")[0] for name in lists.values()}
    unread = [] if remarks else unread_lists(folder, {f"{train.root}/{name}".lstrip("/") for name in lists.values()})
    description = f"{plural(len(paths), 'segmentation map')} of {plural(len(options['classes']), 'class', 'es')}"
    description += f" in {len(pairs)} folders" if len(pairs) > len(places) else ""
    yield Layout(
        "maps",
        "segmentation",
        description,
        sections,
        notes=[*notes, *remarks, *_further_files(folder, pairs), *unread, *folder.others(used)],
        classes=options["classes"],
    )


def _sections(
    folder: Folder, places: Mapping[str, Sequence[_Place]], options: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the source of each split with these options."""
    return {
        split: together([{**place.section(folder), **options} for place in group]) for split, group in places.items()
    }


def _objects(folder: Folder, places: Mapping[str, Sequence[_Place]], count: int) -> Iterator[Layout]:
    """Yield the readings of maps whose values number objects: with masks, and boxes alone."""
    sections = _sections(folder, places, {"name": "instance_maps"})
    description = f"{plural(count, 'map')} whose values number the objects, all of one class"
    used = {part.partition("/")[0] for group in places.values() for p in group for part in (p.root, p.images, p.labels)}
    boxes = Layout("instance_maps", "detection", description, sections, notes=folder.others(used))
    masks, _ = with_masks(boxes)
    yield from with_alternatives(masks, [boxes])


def _further_files(folder: Folder, places: Sequence[_Place]) -> list[str]:
    """Return a remark on files next to the maps that are called otherwise; those called like maps of no image are
    reported by the source."""
    files = list[str]()
    for place in places:
        inner, naming = folder.sub(place.root).sub(place.labels), place.naming
        names = inner.tree(LOSSLESS) if place.images != place.labels else []
        prefix, end = naming.get("label_prefix", ""), naming.get("label_suffix", ".png")
        files += [inner.at(name) for name in names if _core(name, prefix, end) is None]
    count = plural(len(files), "file")
    return [f"not read: {count} next to the maps, since an image has one map: {listed(files, 3)}"] if files else []


# --- folders ----------------------------------------------------------------------------------------------------------


def _split_places(folder: Folder) -> dict[str, list[_Place]]:
    """Return where images and maps of each split are, several folders of both if there are some below those of none."""
    found = {split: [place] for split, place in _one_place(folder).items()}
    return found or _pairs_below(folder)


def _one_place(folder: Folder) -> dict[str, _Place]:
    """Return the folder of images and maps of each split; none if there are others, or several."""
    found: dict[str, _Place] = {}
    for split, name in folder.splits.items():
        place = _pair_in(folder, name)
        if place is not None:
            found[split] = place
    if found:
        return found
    pair = _pair_in(folder, "")
    if pair is not None:
        images, labels = folder.sub(pair.images), folder.sub(pair.labels)
        for split, name in images.splits.items() if pair.images != pair.labels else ():
            other = labels.splits.get(split)
            if other is not None:
                place = _match(folder, "", f"{pair.images}/{name}", f"{pair.labels}/{other}", lossy=True)
                found |= {split: place} if place else {}
        return found or {"train": pair}
    for split, name in folder.splits.items():  # train and train_masks, or trainannot
        for other in folder.folders:
            is_map = ANNOTATIONS.search(other) and "panoptic" not in other.lower()
            if is_map and split_in(other) == split and folder.sub(other).holds():
                place = _match(folder, "", name, other, lossy=True)
                found |= {split: place} if place and split not in found else {}
    return found


def _pairs_below(folder: Folder) -> dict[str, list[_Place]]:
    """Return folders of images and of maps that are both below folders of the same split, at any depth, such as
    ``images/a/train`` and ``maps/b/train``, or ``a/images`` and ``a/maps`` for each scene ``a``."""
    places = [place for place in folder.places() if place][:_FOLDERS]
    if len({place.partition("/")[0] for place in places}) < 2:  # that folder is asked next
        return {}
    maps = [place for place in places if any(map(ANNOTATIONS.search, place.split("/")))]
    maps = [place for place in maps if "panoptic" not in place.lower()]
    maps = [place for place in maps if folder.sub(place).named(*LOSSLESS)]
    found: dict[str, list[_Place]] = defaultdict(list)
    for labels in sorted(maps, key=_preference):
        split = split_of_path(labels)
        images = [place for place in places if place not in maps and split_of_path(place) == split]
        images.sort(key=lambda place: len(os.path.commonpath([place, labels])), reverse=True)
        matches = (_match(folder, "", place, labels) for place in images)
        pair = next(
            (match for match in matches if match and _differ(folder.sub(match.images), match.maps(folder))), None
        )
        if pair is not None and all(pair.images != other.images for other in found[split or "train"]):
            found[split or "train"].append(pair)
    if not any(found.values()):  # each image beside its map
        beside = dict[str, _Place]()
        for place in places:
            with suppress(UnreadableLayout):  # few images have a map
                beside |= {place: pair} if (pair := _beside(folder.sub(place), place)) else {}
        for place, pair in beside.items() if len(beside) == len(places) else ():
            found[split_of_path(place) or "train"].append(pair)
    return {split: group for split, group in found.items() if group}


def _preference(labels: str) -> tuple[bool, bool]:
    """Return a sort key of folders of maps: those of annotators and of classes first."""
    other = re.search(r"object|instance|colou?r|vis", labels, re.IGNORECASE)
    return "manual" not in labels.lower(), other is not None


def _pair_in(folder: Folder, root: str) -> _Place | None:
    """Return the images and maps in one folder: in two folders of it, or in the folder itself.

    Raises:
        DoubtfulLayout: there are folders of images and of maps, and none of the images has a map.
    """
    inner = folder.sub(root)
    names = [name for name in inner.folders if name not in inner.splits.values() and inner.sub(name).holds()]
    names = [name for name in names if split_of(name) is None]
    maps = [name for name in names if ANNOTATIONS.search(name)]
    images = [name for name in names if name not in maps]
    images.sort(key=lambda name: not _IMAGES.search(name))
    maps.sort(key=_preference)
    inside = [f"{name}/{below}" for name in maps for below in inner.sub(name).folders]
    for image in images:
        for labels in [*maps, *inside]:
            place = _match(folder, root, image, labels, lossy=True)
            if place is not None:
                return place
    if len(maps) == 1 and len(images) == 1 and _IMAGES.search(images[0]):
        image_files, map_files = inner.sub(images[0]).tree(EXTENSIONS, 1), inner.sub(maps[0]).tree(EXTENSIONS, 1)
        raise DoubtfulLayout(
            f"{inner.at(images[0])} and {inner.at(maps[0])}: fewer than half of the images have a map of the same "
            f"name; there are {image_files[0]} and {map_files[0]}"
        )
    if 2 <= len(names) <= 4 and not maps:  # any names: maps are the files with few values
        for image, labels in permutations(names, 2):
            place = _match(folder, root, image, labels)
            if place is not None and _differ(inner.sub(image), place.maps(folder)):
                return place
    return _beside(inner, root)


def _differ(images: Folder, maps: Sequence[str]) -> bool:
    """Return whether files of one folder may be maps, since they have fewer values than those of the other."""
    return _fewer_values(maps, [str(images.path / name) for name in images.tree(LOSSLESS, 5)])


def _fewer_values(maps: Sequence[str], images: Sequence[str]) -> bool:
    """Return whether files may be maps, since the first ones have few values, fewer than lossless images."""
    of_maps, of_images = read_values(maps[:5]), read_values(images[:5])
    return looks_like_maps(of_maps) and not (looks_like_maps(of_images) and of_images.count < 3 * of_maps.count)


def _beside(inner: Folder, root: str) -> _Place | None:
    """Return the images and maps in the same folder: ``1.jpg`` and ``1_mask.png``, or ``1.jpg`` and ``1.png``.

    Raises:
        UnreadableLayout: there are maps, and fewer than half of the images have one.
    """
    files = inner.named(*EXTENSIONS)
    maps = [name for name in files if _ENDS.search(os.path.splitext(name)[0])]
    if len(maps) <= len(files) / 10:
        end = _common_end(files)
        maps = [name for name in files if end and name.endswith(end)]
        if maps and not looks_like_maps(read_values([str(inner.path / name) for name in maps[:5]])):
            maps = []
    if len(maps) > len(files) / 10:
        images = [name for name in files if name not in {*maps}]
        naming = match_names(images, maps)
        if naming is None:
            raise UnreadableLayout(f"{inner.text}: there are maps such as {maps[0]}, but most images have none")
        return _Place(root, "", "", naming)
    return _same_names(inner, root, files)


def _same_names(inner: Folder, root: str, files: Sequence[str]) -> _Place | None:
    """Return the images and maps that differ in suffixes alone: ``1.jpg`` and ``1.png``, or ``1.bmp`` and ``1.png``."""
    by_suffix = defaultdict[str, list[str]](list)
    for name in files:
        by_suffix[os.path.splitext(name)[1]].append(name)
    for image_suffix, map_suffix in permutations(by_suffix, 2):
        images, maps = by_suffix[image_suffix], by_suffix[map_suffix]
        naming = match_names(images, maps)
        if naming is None or naming.keys() - {"label_suffix"} or len(maps) < len(files) / 3:
            continue
        paths = [str(inner.path / name) for name in maps]
        lossless = [str(inner.path / name) for name in images if name.lower().endswith(LOSSLESS)]
        if map_suffix.lower().endswith(LOSSLESS) and _fewer_values(paths, lossless):
            return _Place(root, "", "", naming | {"image_suffix": image_suffix})
    return None


_ENDS = re.compile(r"[_ .-](mask|label|gt|seg|segmentation|map|annotation|matte)s?$", re.IGNORECASE)
"""Ends of names of maps beside their images, without suffix."""


def _common_end(files: Sequence[str]) -> str | None:
    """Return the end of names that at least a third of the files has, which are called as another one before it:
    ``_L.png`` of ``1.png`` and ``1_L.png``."""
    ends = Counter[str]()
    stem = ""
    for name in sorted(files, key=lambda name: os.path.splitext(name)[0]):
        if stem and name.startswith(stem) and re.match(r"[^A-Za-z0-9.]", name[len(stem) :]):
            ends[name[len(stem) :]] += 1
        else:
            stem = os.path.splitext(name)[0]
    end, count = max(ends.items(), key=lambda item: item[1], default=("", 0))
    return end if count >= max(2, len(files) / 3) and end.lower().endswith(LOSSLESS) else None


def _match(folder: Folder, root: str, images: str, labels: str, *, lossy: bool = False) -> _Place | None:
    """Return the pairing of two folders if at least half of the images have a map; ``lossy``: also one that is JPEG."""
    inner = folder.sub(root)
    image_names = inner.sub(images).tree(EXTENSIONS)
    map_names = inner.sub(labels).tree(LOSSLESS) or (inner.sub(labels).tree(EXTENSIONS) if lossy else [])
    naming = match_names(image_names, map_names)
    return None if naming is None else _Place(root, images, labels, naming)


def match_names(images: Sequence[str], maps: Sequence[str]) -> dict[str, str] | None:
    """Return the options by which paths of images become those of maps, which differ in ends or beginnings of names;
    None if fewer than half of the images have a map."""
    if not images or not maps:
        return None
    for image_prefix, image_end, map_prefix, map_end in _candidates(images, maps):
        stems = {_core(name, map_prefix, map_end) for name in maps}
        matched = sum(1 for name in images if (core := _core(name, image_prefix, image_end)) and core in stems)
        if matched >= len(images) / 2:
            options = {"label_suffix": map_end} if map_end != ".png" else {}
            options |= {"image_suffix": image_end} if image_end else {}
            prefixes = {"image_prefix": image_prefix, "label_prefix": map_prefix}
            return options | {key: value for key, value in prefixes.items() if value}
    return None


def _core(name: str, prefix: str, end: str) -> str | None:
    """Return a path without beginning and end of its name; without an end, without its suffix."""
    folder, _, base = name.rpartition("/")
    if not base.startswith(prefix) or not base.endswith(end):
        return None
    base = base[len(prefix) : len(base) - len(end)] if end else os.path.splitext(base[len(prefix) :])[0]
    return f"{folder}/{base}" if folder or base else None


def _candidates(images: Sequence[str], maps: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield beginnings and ends of names of images and of maps that may be replaced by each other."""
    suffix = Counter(os.path.splitext(name)[1] for name in maps).most_common(1)[0][0]
    yield "", "", "", suffix
    ordered = sorted(maps)
    for image in images[:5]:  # 1.jpg and 1_mask.png
        stem = os.path.splitext(image)[0]
        place = bisect_left(ordered, stem)
        ends = [name[len(stem) :] for name in ordered[place : place + 20] if name.startswith(stem)]
        yield from (("", "", "", end) for end in ends if not end[0].isdigit())
    (image_start, image_end), (map_start, map_end) = _ends(images), _ends(maps)
    yield image_start, image_end, map_start, map_end
    yield "", image_end, "", map_end
    yield image_start, "", map_start, suffix
    yield "", _common_ending(images), "", _common_ending(maps)


def _ends(names: Sequence[str]) -> tuple[str, str]:
    """Return the common beginning and end of names, up to the first digit."""
    bases = [PurePosixPath(name).name for name in names]
    start = re.split(r"\d", _common(bases))[0]
    end = re.split(r"\d", _common_ending(bases))[-1]
    return ("", end) if len(start) + len(end) > min(map(len, bases)) else (start, end)


def _common_ending(names: Sequence[str]) -> str:
    return _common([name[::-1] for name in names])[::-1]


def _common(names: Sequence[str]) -> str:
    """Return the characters that all names begin with."""
    first, last = min(names), max(names)
    different = (place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(different, min(len(first), len(last)))]


def _lists(folder: Folder, place: _Place) -> tuple[dict[str, str], list[str]]:
    """Return the list of images of each split, which has their names, and a remark on others."""
    inner, found, others = folder.sub(place.root), dict[str, str](), list[str]()
    for below in ("", *(name for name in ("splits", "lists") if name in inner.folders)):
        for name in inner.sub(below).named(".txt"):
            split, line = split_of(PurePosixPath(name).stem), inner.sub(below).head(name).partition("\n")[0].strip()
            if split and line:
                ends = (place.naming["image_suffix"],) if "image_suffix" in place.naming else EXTENSIONS
                fits = any(inner.sub(place.images).has(f"{line}{end}") for end in ("", *ends))
                if fits:
                    found[split] = f"{below}/{name}".lstrip("/")
                else:
                    others.append(name)
    if "train" not in found:
        others, found = [*found.values(), *others], {}
    expected = "expected train.txt and others with names of images"
    return found, [f"lists of splits are not used: {listed(others)}; {expected}"] if others else []


# --- lists of pairs ---------------------------------------------------------------------------------------------------


def read_map_list(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of text files with an image and its map in each line.

    Raises:
        UnreadableLayout: there are lists, and none to train on; or the values in the maps cannot be read as classes.
    """
    lists = _pair_lists(folder)
    if not lists:
        return
    check_training(folder, lists, "expected train.txt")
    name, separator = lists["train"]
    lines = folder.head(name, 1 << 22).splitlines()
    maps = [str(folder.path / row[1].strip()) for line in lines if len(row := line.split(separator)) == 2]
    given = find_class_names(folder, [])
    options, notes = class_options(folder.at(name), read_values([path for path in maps if os.path.isfile(path)]), given)
    sections: Sections = {
        split: {"name": "segmentation_list", "file": folder.at(name)} | ({"separator": sep} if sep else {}) | options
        for split, (name, sep) in lists.items()
    }
    names = listed([*dict(lists.values())])
    description = f"pairs of images and maps of {plural(len(options['classes']), 'class', 'es')} in {names}"
    yield Layout("map_list", "segmentation", description, sections, notes=notes, classes=options["classes"])


def _pair_lists(folder: Folder) -> dict[str, tuple[str, str | None]]:
    """Return the list of each split, and what separates both paths in its lines."""
    lists: dict[str, tuple[str, str | None]] = {}
    for name in folder.named(".txt", ".lst", ".csv"):
        separator = _pair_separator(folder, name)
        if separator is not False:
            lists[split_in(name) or name] = (name, separator)
    if len(lists) == 1 and not {*lists} & {"val", "test"}:
        return {"train": next(iter(lists.values()))}
    return {split: given for split, given in lists.items() if split in SPLITS}


def _pair_separator(folder: Folder, name: str) -> str | Literal[False] | None:
    """Return what separates an image and its map in the lines of a file: None for whitespace, False if nothing does."""
    lines = [line.strip() for line in folder.head(name).splitlines()[:20] if line.strip()][:10]
    for separator in (None, ",", ";", "\t"):
        rows = [line.split(separator) for line in lines]
        pairs = [
            row for row in rows if len(row) == 2 and all(cell.strip().lower().endswith(EXTENSIONS) for cell in row)
        ]
        if lines and len(pairs) == len(lines) and folder.whole.has(pairs[0][0].strip()):
            return separator
    return False


# --- published datasets -----------------------------------------------------------------------------------------------


def _read_published(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of folders of datasets whose classes a source knows."""
    names = {*folder.folders}
    if {"leftImg8bit", "gtFine"} <= names:
        splits = {split: split for split in ("train", "val") if _has_maps(folder, f"gtFine/{split}", "_labelids.png")}
        yield from _published(folder, "cityscapes", "Cityscapes", splits)
    if {"images", "annotations"} <= names and folder.has("objectInfo150.txt"):
        places = {"train": "training", "val": "validation"}
        splits = {split: split for split, name in places.items() if _has_maps(folder, f"annotations/{name}", ".png")}
        yield from _published(folder, "ade20k", "ADE20K", splits)
    if "stuffthingmaps" in names:
        places = {"train": "train2017", "val": "val2017"}
        splits = {split: name for split, name in places.items() if _has_maps(folder, f"stuffthingmaps/{name}", ".png")}
        yield from _published(folder, "coco_stuff", "COCO-Stuff", splits)
    if {"JPEGImages", "SegmentationClass"} <= names:
        yield from _voc_maps(folder)


def _has_maps(folder: Folder, place: str, suffix: str) -> bool:
    return folder.has(place) and folder.sub(place).holds((suffix,))


def _published(folder: Folder, source: str, title: str, splits: Mapping[str, str]) -> Iterator[Layout]:
    """Yield the reading by a source that knows the classes, with its names of splits."""
    sections = {split: {"name": source, "root": folder.text, "split": name} for split, name in splits.items()}
    if sections:
        check_training(folder, sections, "expected the folders of its training split")
        yield Layout(source, "segmentation", f"images and maps in the folders of {title}", sections)


def _voc_maps(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of maps in the folders of Pascal VOC, whose classes a file may replace."""
    names = folder.sub("ImageSets/Segmentation").named(".txt") if folder.has("ImageSets/Segmentation") else []
    lists = {split_of(name[:-4]) or name[:-4]: name[:-4] for name in names}
    if "train" not in lists and (other := [name for name in ("trainval", "default") if name in lists]):
        lists["train"] = other[0]
    lists = {split: name for split, name in lists.items() if split in SPLITS}
    check_training(folder, lists, "expected ImageSets/Segmentation/train.txt")
    given = find_class_names(folder, [])
    if lists and given is None:
        yield from _published(folder, "voc_segmentation", "Pascal VOC", lists)
        return
    labels = "SegmentationClassPNG" if "SegmentationClassPNG" in folder.folders else "SegmentationClass"
    place = _match(folder, "", "JPEGImages", labels)
    if place is None:
        return
    options, notes = class_options(folder.at(place.labels), read_values(place.maps(folder)), given)
    section = place.section(folder) | options
    sections = {split: section | {"list_file": f"ImageSets/Segmentation/{name}.txt"} for split, name in lists.items()}
    yield Layout(
        "maps",
        "segmentation",
        f"segmentation maps of {plural(len(options['classes']), 'class', 'es')} in the folders of Pascal VOC",
        sections or {"train": section},
        notes=notes,
        classes=options["classes"],
    )
