"""Annotations in COCO's JSON format: boxes, masks, keypoints and panoptic segments."""

from __future__ import annotations

import json
import mmap
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from opabinia.data.layouts.folder import Folder, UnreadableLayout, listed, split_of
from opabinia.data.layouts.layout import Layout, TaskName
from opabinia.data.layouts.pairing import above, split_of_path
from opabinia.data.layouts.readings import check_training, convert, with_alternatives, with_masks
from opabinia.data.sources.list_files import listed_path

_PARSED = 1 << 25
"""Files of at most so many bytes are parsed, to report broken ones; in larger ones words are searched."""


_NAMED = re.compile(r"instances|annotations|coco|panoptic|keypoints")
"""Names of files of annotations."""

_FILES = 200
"""Files that are looked at, at most."""


@dataclass(frozen=True)
class _File:
    """A JSON file.

    Attributes:
        name: its path below the folder.
        split: as its name or folder says; None if they do not.
        group: its name without the split: ``instances``.
        images: the folder that its image names are relative to.
        names: first names of images.
        maps: the folder of the maps of panoptic segments.
        words: those that occur in it, of :data:`_WORDS`.
    """

    name: str
    split: str | None
    group: str
    images: str
    names: Sequence[str]
    maps: str | None
    words: frozenset[str]


_WORDS = ("images", "annotations", "categories", "bbox", "segmentation", "keypoints", "segments_info", "file_name")


def read_coco(folder: Folder) -> Iterator[Layout]:
    """Yield a reading for each group of JSON files in COCO's format, such as ``instances`` and ``panoptic``.

    Raises:
        UnreadableLayout: a file that is named like annotations is no JSON, or its images are not found.
    """
    groups: dict[str, list[_File]] = defaultdict(list)
    for name in _candidates(folder):
        file = _read_file(folder, name)
        if file is not None:
            groups[file.group].append(file)
    boxes = {group: files for group, files in groups.items() if all("bbox" in file.words for file in files)}
    boxes = {group: files for group, files in boxes.items() if not _is_panoptic(files)}
    keypoints = [group for group in boxes if _has(boxes[group], "keypoints")]
    main = [group for group in boxes if group not in keypoints] or keypoints
    for group in main:
        name = "coco" if len(main) == 1 else f"coco_{group}" if group else "coco"
        of_keypoints = group if group in keypoints else keypoints[0] if len(keypoints) == 1 and len(main) == 1 else None
        yield from _boxes(folder, name, boxes[group], boxes[of_keypoints] if of_keypoints is not None else [])
    for group, files in groups.items():
        if _is_panoptic(files):
            yield from _panoptic(folder, f"coco_{group}" if len(groups) - len(boxes) > 1 else "coco_panoptic", files)


def _candidates(folder: Folder) -> list[str]:
    """Return the paths of JSON files, some of each folder."""
    if folder.only is not None:
        return folder.named(".json")
    places = folder.places((".json",))
    names = [f"{place}/{name}".lstrip("/") for place in places for name in folder.sub(place).named(".json")[:50]]
    names = [name for name in names if not re.search(r"\.(panoptic|metadata)\.json$", name)]
    return sorted(names, key=lambda name: _NAMED.search(name.lower()) is None)[:_FILES]


def _read_file(folder: Folder, name: str) -> _File | None:
    """Return what is known about a JSON file; None if it is not in COCO's format, or has images only."""
    place, _, base = name.rpartition("/")
    start = folder.head(name, 4096)
    if re.match(r"\s*\[", start) or '"shapes"' in start or '"imagePath"' in start:
        return None
    words, names = _search(folder, name)
    if not {"images", "categories"} <= words:
        return None
    if "annotations" not in words:
        return None
    stem = re.sub(r"^_annotations\.coco$|^annotations?$|^_?annotations?[._-]|[._-]?annotations?$", "", base[:-5])
    tokens = [(token, split_of(token)) for token in re.split(r"[^A-Za-z0-9]+", stem)]
    split = next((split for _, split in tokens if split), None) or split_of_path(place)
    group = "_".join(token for token, split in tokens if split is None and token)
    images, maps = _image_folder(folder, name, split, names), None
    if "segments_info" in words:
        maps = _map_folder(folder, name, base[:-5])
    return _File(name, split, group, images, names, maps, frozenset(words))


def _search(folder: Folder, name: str) -> tuple[set[str], list[str]]:
    """Return the words that occur in a file, and the first names of images.

    Raises:
        UnreadableLayout: it is named like annotations and is no JSON.
    """
    path, start = folder.path / name, folder.head(name, 4096)
    wanted = any(f'"{word}"' in start for word in ("images", "annotations", "categories"))
    named = _NAMED.search(name.lower()) is not None
    if not path.stat().st_size:
        if named:
            raise UnreadableLayout(f"{folder.at(name)} is empty; expected JSON with images, annotations and categories")
        return set(), []
    if path.stat().st_size > _PARSED:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            words = {word for word in _WORDS if content.find(f'"{word}"'.encode()) >= 0}
            matches = islice(re.finditer(rb'"file_name"\s*:\s*"([^"]*)"', content), 20)
            return words, [match[1].decode("utf-8", "replace") for match in matches]
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        if named or wanted:
            raise UnreadableLayout(f"{folder.at(name)} is not JSON: {error}") from error
        return set(), []
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        return set(), []
    annotations = content.get("annotations")
    rows = [row for row in annotations if isinstance(row, dict)] if isinstance(annotations, list) else []
    words = {word for word in content if word in _WORDS} | {key for row in rows[:1000] for key in row if key in _WORDS}
    if not rows or not all(row.get("segmentation") for row in rows):
        words -= {"segmentation"}  # masks need one for each object
    if not any(isinstance(row, dict) and row.get("keypoints") for row in content.get("categories") or ()):
        words -= {"keypoints"}
    images = [row for row in content["images"][:20] if isinstance(row, dict)]
    urls = ("/".join(str(row.get("coco_url")).split("/")[-2:]) for row in images)
    names = (str(row.get("file_name") or url) for row, url in zip(images, urls, strict=True))
    return words, [listed_path(name, "") for name in names]


def _image_folder(folder: Folder, name: str, split: str | None, names: Sequence[str]) -> str:
    """Return the folder that image names are relative to.

    Raises:
        UnreadableLayout: none of them is found.
    """
    whole, place = folder.whole, above(name)
    own = [sub for sub in whole.folders if split is not None and split_of(sub) == split]
    near = [place, f"{place}/images"] if place else []
    near += [inner for inner in whole.places() if split is not None and split_of_path(inner) == split]
    outside = [f"../{sub}" for sub in ("", "images", *_siblings(folder))] if folder.only else []
    root = whole.root_of(names, [*own, *near, "", "images", *outside])
    if root is not None:
        return root
    if not names:
        raise UnreadableLayout(f"{folder.at(name)} lists no images")
    raise UnreadableLayout(f"{folder.at(name)}: its images, such as {names[0]}, are not found in {folder.text}")


def _siblings(folder: Folder) -> list[str]:
    """Return the folders beside the folder of a single file."""
    parent = folder.path.resolve().parent
    return [entry.name for entry in sorted(parent.iterdir()) if entry.is_dir()][:50]


def _map_folder(folder: Folder, name: str, stem: str) -> str | None:
    """Return the folder of the maps of panoptic segments."""
    place = name.rpartition("/")[0]
    candidates = [f"{place}/{stem}".lstrip("/"), stem, *(sub for sub in folder.whole.folders if "panoptic" in sub)]
    return next((candidate for candidate in candidates if folder.has(candidate)), None)


def _has(files: Sequence[_File], word: str) -> bool:
    return all(word in file.words for file in files)


def _is_panoptic(files: Sequence[_File]) -> bool:
    return _has(files, "segments_info")


# --- readings ---------------------------------------------------------------------------------------------------------


def _boxes(folder: Folder, name: str, files: Sequence[_File], of_keypoints: Sequence[_File]) -> Iterator[Layout]:
    """Yield the reading of boxes, and of masks and keypoints if there are any."""
    if all(re.search(r"^(train|valid|test)/_annotations\.coco\.json$", file.name) for file in files):
        by_split = {"train": "train", "valid": "val", "test": "test"}
        roboflow = {by_split[file.name.partition("/")[0]]: file for file in files}
        sections = {
            split: {"name": "roboflow", "root": folder.text, "split": file.name.partition("/")[0]}
            for split, file in roboflow.items()
        }
        name = "roboflow"
        check_training(folder, sections, "expected train/_annotations.coco.json")
    else:
        sections = _sections(folder, files, lambda file: {"name": "coco", "root": _at(folder, file.images)})
    layout = _layout(folder, name, "detection", "boxes", files, sections)
    others = with_masks(layout) if _has(files, "segmentation") else []
    if of_keypoints:
        of_points = _sections(
            folder, of_keypoints, lambda file: {"name": "coco", "root": _at(folder, file.images), "keypoints": True}
        )
        others.append(_layout(folder, name, "keypoints", "keypoints", of_keypoints, of_points))
    yield from with_alternatives(layout, others)


def _panoptic(folder: Folder, name: str, files: Sequence[_File]) -> Iterator[Layout]:
    for file in files:
        if file.maps is None:
            raise UnreadableLayout(
                f"{folder.at(file.name)}: there is no folder with its PNG files, such as panoptic_train"
            )

    def section(file: _File) -> dict[str, Any]:
        return {"name": "coco_panoptic", "root": _at(folder, file.images), "maps": _at(folder, file.maps or "")}

    layout = _layout(folder, name, "panoptic", "panoptic segments", files, _sections(folder, files, section))
    yield from with_alternatives(layout, [convert(layout, "segmentation", dict)])


def _at(folder: Folder, name: str) -> str:
    return folder.at(name.rstrip("/")) if not name.startswith("..") else folder.at(name).rstrip("/")


def _sections(
    folder: Folder, files: Sequence[_File], section: Callable[[_File], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the sections of splits.

    Raises:
        UnreadableLayout: two files are for one split, or there is none to train on.
    """
    found: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    for file in files:
        split = file.split or ("train" if len(files) == 1 else _split_of_images(file))
        if not split:
            raise UnreadableLayout(
                f"{folder.at(file.name)}: its name does not say which split it is; expected names such as "
                f"instances_train.json and instances_val.json, or one file: opabinia train {folder.at(file.name)}"
            )
        if split in found:
            raise UnreadableLayout(f"{folder.at(names[split])} and {folder.at(file.name)} are both for {split}")
        names[split] = file.name
        found[split] = {**section(file), "file": folder.at(file.name)}
    if "train" not in found and len(files) == 1 and folder.only is not None:
        return {"train": next(iter(found.values()))}
    if "train" not in found:
        place = listed([folder.at(file.name) for file in files])
        raise UnreadableLayout(f"{place}: there are no annotations to train on, such as instances_train.json")
    return found


def _split_of_images(file: _File) -> str | None:
    """Return the split that the folders of all first images stand for."""
    splits = {split_of_path(above(name)) for name in file.names}
    return splits.pop() if len(splits) == 1 else None


def _layout(
    folder: Folder, name: str, task: TaskName, noun: str, files: Sequence[_File], sections: dict[str, dict[str, Any]]
) -> Layout:
    used = {part.partition("/")[0] for file in files for part in (file.name, file.images, file.maps or "")}
    used |= {name.partition("/")[0] for file in files for name in file.names if not file.images}
    description = f"{noun} in {listed([file.name for file in files])}"
    return Layout(name, task, description, sections, notes=folder.others(used))
