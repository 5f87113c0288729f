"""Drafts for LabelMe: a JSON file next to each image."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import numpy as np

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


def labelme_files(drafts: DraftSet) -> dict[str, str]:
    """Return the text of a JSON file next to each image.

    A shape has its note as ``description`` and the flag ``suspect``; classes of the whole image are flags of the file.
    Oriented boxes are polygons, and the parts of an object share a ``group_id``.
    """
    return {
        str(PurePosixPath(IMAGES, draft.name).with_suffix(".json")): json.dumps(_content(draft, drafts), indent=1)
        + "\n"
        for draft in drafts.drafts
    }


def _content(draft: Draft, drafts: DraftSet) -> dict[str, Any]:
    height, width = draft.size
    flags = {name: name in draft.labels for name in drafts.classes} if drafts.of_images else {}
    numbered = enumerate(annotation for annotation in draft.annotations if annotation.shape is not None)
    return {
        "version": "5.5.0",
        "flags": flags,
        "shapes": [shape for number, annotation in numbered for shape in _shapes(annotation, number)],
        "imagePath": PurePosixPath(draft.name).name,
        "imageData": None,
        "imageHeight": height,
        "imageWidth": width,
        "description": draft.remarks,
    }


def _shapes(annotation: Annotation, number: int) -> list[dict[str, Any]]:
    """Return the shapes of an object, one for each part."""
    shape = annotation.shape
    kind, group = "polygon", None
    match shape:
        case Box(left, top, right, bottom):
            kind, parts = "rectangle", [[left, top, right, bottom]]
        case RotatedBox():
            parts = [corners_of(shape)]
        case Outline(polygons):
            parts, group = [list(polygon) for polygon in polygons], number if len(polygons) > 1 else None
        case None:
            parts = []
    return [
        {
            "label": annotation.label,
            "points": np.reshape(part, (-1, 2)).round(2).tolist(),
            "group_id": group,
            "description": annotation.note,
            "shape_type": kind,
            "flags": {"suspect": annotation.suspect},
            "mask": None,
        }
        for part in parts
    ]
