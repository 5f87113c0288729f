"""Geometry of rotated boxes (oriented object detection).

A rotated box is torchvision's ``CXCYWHR``: center x, center y, width, height, and the angle in degrees by which the
width is turned counterclockwise from the x-axis of the image; detectron2's ``XYWHA_ABS`` is the same. Functions for
both kinds of boxes distinguish them by their columns: 4 (left, top, right, bottom) or 5.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_TINY = 1e-12
MAX_PAIRS = 2**18
"""Pairs whose intersections are computed at once: bounds the memory."""


def box_axes(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit vectors along width and height of boxes with some angles in degrees (...; ... x 2 each)."""
    cos, sin = torch.deg2rad(angles).cos(), torch.deg2rad(angles).sin()
    return torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)


def box_corners(boxes: Tensor) -> Tensor:
    """Return the corners of rotated boxes (... x 5; ... x 4 x 2), in torchvision's order: that at the origin of width
    and height first, then along the width.

    Example: [0, 0, 4, 2, 90] has the corners [-1, 2], [-1, -2], [1, -2] and [1, 2].
    """
    along_width, along_height = box_axes(boxes[..., 4])
    center, width, height = boxes[..., :2], 0.5 * boxes[..., 2:3] * along_width, 0.5 * boxes[..., 3:4] * along_height
    start, end = center - width, center + width
    return torch.stack([start - height, end - height, end + height, start + height], -2)


def to_box_frame(points: Tensor, boxes: Tensor) -> Tensor:
    """Return the positions of points (... x 2) relative to the centers of rotated boxes (... x 5), along their width
    and height (... x 2)."""
    shifts = points - boxes[..., :2]
    return torch.stack([(shifts * axis).sum(-1) for axis in box_axes(boxes[..., 4])], -1)


def enclosing_boxes(corners: Tensor) -> Tensor:
    """Return the upright boxes around polygons (... x K x 2; ... x 4: left, top, right, bottom)."""
    return torch.cat([corners.amin(-2), corners.amax(-2)], -1)


def upright_boxes(boxes: Tensor) -> Tensor:
    """Return the upright boxes around rotated boxes (N x 5; N x 4); upright ones (N x 4) as they are."""
    return boxes if boxes.shape[-1] == 4 else enclosing_boxes(box_corners(boxes))


def box_areas(boxes: Tensor) -> Tensor:
    """Return the areas of boxes (N x 4 or N x 5; N)."""
    return (boxes[:, 2:] - boxes[:, :2] if boxes.shape[1] == 4 else boxes[:, 2:4]).prod(1)


def long_edge_boxes(boxes: Tensor) -> Tensor:
    """Return the same rotated boxes (... x 5) with width >= height and angles in [-90, 90) (MMRotate's ``le90``)."""
    swapped = boxes[..., 3] > boxes[..., 2]
    angles = torch.where(swapped, boxes[..., 4] + 90, boxes[..., 4])
    sizes = torch.where(swapped[..., None], boxes[..., 2:4].flip(-1), boxes[..., 2:4])
    return torch.cat([boxes[..., :2], sizes, ((angles + 90) % 180 - 90)[..., None]], -1)


def scale_boxes(boxes: Tensor, factors: Tensor) -> Tensor:
    """Return boxes (N x 4 or N x 5) of an image whose width and height are multiplied by two factors (2).

    Unequal factors make a rotated box a parallelogram; the box with its longer side and its area is returned.
    """
    if boxes.shape[-1] == 4:
        return boxes * factors.repeat(2)
    boxes = long_edge_boxes(boxes)
    side = box_axes(boxes[:, 4])[0] * factors
    scale = side.norm(dim=1)
    sizes = boxes[:, 2:4] * torch.stack([scale, factors.prod() / scale], 1)
    angles = torch.rad2deg(torch.atan2(-side[:, 1], side[:, 0]))
    return torch.cat([boxes[:, :2] * factors, sizes, angles[:, None]], 1)


def move_boxes(boxes: Tensor, shift: Tensor) -> Tensor:
    """Return boxes (N x 4 or N x 5) moved to the right and down (2)."""
    return boxes + (shift.repeat(2) if boxes.shape[-1] == 4 else F.pad(shift, (0, 3)))


def mirror_boxes(boxes: Tensor, width: float) -> Tensor:
    """Return boxes (N x 4 or N x 5) of an image that is mirrored horizontally."""
    if boxes.shape[-1] == 4:
        left, top, right, bottom = boxes.unbind(1)
        return torch.stack([width - right, top, width - left, bottom], 1)
    x, y, *sides, angle = boxes.unbind(1)
    return torch.stack([width - x, y, *sides, -angle], 1)


def intersection_areas(polygons: Tensor, boxes: Tensor) -> Tensor:
    """Return the areas in which simple polygons, also concave ones (... x K x 2), and rotated boxes (... x 5) intersect
    (...). Leading dimensions are broadcast; differentiable.

    In the frame of a box the area is the integral, around the polygon, of the height clipped to the box over the part
    of each edge within its width. That is exact, continuous and needs no vertices of the intersection.
    """
    x, y = to_box_frame(polygons, boxes.unsqueeze(-2)).unbind(-1)
    half_width, half_height = (boxes[..., 2:4] / 2).unsqueeze(-2).unbind(-1)
    run, rise = x.roll(-1, -1) - x, y.roll(-1, -1) - y
    start = torch.minimum(torch.maximum(x, -half_width), half_width)
    end = torch.minimum(torch.maximum(x.roll(-1, -1), -half_width), half_width)
    slope = rise / run.masked_fill(run.abs() < _TINY, 1)
    first, last = y + (start - x) * slope, y + (end - x) * slope
    above = _mean_above(first + half_height, last + half_height)
    return ((end - start) * (above - _mean_above(first - half_height, last - half_height))).sum(-1).abs()


def _mean_above(first: Tensor, last: Tensor) -> Tensor:
    """Return the mean of a linear function with these end values, where negative values count as 0."""
    low, high = torch.minimum(first, last), torch.maximum(first, last)
    above = torch.where(low < 0, high, 0).clamp(min=0)
    return torch.where(low < 0, above.square() / (2 * (high - low).clamp(min=_TINY)), (first + last) / 2)


def polygon_areas(polygons: Tensor) -> Tensor:
    """Return the areas of polygons (... x K x 2; ...), which do not intersect themselves."""
    x, y = (polygons - polygons[..., :1, :]).unbind(-1)
    return (x * y.roll(-1, -1) - x.roll(-1, -1) * y).sum(-1).abs() / 2


def aligned_iou(polygons: Tensor, boxes: Tensor) -> Tensor:
    """Return the intersection over union of simple polygons (... x K x 2), each with its rotated box (... x 5)."""
    intersections = intersection_areas(polygons, boxes)
    unions = polygon_areas(polygons) + boxes[..., 2] * boxes[..., 3] - intersections
    return intersections / unions.clamp(min=_TINY)


def rotated_intersections(boxes: Tensor, polygons: Tensor) -> Tensor:
    """Return the areas in which rotated boxes (N x 5) and simple polygons (M x K x 2) intersect (float64, N x M).

    Pairs whose upright boxes do not overlap are 0 without further computation, as in DOTA's development kit.
    """
    boxes, polygons = boxes.double(), polygons.double()
    areas = boxes.new_zeros(len(boxes), len(polygons))
    near = overlapping(upright_boxes(boxes), enclosing_boxes(polygons))
    for rows, columns in (pairs.unbind(1) for pairs in torch.split(near.nonzero(), MAX_PAIRS)):
        areas[rows, columns] = intersection_areas(polygons[columns], boxes[rows])
    return areas


def pairwise_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the IoU of boxes with others, upright or rotated ones (N x 4 and M x 4, or 5; N x M); that of flat ones is
    0."""
    if boxes.shape[1] == 4:
        starts, ends = (
            torch.maximum(boxes[:, None, :2], others[:, :2]),
            torch.minimum(boxes[:, None, 2:], others[:, 2:]),
        )
        shared = (ends - starts).clamp(min=0).prod(2)
    else:
        shared = rotated_intersections(boxes, box_corners(others)).to(boxes)
    unions = box_areas(boxes)[:, None] + box_areas(others) - shared
    return shared / unions.clamp(min=_TINY)


def overlapping(boxes: Tensor, others: Tensor) -> Tensor:
    """Return which upright boxes (N x 4, M x 4) overlap (bool, N x M)."""
    left, top, right, bottom = others.unbind(1)
    overlapping = (boxes[:, None, 0] < right) & (boxes[:, None, 2] > left)
    return overlapping & (boxes[:, None, 1] < bottom) & (boxes[:, None, 3] > top)
