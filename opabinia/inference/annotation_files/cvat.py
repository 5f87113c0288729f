"""Drafts for CVAT: "CVAT for images 1.1", an XML file that a task with the same images imports."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain
from xml.etree import ElementTree as ET

import numpy as np

from opabinia.contracts.masks import decode_rle
from opabinia.inference.annotation_files.drafts import Annotation, Box, Draft, DraftSet, Outline, RotatedBox

ATTRIBUTES = {"suspect": ("checkbox", "false"), "note": ("text", "")}
"""Attributes of every label: their input type and default value."""


def cvat_files(drafts: DraftSet) -> dict[str, str]:
    """Return the text of ``annotations.xml``, and of ``labels.json``, which is pasted as "Raw" labels of a new task.

    Every label has the attributes ``suspect`` and ``note``. An object of several parts is a mask.
    """
    top = ET.Element("annotations")
    _add(top, "version", "1.1")
    labels = _add(_add(_add(top, "meta"), "task"), "labels")
    for name in drafts.classes:
        label = _add(labels, "label")
        _add(label, "name", name)
        attributes = _add(label, "attributes")
        for attribute, (kind, default) in ATTRIBUTES.items():
            element = _add(attributes, "attribute")
            for key, value in (("name", attribute), ("mutable", "False"), ("input_type", kind)):
                _add(element, key, value)
            _add(element, "default_value", default)
            _add(element, "values", default)
    for number, draft in enumerate(drafts.drafts):
        height, width = draft.size
        image = _add(top, "image", id=str(number), name=draft.name, width=str(width), height=str(height))
        for order, annotation in enumerate(draft.annotations):
            _add_annotation(image, annotation, order, draft)
    ET.indent(top)
    return {
        "annotations.xml": ET.tostring(top, encoding="unicode", xml_declaration=True) + "\n",
        "labels.json": json.dumps([_constructor_label(name) for name in drafts.classes], indent=1) + "\n",
    }


def _add(parent: ET.Element, tag: str, text: str = "", **attributes: str) -> ET.Element:
    element = ET.SubElement(parent, tag, {key: _valid(value) for key, value in attributes.items()})
    if text:
        element.text = _valid(text)
    return element


def _valid(text: str) -> str:
    """Return text without the characters that XML does not allow."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def _constructor_label(name: str) -> dict[str, object]:
    attributes = [
        {"name": attribute, "mutable": False, "input_type": kind, "default_value": default, "values": [default]}
        for attribute, (kind, default) in ATTRIBUTES.items()
    ]
    return {"name": name, "attributes": attributes}


def _add_annotation(image: ET.Element, annotation: Annotation, order: int, draft: Draft) -> None:
    given = {"label": annotation.label, "source": "auto"}
    layer = {"occluded": "0", "z_order": str(order)}
    match annotation.shape:
        case None:
            element = _add(image, "tag", **given)
        case Box():
            element = _add(image, "box", **given, **layer, **_sides(*annotation.shape))
        case RotatedBox(x, y, width, height, angle):
            sides = _sides(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            element = _add(image, "box", **given, **layer, **sides, rotation=_number(-angle % 360))
        case Outline([polygon]):
            points = ";".join(f"{_number(x)},{_number(y)}" for x, y in np.reshape(polygon, (-1, 2)).tolist())
            element = _add(image, "polygon", **given, **layer, points=points)
        case Outline(polygons):
            element = _add(image, "mask", **given, **layer, **_mask(polygons, draft.size))
    _add(element, "attribute", str(annotation.suspect).lower(), name="suspect")
    _add(element, "attribute", annotation.note, name="note")


def _sides(left: float, top: float, right: float, bottom: float) -> dict[str, str]:
    return dict(zip(("xtl", "ytl", "xbr", "ybr"), map(_number, (left, top, right, bottom)), strict=True))


def _mask(polygons: Sequence[Sequence[float]], size: tuple[int, int]) -> dict[str, str]:
    """Return the box of a mask, and its pixels as the lengths of runs outside and inside in turn, row by row."""
    mask = decode_rle([list(polygon) for polygon in polygons], size).astype(bool)
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    top, left = (int(indices[0]) if len(indices) else 0 for indices in (rows, columns))
    bottom, right = (int(indices[-1]) + 1 if len(indices) else 1 for indices in (rows, columns))
    pixels = mask[top:bottom, left:right].ravel()
    changes = np.flatnonzero(np.diff(pixels)) + 1
    ends = np.array([*chain([0], [0] if pixels[0] else [], changes.tolist()), pixels.size])
    runs = ", ".join(map(str, np.diff(ends).tolist()))
    sides = {"left": left, "top": top, "width": right - left, "height": bottom - top}
    return {"rle": runs, **{name: str(side) for name, side in sides.items()}}


def _number(value: float) -> str:
    return f"{value:.2f}"
