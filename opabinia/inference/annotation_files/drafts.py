"""Annotations of images before a tool's format: labels of whole images, boxes and polygons, some marked as suspects."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.contracts import IGNORE_LABEL, GroundTruth, Sample, label_names
from opabinia.contracts.masks import decode_rle
from opabinia.contracts.rotated_boxes import box_corners
from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.sources.oriented_boxes import min_area_boxes
from opabinia.evaluation.label_errors.segmentation import REGION
from opabinia.evaluation.label_errors.suspects import Suspect
from opabinia.visualization.outlines import mask_outlines

IMAGES = "images"
"""The folder of the images, next to or around the files of a tool."""

BACKGROUND = "background"
"""A class of segmentation maps that is not drawn: it is where nothing else is."""


class Box(NamedTuple):
    """An upright bounding box, in pixels of the original image."""

    left: float
    top: float
    right: float
    bottom: float


class RotatedBox(NamedTuple):
    """An oriented box, see :mod:`opabinia.contracts.rotated_boxes`: its center, its sides, and the angle in degrees by
    which the width is turned counterclockwise."""

    x: float
    y: float
    width: float
    height: float
    angle: float


class Outline(NamedTuple):
    """The outlines of the parts of an object (x, y, x, y ...)."""

    polygons: Sequence[Sequence[float]]

    @property
    def bounds(self) -> Box:
        """The box around all parts."""
        points = np.concatenate([np.reshape(polygon, (-1, 2)) for polygon in self.polygons])
        return Box(*points.min(0).tolist(), *points.max(0).tolist())


@dataclass(frozen=True)
class Annotation:
    """A class of an image or of an object in it.

    Attributes:
        label: name of the class.
        shape: place of the object; None: the class is that of the whole image.
        note: remark for the annotator.
        suspect: it may be wrong.
    """

    label: str
    shape: Box | RotatedBox | Outline | None = None
    note: str = ""
    suspect: bool = False


@dataclass(frozen=True)
class Draft:
    """An image with annotations to be corrected.

    Attributes:
        name: path of the image file below the folder of images.
        size: height and width in pixels.
        annotations: those of the image; later ones lie on top of others.
        score: suspicion or uncertainty from 0 to 1, for sorting.
        note: remark for the annotator.
    """

    name: str
    size: tuple[int, int]
    annotations: Sequence[Annotation]
    score: float = 0.0
    note: str = ""

    @property
    def labels(self) -> list[str]:
        """The classes of the whole image."""
        return [annotation.label for annotation in self.annotations if annotation.shape is None]

    @property
    def remarks(self) -> str:
        """The notes on the whole image."""
        notes = [self.note, *(annotation.note for annotation in self.annotations if annotation.shape is None)]
        return "; ".join(dict.fromkeys(note for note in notes if note))


@dataclass(frozen=True)
class DraftSet:
    """Drafts of images with the same kind of annotations.

    Attributes:
        classes: names of all classes.
        drafts: the images.
        of_images: classes are those of whole images; otherwise of objects or regions.
        multi_label: an image may have several classes, or none.
    """

    classes: Sequence[str]
    drafts: Sequence[Draft]
    of_images: bool = False
    multi_label: bool = False


def image_name(sample_id: str) -> str:
    """Return the path below a folder for the image of a sample: its id, with ``.png`` if that is no image file."""
    name = re.sub(r"[\x00-\x1f\x7f]", "_", os.path.normpath(f"/{sample_id}").lstrip("/")) or "image"
    name = name.encode("utf-8", "backslashreplace").decode()
    return name if name.lower().endswith(tuple(EXTENSIONS)) else f"{name}.png"


# --- from ground truth and suspects -----------------------------------------------------------------------------------


def from_ground_truth(sample: Sample, classes: Sequence[str]) -> list[Annotation]:
    """Return the annotations of a sample as its source gives it: its objects, its segmentation map, or its classes."""
    if "ground_truth" in sample:
        return _from_objects(sample["ground_truth"], classes)
    if "mask" in sample:
        return from_map(sample["mask"].numpy(), classes)
    return [Annotation(name) for name in label_names(sample, classes) if name in classes]


def _from_objects(ground_truth: GroundTruth, classes: Sequence[str]) -> list[Annotation]:
    shapes: list[Box | RotatedBox | Outline] = [
        Box(left, top, left + width, top + height) for left, top, width, height in ground_truth.boxes.tolist()
    ]
    if ground_truth.corners is not None:
        shapes = [RotatedBox(*box) for box in min_area_boxes(ground_truth.corners).tolist()]
    elif ground_truth.segments is not None:
        outlines = [mask_outlines(decode_rle(segment, ground_truth.size)) for segment in ground_truth.segments]
        shapes = [Outline(parts) if parts else box for parts, box in zip(outlines, shapes, strict=True)]
    return [
        Annotation(classes[label], shape, "crowd" if crowd else "")
        for label, shape, crowd in zip(ground_truth.labels.tolist(), shapes, ground_truth.crowd.tolist(), strict=True)
    ]


def from_map(labels: NDArray[np.uint8], classes: Sequence[str]) -> list[Annotation]:
    """Return a polygon for each connected region of a segmentation map (H x W); see :func:`from_masks`. Pixels without
    a label are in none."""
    present = [label for label in np.unique(labels).tolist() if label != IGNORE_LABEL]
    return from_masks((classes[label], (labels == label).astype(np.uint8)) for label in present)


def from_masks(masks: Iterable[tuple[str, NDArray[np.uint8]]]) -> list[Annotation]:
    """Return a polygon for each connected part of the mask (H x W) of each class, the largest first: what lies in a
    hole of a region comes after it. The background has none; a region around some of it is cut into parts, as polygons
    have no holes."""
    listed = [(name, mask.astype(bool)) for name, mask in masks if name != BACKGROUND]
    covered = np.logical_or.reduce([mask for _, mask in listed]) if listed else np.zeros((0, 0), dtype=bool)
    parts = [(name, outline) for name, mask in listed for outline in _solid_outlines(mask, covered)]
    parts.sort(key=lambda part: -_area(part[1]))
    return [Annotation(name, Outline([outline])) for name, outline in parts]


def _solid_outlines(mask: NDArray[np.bool_], covered: NDArray[np.bool_]) -> list[list[float]]:
    """Return outlines of a mask that surround no pixel outside ``covered``: regions with one are cut at its top."""
    from scipy import ndimage

    if not (ndimage.binary_fill_holes(mask) & ~covered).any():
        return mask_outlines(mask.astype(np.uint8))
    outlines: list[list[float]] = []
    numbers, count = ndimage.label(mask)
    for number in range(1, count + 1):
        region = numbers == number
        holes = ndimage.binary_fill_holes(region) & ~covered
        pieces = [region]
        if holes.any():
            row = int(np.flatnonzero(holes.any(1))[0])
            pieces = [region.copy(), region.copy()]
            pieces[0][row:], pieces[1][:row] = False, False
        outlines += [outline for piece in pieces for outline in _solid_outlines(piece, covered)]
    return outlines


def _area(polygon: Sequence[float]) -> float:
    x, y = np.reshape(polygon, (-1, 2)).T
    return 0.5 * abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1)))


def mark_suspects(annotations: Sequence[Annotation], suspects: Iterable[Suspect]) -> list[Annotation]:
    """Return annotations in which those of suspects are marked; objects that are not annotated are added.

    Args:
        annotations: those of an image, see :func:`from_ground_truth`.
        suspects: those of the image.
    """
    marked = list(annotations)
    for suspect in suspects:
        note = f"{suspect.issue}, suspicion {suspect.score:.2f}: {suspect.reason}"
        rows = [index for index, annotation in enumerate(marked) if _is_meant(annotation, suspect)]
        for index in rows:
            notes = [text for text in (marked[index].note, note) if text]
            marked[index] = replace(marked[index], suspect=True, note="; ".join(notes))
        if not rows and suspect.predicted_box is not None:
            marked.append(Annotation(suspect.predicted, Box(*suspect.predicted_box), note, suspect=True))
    return marked


_SAME_PLACE = 0.01
"""Pixels by which the box of a suspect may differ from that of its annotation, by rounding."""


def _is_meant(annotation: Annotation, suspect: Suspect) -> bool:
    if suspect.box is None or annotation.shape is None:
        return suspect.place is None and annotation.shape is None
    if annotation.label != suspect.label:
        return False
    box, place = _bounds(annotation.shape), suspect.box
    if suspect.issue == REGION:
        return box.left < place[2] and place[0] < box.right and box.top < place[3] and place[1] < box.bottom
    margin = 1.0 if isinstance(annotation.shape, Outline) else _SAME_PLACE  # boxes of masks need not be tight
    return bool(np.abs(np.subtract(box, place)).max() <= margin)


def _bounds(shape: Box | RotatedBox | Outline) -> Box:
    match shape:
        case Box():
            return shape
        case Outline():
            return shape.bounds
        case RotatedBox():
            return Outline([corners_of(shape)]).bounds


def corners_of(box: RotatedBox) -> list[float]:
    """Return the corners of an oriented box (x, y, x, y ...), that at the origin of width and height first."""
    corners: list[float] = box_corners(torch.tensor(box, dtype=torch.float64)).flatten().tolist()
    return corners


# --- from predictions -------------------------------------------------------------------------------------------------


def from_prediction(readable: Mapping[str, Any], *, multi_label: bool, min_score: float) -> list[Annotation]:
    """Return draft annotations: those that a model predicts, without boxes that have no area.

    Args:
        readable: a prediction as :meth:`opabinia.contracts.Presenter.readable` gives it.
        multi_label: an image has all classes of at least ``min_score``; otherwise the most probable one.
        min_score: lowest score of a detection.
    """
    if "detections" in readable:
        rows = [row for row in readable["detections"] if row["score"] >= min_score and _has_area(row["box"])]
        return [Annotation(row["class"], _shape_of(row), f"score {row['score']:.2f}") for row in rows]
    if "top" in readable:
        top = (
            [row for row in readable["top"] if row["probability"] >= min_score] if multi_label else readable["top"][:1]
        )
        return [Annotation(row["class"], None, f"probability {row['probability']:.2f}") for row in top]
    regions = readable.get("segments") or readable.get("classes") or ()
    return from_masks((row["class"], decode_rle(row["mask"], row["mask"]["size"])) for row in regions)


def _has_area(box: Sequence[float]) -> bool:
    return min(box[2:4]) > 0 if len(box) == 5 else box[2] > box[0] and box[3] > box[1]


def _shape_of(detection: Mapping[str, Any]) -> Box | RotatedBox | Outline:
    if detection.get("polygons"):
        return Outline(detection["polygons"])
    return RotatedBox(*detection["box"]) if len(detection["box"]) == 5 else Box(*detection["box"])
