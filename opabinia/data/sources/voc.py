"""Things in the XML files of Pascal VOC."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import numpy as np

from opabinia.config import register
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_arrays import Things
from opabinia.data.sources.annotation_errors import Broken, Faults
from opabinia.data.sources.detection_base import Annotated, Empty, Listing, annotated, chosen_classes
from opabinia.data.sources.file_names import sorted_names
from opabinia.data.sources.folder import existing_folder, is_picture
from opabinia.data.sources.image_headers import sizes_of
from opabinia.data.sources.list_files import fields_of
from opabinia.runtime.log import log

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""Of Pascal VOC 2007 to 2012."""


@register.source
def voc(
    *,
    root: Path,
    split: str | None = "train",
    classes: list[str] | None = None,
    difficult: Literal["ignore", "learn"] = "ignore",
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Literal[1, 3] = 3,
) -> Annotated:
    """Pictures and things in the form of Pascal VOC: ``JPEGImages``, ``Annotations``, ``ImageSets/Main``; or XML files
    beside their pictures in one folder.

    Pixels are counted from 1 there, and ``xmax`` and ``ymax`` are in the box: a box from 1 to 10 is 10 pixels wide and
    begins at 0 here (detectron2's rule). A sample's id is its path below the root.

    Args:
        root: the folder with these, such as ``VOCdevkit/VOC2007``.
        split: the list in ``ImageSets/Main``; null takes every XML file there is.
        classes: names in the order of their labels; things of others are left out. When not given the 20 of VOC, or,
            where an XML file of any split names others, all that are named, sorted.
        difficult: ``ignore`` does not train on difficult objects; ``learn`` does, as detectron2. Evaluations pass over
            them, whatever stands here.
        empty: ``drop`` leaves out pictures without things to learn.
        broken: what is done about broken things: ``error`` tells them and goes no further; ``clip`` cuts boxes to the
            picture and leaves out what has no area left; ``drop`` leaves them out, and also pictures that are missing
            or whose XML cannot be read.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: a folder or list is missing, or something is broken and ``broken`` does not allow that.
    """
    root = existing_folder(root.expanduser(), "root is the folder that holds Annotations and JPEGImages")
    labels = root / "Annotations" if (root / "Annotations").is_dir() else root
    stems = sorted(file.stem for file in labels.glob("*.xml"))
    if not stems:
        raise ValueError(f"{labels} holds no XML file")
    list_file = None if split is None else root / "ImageSets" / "Main" / f"{split}.txt"
    chosen = stems if list_file is None else [fields[0] for _, fields in fields_of(list_file, "name")]
    told = Faults()
    read = _read(labels, chosen, told)
    if classes is None:
        classes = _names(read, labels, [stem for stem in stems if stem not in read])
    listing = _listing(list_file or labels, root, read, classes, difficult == "learn", told)
    return annotated(listing, told, broken=broken, empty=empty, channels=channels)


class _Object(NamedTuple):
    name: str
    box: tuple[float, float, float, float]
    difficult: bool


class _Page(NamedTuple):
    """What an XML file says: height and width (0 where it does not tell), and the things."""

    size: tuple[int, int]
    objects: Sequence[_Object]


def _read(folder: Path, stems: Sequence[str], told: Faults) -> dict[str, _Page]:
    """The XML files; those that cannot be read are told."""
    pages: dict[str, _Page] = {}
    for stem in stems:
        if stem in pages:
            told.add(kinds.TWICE, stem, "", "in the list")
            continue
        try:
            pages[stem] = _page((folder / f"{stem}.xml").read_bytes())
        except (OSError, ValueError) as error:
            told.add(kinds.BAD_LABELS, f"{stem}.xml", "", getattr(error, "strerror", None) or error)
    return pages


def _names(read: dict[str, _Page], folder: Path, others: Sequence[str]) -> list[str]:
    """Those of VOC if there are no others, in any split: all splits are to have the same."""
    pages = [*read.values(), *_read(folder, others, Faults()).values()]
    found = {one.name for page in pages for one in page.objects}
    return list(CLASSES) if found <= set(CLASSES) else sorted_names(found)


def _listing(
    file: Path, root: Path, pages: dict[str, _Page], classes: Sequence[str], learn: bool, told: Faults
) -> Listing:
    places = chosen_classes(file, list(classes), None)
    label_of = {classes[place]: place for place in places}
    names = _pictures(root, list(pages))
    sizes = np.array([page.size for page in pages.values()], dtype=np.int64).reshape(-1, 2)
    untold = np.flatnonzero((sizes == 0).any(1))
    sizes[untold] = sizes_of(root, [names[number] for number in untold], told)
    rows = [
        (picture, number, one)
        for picture, page in enumerate(pages.values())
        for number, one in enumerate(page.objects, 1)
        if one.name in label_of
    ]
    boxes = np.array([one.box for _, _, one in rows], dtype=np.float64).reshape(-1, 4)
    crowd = np.array([one.difficult for _, _, one in rows], dtype=bool)
    things = Things(
        pictures=np.array([picture for picture, _, _ in rows], dtype=np.int64),
        ids=np.array([number for _, number, _ in rows], dtype=np.int64),
        boxes=boxes,
        labels=np.array([label_of[one.name] for _, _, one in rows], dtype=np.int64),
        areas=boxes[:, 2] * boxes[:, 3],
        crowd=crowd,
        learnt=~crowd | learn,
    )
    return Listing(
        file=file,
        root=root,
        names=names,
        sizes=sizes,
        things=things,
        classes=classes,
        category_ids=range(1, len(classes) + 1),
        word="object",
    )


def _pictures(root: Path, stems: Sequence[str]) -> list[bytes]:
    """Paths below the root of the pictures with these names, whatever their endings."""
    folder = root / "JPEGImages" if (root / "JPEGImages").is_dir() else root
    above = b"JPEGImages/" if folder != root else b""
    held = {os.path.splitext(name)[0]: name for name in sorted(os.listdir(os.fsencode(folder))) if is_picture(name)}
    if above == b"" and (more := len(held.keys() - set(map(os.fsencode, stems)))):
        log.warning("%s: %d pictures have no XML file beside them and are left out", root, more)
    return [above + held.get(os.fsencode(stem), os.fsencode(f"{stem}.jpg")) for stem in stems]


# --- XML --------------------------------------------------------------------------------------------------------------


def _page(content: bytes) -> _Page:
    """What an XML file says.

    Raises:
        ValueError: it is no such XML.
    """
    top = parsed(content)
    sides = [_whole(top.findtext(f"size/{side}")) for side in ("height", "width")]
    return _Page((sides[0], sides[1]), [_object(one) for one in top.findall("object")])


def _whole(text: str | None) -> int:
    return int(text) if text and text.strip().isdigit() else 0


def _object(one: Element) -> _Object:
    name = (one.findtext("name") or "").strip()
    try:
        left, top, right, bottom = (float(one.findtext(f"bndbox/{side}") or "") for side in _SIDES)
    except ValueError:
        raise ValueError(f"object {name!r} has no box of four numbers ({', '.join(_SIDES)})") from None
    if not name or not math.isfinite(left + top + right + bottom):
        raise ValueError(f"an object has the name {name!r} and the box {left}, {top}, {right}, {bottom}")
    return _Object(name, (left - 1, top - 1, right - left + 1, bottom - top + 1), one.findtext("difficult") == "1")


_SIDES = ("xmin", "ymin", "xmax", "ymax")


def parsed(content: bytes) -> Element:
    """The root of an XML document. Entities and other declarations, which could read files or fill the memory, are
    refused.

    Raises:
        ValueError: it is no XML, or declares something.
    """
    builder = TreeBuilder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = _refuse_declaration
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, LookupError) as error:  # an encoding that nobody knows
        raise ValueError(f"no whole XML: {error}") from error
    return builder.close()


def _refuse_declaration(*what: object) -> None:
    raise ValueError("it declares a document type, which labels have no need of")
