"""Detection from several views of an image: other sizes, mirror images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, NamedTuple

import torch
from annotated_types import MinLen
from torch import Tensor
from torch.nn.functional import pad
from torchvision.ops import batched_nms
from torchvision.transforms.v2.functional import resize

from opabinia.config import register
from opabinia.contracts import Detections, Detector, Fraction, Positive, Sizes

Maps = Callable[[Tensor, Sizes], list[Tensor]]
"""From a padded batch (B x C x H x W) and the sizes of the images in it to the backbone's feature maps."""


@register.section(name="views")
@dataclass(frozen=True, kw_only=True)
class Views:
    """Views of each image that are looked at, whose detections are put together (detectron2's GeneralizedRCNNWithTTA).

    Args:
        scales: sides of the views, relative to the image as the transforms give it. detectron2's shorter sides of 400,
            500 ... 1200 are 0.5, 0.625 ... 1.5 of 800.
        flip: look at the mirror image of each view, too.
        iou: of boxes of one class that overlap by more than this the best one stays.
    """

    scales: Annotated[list[Positive], MinLen(1)]
    flip: bool = True
    iou: Fraction = 0.5


class View(NamedTuple):
    """One view of a padded batch.

    Attributes:
        maps: of the backbone.
        shape: height and width of the padded view.
        sizes: of the images in it.
        factors: by how much it is wider and higher than the batch.
        flipped: whether the images are mirrored.
    """

    maps: list[Tensor]
    shape: tuple[int, int]
    sizes: Sizes
    factors: tuple[float, float]
    flipped: bool


def seen_often(
    detector: Detector, maps: Maps, images: Tensor, sizes: Sizes, views: Views, multiple: int
) -> list[Detections]:
    """Detections in each image of a padded batch, in the batch's pixels; views are padded to this multiple, too.

    Boxes of all views compete for their place; masks are the mean over views, keypoints those of the first view that
    is not mirrored.
    """
    seen = list(chain.from_iterable(_views(maps, images, sizes, scale, views.flip, multiple) for scale in views.scales))
    each = [_detected(detector, view) for view in seen]
    joined = [_joined(some, views.iou, detector.most) for some in zip(*each, strict=True)]
    described = [_described(detector, view, joined) for view in seen]
    return [_mean(some) for some in zip(*described, strict=True)]


def _views(maps: Maps, images: Tensor, sizes: Sizes, scale: float, flip: bool, multiple: int) -> Iterator[View]:
    height, width = images.shape[-2:]
    new = [max(1, round(height * scale)), max(1, round(width * scale))]
    factors = new[1] / width, new[0] / height
    inner = [(max(1, round(h * factors[1])), max(1, round(w * factors[0]))) for h, w in sizes]
    view = resize(images, new, antialias=True) if scale != 1 else images
    view = pad(view, [0, -new[1] % multiple, 0, -new[0] % multiple])
    shape = (view.shape[-2], view.shape[-1])
    yield View(maps(view, inner), shape, inner, factors, False)
    if flip:
        yield View(maps(mirrored(view, inner), inner), shape, inner, factors, True)


def mirrored(images: Tensor, sizes: Sizes) -> Tensor:
    """Each image of a padded batch (B x C x H x W) mirrored where it is: at the left."""
    found = images.clone()
    for image, (_, width) in zip(found, sizes, strict=True):
        image[..., :width] = image[..., :width].flip(-1)
    return found


def _detected(detector: Detector, view: View) -> list[Detections]:
    """What is found in a view, in the pixels of the batch."""
    found = detector.detect(view.maps, view.shape, view.sizes)
    return [
        one._replace(boxes=_turned(one.boxes, view, size) / _fourfold(one.boxes, view))
        for one, size in zip(found, view.sizes, strict=True)
    ]


def _fourfold(boxes: Tensor, view: View) -> Tensor:
    return boxes.new_tensor(view.factors).repeat(2)


def _turned(boxes: Tensor, view: View, size: tuple[int, int]) -> Tensor:
    """Boxes (N x 4) from a mirrored view as they are without a mirror, or the other way round."""
    if not view.flipped:
        return boxes
    left, top, right, bottom = boxes.unbind(1)
    return torch.stack([size[1] - right, top, size[1] - left, bottom], 1)


def _joined(found: Sequence[Detections], iou: float, most: int) -> Detections:
    boxes, scores, labels = (torch.cat(column) for column in list(zip(*found, strict=True))[:3])
    kept = batched_nms(boxes.float(), scores.float(), labels, iou)[:most]
    return Detections(boxes[kept], scores[kept], labels[kept])


def _described(detector: Detector, view: View, found: Sequence[Detections]) -> list[Detections]:
    """Masks and keypoints of what was found in the batch, as this view shows them."""
    there = [
        one._replace(boxes=_turned(one.boxes * _fourfold(one.boxes, view), view, size))
        for one, size in zip(found, view.sizes, strict=True)
    ]
    described = detector.describe(view.maps, view.shape, view.sizes, there)
    return [_back(one, new, view) for one, new in zip(found, described, strict=True)]


def _back(found: Detections, described: Detections, view: View) -> Detections:
    masks, points = described.masks, described.keypoints
    if masks is not None and view.flipped:
        masks = masks.flip(-1)
    if points is not None:
        # In a mirror a left hand is a right one, so mirrored views have no say in keypoints.
        points = (
            None
            if view.flipped
            else torch.cat([points[..., :2] / points.new_tensor(view.factors), points[..., 2:]], -1)
        )
    return found._replace(masks=masks, keypoints=points)


def _mean(found: Sequence[Detections]) -> Detections:
    masks = [one.masks for one in found if one.masks is not None]
    points = [one.keypoints for one in found if one.keypoints is not None]
    return found[0]._replace(
        masks=torch.stack(masks).mean(0) if masks else None, keypoints=points[0] if points else None
    )
