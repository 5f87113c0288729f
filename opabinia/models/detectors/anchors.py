"""Anchors, their coding of boxes, their matching with ground truth, and box losses, shared by the detectors.

Boxes are left, top, right, bottom in pixels, float32. Nothing here waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from opabinia.runtime.device import move_tensor

BoxWeights = tuple[float, float, float, float]
"""Factors of the four numbers of an encoded box: shifts to the right and down, width and height."""

IouLoss = Literal["iou", "giou", "diou", "ciou"]
BoxLoss = Literal["smooth_l1", "iou", "giou", "diou", "ciou"]

Convention = Literal["detectron2", "torchvision"]
"""The library whose anchors are used. torchvision's, for its weights, have corners on whole pixels, and their strides
are the batch's size divided by the feature map's, rounded down."""

# --- anchors ----------------------------------------------------------------------------------------------------------


def cell_anchors(sizes: Sequence[float], aspect_ratios: Sequence[float], *, rounded: bool = False) -> Tensor:
    """Return the anchors of one position, centered at (0, 0), A x 4: for each size one of each ratio, as in detectron2.

    Args:
        sizes: square roots of their areas, in pixels.
        aspect_ratios: height / width.
        rounded: round corners to whole pixels, and order by ratio first, then size: torchvision's weights were trained
            with that.

    Example: size 32 with the ratio 0.5 is [-22.6274, -11.3137, 22.6274, 11.3137]; rounded [-23, -11, 23, 11].
    """
    size = torch.tensor(sizes, dtype=torch.float64)
    root = torch.tensor(aspect_ratios, dtype=torch.float64).sqrt()
    pairs = torch.cartesian_prod(root, size).flip(1) if rounded else torch.cartesian_prod(size, root)
    width, height = (pairs[:, 0] / pairs[:, 1]).float(), (pairs[:, 0] * pairs[:, 1]).float()
    corners = torch.stack([-width, -height, width, height], dim=1) / 2
    return corners.round() if rounded else corners


def grid_anchors(cells: Tensor, shape: tuple[int, int], stride: int | tuple[int, int], offset: float = 0.0) -> Tensor:
    """Return the anchors of every position of a feature map: h * w * A x 4, row by row, the A of a position in a row.

    Args:
        cells: A x 4, centered at (0, 0).
        shape: h and w of the feature map.
        stride: pixels between positions; a pair is vertical, horizontal.
        offset: of the first position, in strides: 0 (detectron2, torchvision) or 0.5, the center of its cell.

    Example: the first one of size 32 and ratio 0.5 at stride 4 and offset 0.5 is [-20.6274, -9.3137, 24.6274, 13.3137].
    """
    strides = (stride, stride) if isinstance(stride, int) else stride
    rows, columns = (
        (torch.arange(side, device=cells.device) + offset) * step for side, step in zip(shape, strides, strict=True)
    )
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    centers = torch.stack([x, y, x, y], dim=-1)
    return (centers.view(-1, 1, 4) + cells).reshape(-1, 4)


class AnchorGrid:
    """Anchors for all levels of a feature pyramid.

    Args:
        sizes: of each level, from fine to coarse.
        aspect_ratios: height / width, the same on all levels.
        strides: of the levels.
        offset: see :func:`grid_anchors`.
        convention: see :data:`Convention`.

    Attributes:
        num_anchors: A, anchors per position.

    Raises:
        ValueError: there are not as many lists of sizes as levels, or these differ in length.
    """

    def __init__(
        self,
        sizes: Sequence[Sequence[float]],
        aspect_ratios: Sequence[float],
        strides: Sequence[int],
        *,
        offset: float = 0.0,
        convention: Convention = "detectron2",
    ) -> None:
        if len(sizes) != len(strides):
            raise ValueError(f"sizes: {len(sizes)} lists for {len(strides)} levels")
        if len({len(level_sizes) for level_sizes in sizes}) != 1:
            raise ValueError("sizes: all levels need the same number of them, because they share a head")
        self.num_anchors = len(sizes[0]) * len(aspect_ratios)
        self._sizes = [tuple(map(float, level_sizes)) for level_sizes in sizes]
        self._aspect_ratios = tuple(map(float, aspect_ratios))
        self._strides, self._offset, self._convention = tuple(strides), offset, convention

    def __call__(self, maps: Sequence[Tensor], shape: tuple[int, int] | None = None) -> list[Tensor]:
        """Return the anchors (h * w * A x 4) of each feature map, which are parts of cached grids: do not change them
        in place.

        Args:
            maps: B x C x h x w.
            shape: height and width of the batch, from which torchvision's strides are computed.
        """
        anchors = []
        # Tensors of a traced graph and fake ones have no values: no cache may keep them.
        traced = torch.compiler.is_compiling() or isinstance(maps[0], FakeTensor)
        build = _cached_anchors.__wrapped__ if traced else _cached_anchors
        for sizes, level_stride, level in zip(self._sizes, self._strides, maps, strict=True):
            height, width = level.shape[-2], level.shape[-1]
            stride, rounded = (level_stride, level_stride), self._convention == "torchvision"
            if rounded and shape is not None:
                stride = (shape[0] // height, shape[1] // width)
            # Batches of many sizes, as multi-scale training has them, share few grids.
            grid = (height, width) if traced else (_next_power_of_two(height), _next_power_of_two(width))
            cached = build(sizes, self._aspect_ratios, rounded, stride, self._offset, grid, level.device)
            anchors.append(cached[:height, :width].reshape(-1, 4))
        return anchors


def _next_power_of_two(side: int) -> int:
    return 1 << (side - 1).bit_length()


@lru_cache(maxsize=64)
def _cached_anchors(
    sizes: tuple[float, ...],
    aspect_ratios: tuple[float, ...],
    rounded: bool,
    stride: tuple[int, int],
    offset: float,
    shape: tuple[int, int],
    device: torch.device,
) -> Tensor:
    """Return the anchors of a feature map as h x w x 4A."""
    # Tensors created in inference mode could not take part in training later.
    with torch.inference_mode(False):
        cells = move_tensor(cell_anchors(sizes, aspect_ratios, rounded=rounded), device)
        return grid_anchors(cells, shape, stride, offset).view(*shape, -1)


# --- box coding -------------------------------------------------------------------------------------------------------


def encode_boxes(boxes: Tensor, anchors: Tensor, weights: BoxWeights = (1.0, 1.0, 1.0, 1.0)) -> Tensor:
    """Encode boxes relative to anchors (N x 4 each): the shift of the center in widths and heights of the anchor, and
    the logarithms of the ratios of width and height, times ``weights`` (Girshick et al. 2014, appendix C).

    Example: from [0, 0, 10, 10] to [2, 2, 12, 14] with the weights 10, 10, 5, 5 is [2, 3, 0, 0.9116].
    """
    # torchvision's BoxCoder does the same, but copies constants to the device each time, and waits for that.
    size, base = boxes[:, 2:] - boxes[:, :2], anchors[:, 2:] - anchors[:, :2]
    shift = (boxes[:, :2] + 0.5 * size - (anchors[:, :2] + 0.5 * base)) / base
    columns = torch.cat([shift, (size / base).log()], dim=1).unbind(1)
    return torch.stack([weight * column for weight, column in zip(weights, columns, strict=True)], dim=1)


_MAX_LOG_RATIO = math.log(1000 / 16)


def decode_boxes(deltas: Tensor, anchors: Tensor, weights: BoxWeights = (1.0, 1.0, 1.0, 1.0)) -> Tensor:
    """Invert :func:`encode_boxes` (N x 4, or N x 4K with K boxes of each anchor; float32). Width and height are at most
    1000 / 16 times the anchor's: the logarithms are clamped to log(1000 / 16) = 4.135 (detectron2)."""
    size = anchors[:, 2:] - anchors[:, :2]
    center = anchors[:, :2] + 0.5 * size
    shift_x, shift_y, width, height = (deltas[:, i::4].float() / weight for i, weight in enumerate(weights))
    x, y = shift_x * size[:, :1] + center[:, :1], shift_y * size[:, 1:] + center[:, 1:]
    half_width = 0.5 * width.clamp(max=_MAX_LOG_RATIO).exp() * size[:, :1]
    half_height = 0.5 * height.clamp(max=_MAX_LOG_RATIO).exp() * size[:, 1:]
    return torch.stack([x - half_width, y - half_height, x + half_width, y + half_height], dim=2).flatten(1)


# --- matching with ground truth ---------------------------------------------------------------------------------------

POSITIVE, NEGATIVE, IGNORED = 1, 0, -1


class Matches(NamedTuple):
    """The index of the ground-truth box that each of A anchors overlaps most (int64, A), and the ``labels`` of the
    anchors (int64, A): 1 for those assigned to that box, 0 for background, -1 for those that are ignored."""

    indices: Tensor
    labels: Tensor


def match_anchors(iou: Tensor, low: float, high: float, *, low_quality: bool = False) -> Matches:
    """Assign each anchor to one of N ground-truth boxes, or none (Ren et al. 2015, section 3.1.2).

    Args:
        iou: of ground-truth boxes and anchors (N x A), from 0 to 1; N may be 0.
        low: an anchor whose highest IoU is below is background.
        high: an anchor whose highest IoU is this or more is positive; those in between are ignored.
        low_quality: the anchors with the highest IoU of a box (several if equal), if above 0, are positive, too. They
            are still assigned to the box that they overlap most themselves.

    Example: [[0.1, 0.5, 0.6], [0.8, 0.2, 0.29]] with 0.3, 0.7 and ``low_quality`` gives the labels [1, -1, 1] and the
    indices [1, 0, 0].
    """
    if not len(iou):
        zeros = iou.new_zeros(iou.shape[1], dtype=torch.int64)
        return Matches(zeros, zeros)
    best, indices = iou.max(dim=0)
    labels = (best >= high).long() - ((best >= low) & (best < high)).long()
    if low_quality:
        highest = iou.amax(dim=1, keepdim=True)
        labels = labels.masked_fill(((iou == highest) & (iou > 0)).any(dim=0), POSITIVE)
    return Matches(indices, labels)


def assign_levels(
    boxes: Tensor, lowest: int = 2, highest: int = 5, canonical_size: float = 224.0, canonical_level: int = 4
) -> Tensor:
    """Return the pyramid level that each of N boxes is pooled from (int64, N; Lin et al. 2017, equation 1).

    Args:
        boxes: N x 4.
        lowest: the finest level; level k has the stride 2^k.
        highest: the coarsest level.
        canonical_size: side of the square box that is ...
        canonical_level: ... pooled from this level; a box of half the side is pooled from the level below.

    Example: squares of 111, 112, 223, 224, 447 and 448 pixels: 2, 3, 3, 4, 4, 5.
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1).sqrt()
    levels = canonical_level + (sides / canonical_size + 1e-8).log2().floor()
    return levels.clamp(lowest, highest).long()


# --- losses -----------------------------------------------------------------------------------------------------------


def box_regression_loss(
    deltas: Tensor,
    anchors: Tensor,
    boxes: Tensor,
    kind: BoxLoss = "smooth_l1",
    *,
    beta: float = 0.0,
    weights: BoxWeights = (1.0, 1.0, 1.0, 1.0),
) -> Tensor:
    """Compute the regression loss of encoded boxes (N, float32).

    Args:
        deltas: predictions, encoded as in :func:`encode_boxes` (N x 4).
        anchors: their anchors (N x 4).
        boxes: ground truth (N x 4), of positive width and height.
        kind: ``smooth_l1`` compares the encoded boxes; the others are functions of the IoU, see :func:`iou_loss`.
        beta: of ``smooth_l1``: errors below count as error^2 / (2 beta), those above as error - beta / 2. 0: L1.
        weights: of the coding.

    Example: an error of 0.05 with ``beta`` 0.1 is 0.0125, one of 1 is 0.95.
    """
    if kind == "smooth_l1":
        target = encode_boxes(boxes, anchors, weights)
        return F.smooth_l1_loss(deltas.float(), target, reduction="none", beta=beta).sum(dim=1)
    return iou_loss(decode_boxes(deltas, anchors, weights), boxes, kind)


_EPS = 1e-7
"""Added to divisors."""


def iou_loss(boxes: Tensor, targets: Tensor, kind: IouLoss) -> Tensor:
    """Compute 1 - IoU of predicted and ground-truth boxes (... x 4 each, to ...) plus a penalty, or -log IoU.

    The numbers are torchvision's, whose functions select the overlapping boxes, which waits for the device.

    Args:
        boxes: predictions.
        targets: ground truth, of positive width and height.
        kind: ``iou``, -log IoU, of at least 1e-6 (Yu et al. 2016); or the penalty: ``giou`` (Rezatofighi et al. 2019),
            the share of the smallest enclosing box that neither covers; ``diou`` (Zheng et al. 2020), the squared
            distance of the centers over the squared diagonal of that box; ``ciou`` (the same), plus the difference of
            the aspect ratios.

    Example: [0, 0, 2, 2] for [1, 1, 3, 3] is 1.9459 as ``iou``, 1.0794 as ``giou`` and 0.9683 as ``diou`` and
    ``ciou``.
    """
    size, target_size = boxes[..., 2:] - boxes[..., :2], targets[..., 2:] - targets[..., :2]
    ends, starts = torch.minimum(boxes[..., 2:], targets[..., 2:]), torch.maximum(boxes[..., :2], targets[..., :2])
    hull_size = torch.maximum(boxes[..., 2:], targets[..., 2:]) - torch.minimum(boxes[..., :2], targets[..., :2])
    intersection = _area((ends - starts).clamp(min=0))
    union = _area(size) + _area(target_size) - intersection
    iou = intersection / (union + _EPS)
    if kind == "iou":
        return -iou.clamp(min=1e-6).log()
    if kind == "giou":
        hull = _area(hull_size)
        return 1 - iou + (hull - union) / (hull + _EPS)
    shift = (boxes[..., :2] + boxes[..., 2:] - targets[..., :2] - targets[..., 2:]) / 2
    loss = 1 - iou + shift.square().sum(-1) / (hull_size.square().sum(-1) + _EPS)
    if kind == "diou":
        return loss
    difference = (target_size[..., 0] / target_size[..., 1]).atan() - (size[..., 0] / size[..., 1]).atan()
    aspect = (2 / math.pi * difference).square()
    with torch.no_grad():
        weight = aspect / (1 - iou + aspect + _EPS)
    return loss + weight * aspect


def _area(size: Tensor) -> Tensor:
    # Not prod(): its gradient checks for zeros on the host.
    return size[..., 0] * size[..., 1]
