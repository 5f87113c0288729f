"""Test-time augmentation of detection: several scales and mirrored images, whose detections are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchvision.transforms.v2.functional import resize

from opabinia.contracts import Detections, Detector, Sizes
from opabinia.contracts.rotated_boxes import mirror_boxes, scale_boxes
from opabinia.models.detectors.suppression import box_nms
from opabinia.runtime.device import move_tensor
from opabinia.tasks.dense_base import TestTimeAugmentation, mirror
from opabinia.tasks.detection.tiles import concat_detections, select_detections

Pyramid = Callable[[Tensor, Sizes], list[Tensor]]
"""Maps a padded batch (B x C x H x W) and the sizes of its images to the feature maps that the detector reads."""


class View(NamedTuple):
    """One view of a padded batch.

    Attributes:
        maps: feature maps of the view.
        shape: height and width of the padded view.
        sizes: of the images in it.
        factors: width and height relative to the batch.
        flipped: whether the images are mirrored.
    """

    maps: list[Tensor]
    shape: tuple[int, int]
    sizes: Sizes
    factors: tuple[float, float]
    flipped: bool


def detect_augmented(
    detector: Detector,
    pyramid: Pyramid,
    images: Tensor,
    sizes: Sizes,
    augmentation: TestTimeAugmentation,
    multiple: int,
) -> list[Detections]:
    """Return detections in each image of a padded batch, in pixels of the batch; views are padded to ``multiple``.

    Boxes of all views go through one suppression. Masks are the mean over views, keypoints those of the first view that
    is not mirrored; those that the detector predicts together with boxes are those of the detection that is kept.
    """
    views = list(_views(pyramid, images, sizes, augmentation, multiple))
    by_view = [_detect(detector, view) for view in views]
    merged = [_merge_boxes(rows, augmentation.iou, detector.max_detections) for rows in zip(*by_view, strict=True)]
    if all(rows.masks is not None or rows.keypoints is not None for rows in merged):
        return merged
    described = [_describe(detector, view, merged) for view in views]
    return [_merge_descriptions(rows) for rows in zip(*described, strict=True)]


def _views(
    pyramid: Pyramid, images: Tensor, sizes: Sizes, augmentation: TestTimeAugmentation, multiple: int
) -> Iterator[View]:
    height, width = images.shape[-2:]
    for scale in augmentation.scales:
        new = [max(1, round(height * scale)), max(1, round(width * scale))]
        factors = new[1] / width, new[0] / height
        inner = [(max(1, round(h * factors[1])), max(1, round(w * factors[0]))) for h, w in sizes]
        view = resize(images, new, antialias=True) if scale != 1 else images
        view = pad(view, [0, -new[1] % multiple, 0, -new[0] % multiple])
        shape = (view.shape[-2], view.shape[-1])
        yield View(pyramid(view, inner), shape, inner, factors, False)
        if augmentation.flip:
            yield View(pyramid(mirror(view, inner), inner), shape, inner, factors, True)


def _detect(detector: Detector, view: View) -> list[Detections]:
    """Return detections in a view, in pixels of the batch."""
    detections = detector.detect(view.maps, view.shape, view.sizes)
    boxes = [_flip_boxes(rows.boxes, view, size) for rows, size in zip(detections, view.sizes, strict=True)]
    masks = [rows.masks.flip(-1) if rows.masks is not None and view.flipped else rows.masks for rows in detections]
    return [
        _scale_keypoints(rows, view)._replace(boxes=scale_boxes(flipped, 1 / _factors(rows, view)), masks=mask)
        for rows, flipped, mask in zip(detections, boxes, masks, strict=True)
    ]


def _scale_keypoints(detections: Detections, view: View) -> Detections:
    """Return detections with keypoints in pixels of the batch."""
    points = detections.keypoints
    if points is None:
        return detections
    positions = points[..., :2] / _factors(detections, view)
    return detections._replace(keypoints=torch.cat([positions, points[..., 2:]], -1))


def _factors(detections: Detections, view: View) -> Tensor:
    """Return the width and height of a view relative to the batch (2)."""
    boxes = detections.boxes
    return move_tensor(torch.tensor(view.factors, dtype=boxes.dtype), boxes.device)


def _flip_boxes(boxes: Tensor, view: View, size: tuple[int, int]) -> Tensor:
    """Convert boxes between a mirrored view and the image; other views leave them as they are."""
    return mirror_boxes(boxes, size[1]) if view.flipped else boxes


def _merge_boxes(detections: Sequence[Detections], iou: float, count: int) -> Detections:
    merged = concat_detections(detections)
    return select_detections(merged, box_nms(*merged[:3], iou)[:count])


def _describe(detector: Detector, view: View, merged: Sequence[Detections]) -> list[Detections]:
    """Add the masks and keypoints that a view gives to detections in pixels of the batch."""
    in_view = [
        detections._replace(boxes=_flip_boxes(scale_boxes(detections.boxes, _factors(detections, view)), view, size))
        for detections, size in zip(merged, view.sizes, strict=True)
    ]
    described = detector.describe(view.maps, view.shape, view.sizes, in_view)
    rows = []
    for detections, description in zip(merged, described, strict=True):
        masks, points = description.masks, _scale_keypoints(description, view).keypoints
        if masks is not None and view.flipped:
            masks = masks.flip(-1)
        if view.flipped:
            points = None  # mirroring swaps left and right keypoints
        rows.append(detections._replace(masks=masks, keypoints=points))
    return rows


def _merge_descriptions(views: Sequence[Detections]) -> Detections:
    masks = [view.masks for view in views if view.masks is not None]
    points = [view.keypoints for view in views if view.keypoints is not None]
    return views[0]._replace(
        masks=torch.stack(masks).mean(0) if masks else None, keypoints=points[0] if points else None
    )
