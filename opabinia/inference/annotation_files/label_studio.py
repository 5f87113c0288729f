"""Drafts for Label Studio: tasks with predictions, which annotators correct, and the labeling interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from opabinia.data.sources.label_studio import SUSPECT
from opabinia.inference.annotation_files.drafts import (
    IMAGES,
    Annotation,
    Box,
    Draft,
    DraftSet,
    Outline,
    RotatedBox,
    corners_of,
)

CONTROLS = {Box: "RectangleLabels", RotatedBox: "RectangleLabels", Outline: "PolygonLabels"}
"""The control tag of each kind of shape; its lower-case name is the type of a result."""


def label_studio_files(drafts: DraftSet) -> dict[str, str]:
    """Return the text of ``tasks.json``, which is imported, and of ``config.xml``, the labeling interface.

    Images are ``images/NAME`` of a local storage whose document root is the folder of these files. Classes and shapes
    are predictions, with coordinates in percent of the image's sides; a suspect has its reason as text, and
    ``suspect`` as another label.
    """
    return {
        "tasks.json": json.dumps([_task(draft) for draft in drafts.drafts], indent=1) + "\n",
        "config.xml": _config(drafts),
    }


def _config(drafts: DraftSet) -> str:
    view = ET.Element("View")
    ET.SubElement(view, "Header", value="$note")
    ET.SubElement(view, "Image", name="image", value="$image", zoom="true")
    if drafts.of_images:
        choice = "multiple" if drafts.multi_label else "single"
        choices = ET.SubElement(view, "Choices", name="class", toName="image", choice=choice, showInline="true")
        for name in drafts.classes:
            ET.SubElement(choices, "Choice", value=name)
    shapes = [annotation.shape for draft in drafts.drafts for annotation in draft.annotations if annotation.shape]
    used = dict.fromkeys(CONTROLS[type(shape)] for shape in shapes)
    for control in used or ([] if drafts.of_images else ["RectangleLabels"]):
        labels = ET.SubElement(view, control, name=control.lower(), toName="image", choice="multiple")
        for name in drafts.classes:
            ET.SubElement(labels, "Label", value=name)
        ET.SubElement(labels, "Label", value=SUSPECT, background="red")
    ET.indent(view)
    return ET.tostring(view, encoding="unicode") + "\n"


def _task(draft: Draft) -> dict[str, Any]:
    results = [result for index, item in enumerate(draft.annotations) for result in _regions(item, index, draft.size)]
    if draft.labels:
        choices = {"value": {"choices": draft.labels}, "from_name": "class", "to_name": "image", "type": "choices"}
        results.append({"id": "class", **choices})
    image = f"/data/local-files/?d={quote(f'{IMAGES}/{draft.name}')}"
    data = {"image": image, "name": draft.name, "score": round(draft.score, 4), "note": draft.remarks}
    return {"data": data, "predictions": [{"model_version": "opabinia", "score": data["score"], "result": results}]}


def _regions(annotation: Annotation, index: int, size: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yield the regions of an object, one for each part."""
    if annotation.shape is None:
        return
    height, width = size
    control = CONTROLS[type(annotation.shape)].lower()
    labels = [annotation.label, *([SUSPECT] if annotation.suspect else [])]
    remark = {"meta": {"text": [annotation.note]}} if annotation.note else {}
    for part, place in enumerate(_places(annotation.shape, np.array([100 / width, 100 / height]))):
        yield {
            "id": f"region{index}-{part}",
            "from_name": control,
            "to_name": "image",
            "type": control,
            "original_width": width,
            "original_height": height,
            "image_rotation": 0,
            "value": {**place, control: labels},
            **remark,
        }


def _places(shape: Box | RotatedBox | Outline, percent: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Return the places of the parts of a shape; a rectangle turns clockwise about its first corner."""
    if isinstance(shape, Outline):
        parts = [(np.reshape(polygon, (-1, 2)) * percent).tolist() for polygon in shape.polygons]
        return [{"points": points, "closed": True} for points in parts]
    if isinstance(shape, Box):
        corner, sides, rotation = np.array(shape[:2]), np.array(shape[2:]) - shape[:2], 0.0
    else:
        corner, sides, rotation = np.array(corners_of(shape)[:2]), np.array(shape[2:4]), -shape.angle % 360
    (x, y), (width, height) = (corner * percent).tolist(), (sides * percent).tolist()
    return [{"x": x, "y": y, "width": width, "height": height, "rotation": rotation}]
