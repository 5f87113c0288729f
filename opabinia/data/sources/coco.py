"""Things in COCO's JSON: COCO itself, LVIS, and the many sets that are written in that form."""

from __future__ import annotations

import gc
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as Ranged
from typing import Any, Literal

import numpy as np
from annotated_types import Ge

from opabinia.config import register
from opabinia.contracts.masks import compressed
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_arrays import Outlines, Things
from opabinia.data.sources.annotation_errors import Broken, Faults
from opabinia.data.sources.detection_base import Annotated, Empty, Listing, annotated, chosen_classes
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.list_files import refuse_bad
from opabinia.runtime.log import log


@register.source
def coco(
    *,
    root: Path,
    file: Path,
    masks: bool = False,
    keypoints: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    min_keypoints: Ranged[int, Ge(0)] = 0,
    broken: Broken = "error",
    channels: Literal[1, 3] = 3,
) -> Annotated:
    """Pictures and things in the form of COCO, or of LVIS.

    Category ids become labels from 0 in the order of the ids. Crowds are not trained on. Pictures without
    ``file_name`` (LVIS) are found by the end of their ``coco_url``: ``train2017/000000391895.jpg``. Keypoints of a
    file are numbers of pixels, those of a sample places in the picture: half a pixel is added, as in detectron2. A
    sample's id is its path below the root.

    Args:
        root: the folder that the names of pictures count from.
        file: the JSON file, with ``images``, ``annotations`` and ``categories``.
        masks: read outlines (polygons, or run lengths), too; every thing must have one.
        keypoints: read keypoints, too; their names stand with the categories.
        classes: names of the categories to take, in the order of their labels; all of them when not given.
        empty: ``drop`` leaves out pictures without things to learn, as detectron2 does in training.
        min_keypoints: leave out pictures with fewer visible keypoints; detectron2 takes 1 in training.
        broken: what is done about broken things (boxes without area, NaN, more than a pixel outside of their picture,
            ...): ``error`` tells them and goes no further; ``clip`` cuts to the picture and leaves out what has no area
            left; ``drop`` leaves them out, and also annotations of unknown categories and pictures, and pictures that
            are missing. What is left out is not evaluated, either. COCO's own training set has two boxes without area.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: the file is no such JSON, or something is broken and ``broken`` does not allow that.
    """
    file = file.expanduser()
    told = Faults()
    with _no_collection():
        listing = _listing(_read(file), file, root, told, _Wanted(masks, keypoints, classes))
    return annotated(listing, told, broken=broken, empty=empty, min_keypoints=min_keypoints, channels=channels)


@register.source
def roboflow(
    *,
    root: Path,
    split: Literal["train", "valid", "test"] = "train",
    masks: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Literal[1, 3] = 3,
) -> Annotated:
    """A data set as Roboflow exports it in COCO's form: ``train|valid|test/_annotations.coco.json``.

    Its first category is often a false one that bears the name of the data set. A category that all others have for
    their ``supercategory``, and that no annotation of any split is of, is left out, and the log says so.

    Args:
        root: the folder with the splits.
        split: what to read.
        masks: read outlines (polygons, or run lengths), too; every thing must have one.
        classes: names of the categories to take, in the order of their labels; all of them when not given.
        empty: ``drop`` leaves out pictures without things to learn.
        broken: what is done about broken things: ``error`` tells them and goes no further; ``clip`` cuts boxes to the
            picture and leaves out what has no area left; ``drop`` leaves them out.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: there is no such file, it is no such JSON, or something is broken and ``broken`` does not allow
            that.
    """
    root = existing_folder(root.expanduser(), "root is the folder that holds train, valid and test")
    file = root / split / _ROBOFLOW
    content = _read(file)
    false = _false_root(content["categories"])
    others = [root / one / _ROBOFLOW for one in ("train", "valid", "test") if one != split]
    if false is not None and not any(_has_things_of(one, false) for one in (file, *others) if one.is_file()):
        names = [one["name"] for one in content["categories"] if one["id"] == false]
        log.info("%s: category %s, %r, is that of all others and has no things: left out", file, false, names[0])
        content["categories"] = [one for one in content["categories"] if one["id"] != false]
    told = Faults()
    listing = _listing(content, file, file.parent, told, _Wanted(masks, False, classes))
    return annotated(listing, told, broken=broken, empty=empty, channels=channels)


_ROBOFLOW = "_annotations.coco.json"


def _false_root(categories: Sequence[Mapping[str, Any]]) -> Any:
    """The id of the category that all others have for their supercategory."""
    for one in categories:
        others = {other.get("supercategory") for other in categories if other is not one}
        if others == {one["name"]} and one.get("supercategory") in (None, "", "none", one["name"]):
            return one["id"]
    return None


def _has_things_of(file: Path, category: Any) -> bool:
    return any(one.get("category_id") == category for one in _read(file)["annotations"])


# --- the file ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wanted:
    masks: bool
    keypoints: bool
    classes: Sequence[str] | None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of small objects are made and none of them lies in a circle: looking for such takes half the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read(file: Path) -> dict[str, Any]:
    """The three lists of a COCO file, of objects with an id."""
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    try:
        content = json.loads(file.read_bytes())
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, line {error.lineno}, column {error.colno}"
        raise ValueError(f"{file} is no whole JSON: {reason}; was it cut short?") from error
    # Numbers of thousands of digits are refused by Python, and nothing is nested without end.
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds a {type(content).__name__}; expected an object with {', '.join(_LISTS)}")
    for name, keys in _LISTS.items():
        if name not in content:
            found = ", ".join(map(str, content)) or "nothing"
            raise ValueError(f"{file} has no {name!r}; expected {', '.join(_LISTS)}, found {found}")
        rows = content[name]
        if not isinstance(rows, list):
            raise ValueError(f"{file}: {name!r} is a {type(rows).__name__}; expected a list")
        bad = [
            f"number {number}: {str(row)[:60]}"
            for number, row in enumerate(rows)
            if not isinstance(row, dict) or any(key not in row for key in keys)
        ]
        refuse_bad(f"{file}, {name}", bad, len(rows), f"objects with {', '.join(keys)}")
    return content


_LISTS = {
    "images": ("id", "width", "height"),
    "annotations": ("id", "image_id", "category_id", "bbox"),
    "categories": ("id", "name"),
}


def _listing(content: Mapping[str, Any], file: Path, root: Path, told: Faults, wanted: _Wanted) -> Listing:
    root = existing_folder(root.expanduser(), "root is the folder that holds the pictures")
    categories = sorted(content["categories"], key=lambda one: _whole(file, "category", one["id"]))
    if twice := [number for number, times in Counter(one["id"] for one in categories).items() if times > 1]:
        raise ValueError(f"{file} has two categories with the id {twice[0]}")
    places = chosen_classes(file, [str(one["name"]) for one in categories], wanted.classes)
    chosen = [categories[place] for place in places]
    names = _keypoint_names(file, chosen) if wanted.keypoints else []
    pictures, image_of = _pictures(file, content["images"], told)
    labels: dict[Any, int] = {one["id"]: -1 for one in categories}
    labels |= {one["id"]: label for label, one in enumerate(chosen)}
    outlines = Outlines() if wanted.masks else None
    reader = _Reader(file, pictures, image_of, labels, outlines, len(names), told)
    things = reader.things(content["annotations"])
    lvis = all("frequency" in one for one in chosen)
    return Listing(
        file=file,
        root=root,
        names=[os.fsencode(_name(file, one)) for one in pictures],
        sizes=np.array([(one["height"], one["width"]) for one in pictures], dtype=np.int64).reshape(-1, 2),
        numbers=np.array([one["id"] for one in pictures], dtype=np.int64),
        things=things,
        classes=[str(one["name"]) for one in chosen],
        category_ids=[one["id"] for one in chosen],
        frequencies=[one["frequency"] for one in chosen] if lvis else (),
        keypoints=names,
        outlines=outlines,
        absent=_classes_of(pictures, "neg_category_ids", labels),
        not_exhaustive=_classes_of(pictures, "not_exhaustive_category_ids", labels),
    )


def _whole(file: Path, what: str, value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{file}: a {what} has the id {value!r}; expected a whole number")
    return value


def _name(file: Path, picture: Mapping[str, Any]) -> str:
    name = picture.get("file_name") or "/".join(str(picture.get("coco_url", "")).split("/")[-2:])
    if not name or not isinstance(name, str):
        raise ValueError(f"{file}: picture {picture['id']} has neither file_name nor coco_url")
    return name


def _pictures(
    file: Path, pictures: Sequence[dict[str, Any]], told: Faults
) -> tuple[list[dict[str, Any]], dict[Any, int]]:
    """Those with an id and a name of their own, and the place of each id; -1 of those that are left out."""
    bad = [
        f"picture {one['id']}: {one['width']!r} x {one['height']!r}"
        for one in pictures
        if any(type(one[side]) is not int or one[side] < 1 for side in ("width", "height"))
    ]
    refuse_bad(file, bad, len(pictures), "sizes in whole pixels")
    found: list[dict[str, Any]] = []
    image_of: dict[Any, int] = {}
    number_of: dict[str, int] = {}
    for one in pictures:
        number, name = _whole(file, "picture", one["id"]), _name(file, one)
        if name in number_of:
            told.add(kinds.TWICE, name, "", f"as picture {number_of[name]} and {number}")
            image_of.setdefault(number, -1)
            continue
        if number in image_of:
            told.add(kinds.TWICE, name, "", f"another picture has its id, {number}")
            continue
        image_of[number] = len(found)
        number_of[name] = number
        found.append(one)
    return found, image_of


def _classes_of(pictures: Sequence[Mapping[str, Any]], key: str, labels: Mapping[Any, int]) -> list[list[int]] | None:
    """Labels of the categories that LVIS names with each picture."""
    if not any(key in one for one in pictures):
        return None
    known = ([labels.get(number, -1) for number in one.get(key, ())] for one in pictures)
    return [[label for label in of_picture if label >= 0] for of_picture in known]


def _keypoint_names(file: Path, categories: Sequence[Mapping[str, Any]]) -> list[str]:
    found = {tuple(map(str, one["keypoints"])) for one in categories if one.get("keypoints")}
    if len(found) != 1:
        what = "categories with different keypoints" if found else "no category with keypoints"
        raise ValueError(f"{file} has {what}; expected the names of one kind, such as [nose, left_eye, right_eye]")
    return list(found.pop())


@dataclass(frozen=True)
class _Reader:
    """Annotations to things; those that cannot be ones are told and passed over."""

    file: Path
    pictures: Sequence[Mapping[str, Any]]
    image_of: Mapping[Any, int]
    labels: Mapping[Any, int]
    outlines: Outlines | None
    points: int
    told: Faults

    def things(self, annotations: Sequence[Mapping[str, Any]]) -> Things:
        """What there is, in the order of the file; of an id that is used twice the first."""
        numbers: set[int] = set()
        rows: list[tuple[int, int, list[float], int, float, bool]] = []
        outlines: list[int] = []
        keypoints: list[list[float]] = []
        for one in annotations:
            label = self._known(self.labels, one, "category_id", kinds.UNKNOWN_CLASS)
            picture = self._known(self.image_of, one, "image_id", kinds.UNKNOWN_PICTURE)
            if picture < 0 or label < 0:
                continue
            number = _whole(self.file, "annotation", one["id"])
            if number in numbers:
                self._tell(kinds.NUMBER_TWICE, one, "used before")
                continue
            numbers.add(number)
            box = _floats(one["bbox"], 4)
            if box is None:
                self._tell(kinds.BAD_BOX, one, f"bbox {one['bbox']!r:.60}")
                continue
            outline = 0 if self.outlines is None else self._outline(one, picture, self.outlines)
            if outline < 0:
                continue
            if self.points:
                points = self._points(one)
                if points is None:
                    continue
                keypoints.append(points)
            area = _floats([one.get("area")], 1) or [box[2] * box[3]]
            rows.append((picture, number, box, label, area[0], bool(one.get("iscrowd"))))
            outlines.append(outline)
        pictures, ids, boxes, classes, areas, crowd = zip(*rows, strict=True) if rows else ((),) * 6
        crowds = np.array(crowd, dtype=bool)
        return Things(
            pictures=np.array(pictures, dtype=np.int64),
            ids=np.array(ids, dtype=np.int64),
            boxes=np.array(boxes, dtype=np.float64).reshape(-1, 4),
            labels=np.array(classes, dtype=np.int64),
            areas=np.array(areas, dtype=np.float64),
            crowd=crowds,
            learnt=~crowds,
            outlines=np.array(outlines, dtype=np.int64) if self.outlines is not None else None,
            keypoints=np.array(keypoints, dtype=np.float64).reshape(-1, self.points, 3) if self.points else None,
        )

    def _known(self, places: Mapping[Any, int], one: Mapping[str, Any], key: str, kind: str) -> int:
        """The place of what an annotation refers to; -1, and told, where there is none."""
        value = one[key]
        if isinstance(value, int | float | str) and value in places:
            return places[value]
        self._tell(kind, one, f"{key} {value!r}")
        return -1

    def _tell(self, kind: str, one: Mapping[str, Any], value: str) -> None:
        number = one["image_id"]
        place = self.image_of.get(number, -1) if isinstance(number, int | float | str) else -1
        name = f"picture {number}" if place < 0 else _name(self.file, self.pictures[place])
        self.told.add(kind, name, f"annotation {one['id']}", value)

    def _outline(self, one: Mapping[str, Any], picture: int, outlines: Outlines) -> int:
        """The row of its outline; -1, and told, where there is none. Of several polygons the sound ones are taken."""
        size = (self.pictures[picture]["height"], self.pictures[picture]["width"])
        segment = one.get("segmentation")
        if not segment:
            self._tell(kinds.NO_OUTLINE, one, f"segmentation {segment!r}")
            return -1
        if isinstance(segment, dict):
            runs = _compressed(segment, size)
            if runs is None:
                self._tell(kinds.BAD_OUTLINE, one, f"size {segment.get('size')}, counts {segment.get('counts')!r:.40}")
                return -1
            return outlines.add(runs=runs)
        polygons = [_floats(polygon) for polygon in segment] if isinstance(segment, list) else []
        sound = [one for one in polygons if one is not None and len(one) >= 6 and len(one) % 2 == 0]
        if len(sound) < len(polygons) or not sound:
            self._tell(kinds.BAD_OUTLINE, one, f"segmentation {segment!r:.60}")
        return outlines.add(sound) if sound else -1

    def _points(self, one: Mapping[str, Any]) -> list[float] | None:
        """Its keypoints; zeros where it has none, None, and told, where they are too few or too many."""
        given = one.get("keypoints")
        if given is None:
            return [0.0] * (3 * self.points)
        found = _floats(given, 3 * self.points)
        if found is None:
            said = f"{len(given)} values" if isinstance(given, list) else repr(given)
            self._tell(kinds.BAD_KEYPOINTS, one, f"{said}, expected {3 * self.points}")
        return found


def _floats(values: Any, count: int | None = None) -> list[float] | None:
    """A list of (so many) finite numbers, or None."""
    if not isinstance(values, list) or (count is not None and len(values) != count):
        return None
    try:
        return values if math.isfinite(sum(values)) else None
    except (TypeError, OverflowError):
        return None


def _compressed(segment: Mapping[str, Any], size: tuple[int, int]) -> bytes | None:
    """The run lengths of a thing as COCO compresses them, or None where they are none of this size."""
    counts = segment.get("counts")
    if segment.get("size") != list(size) or not isinstance(counts, list | str):
        return None
    try:
        return compressed(segment, size).encode("ascii")
    except ValueError:
        return None
