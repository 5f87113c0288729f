"""What detectors with anchors share: where these lie, which of them are to find what, and how boxes are coded by them.

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
from torchvision.models.detection._utils import BoxCoder

Weights = tuple[float, float, float, float]
"""What the four numbers of a coded box are multiplied by: the shifts to the right and down, width and height."""

ByOverlap = Literal["giou", "diou", "ciou"]
BoxLoss = Literal["smooth_l1", "giou", "diou", "ciou"]

Convention = Literal["detectron2", "torchvision"]
"""Whose anchors they are. torchvision's, for its weights, have corners on whole pixels, and their strides are how many
whole times a map goes into the batch."""

# --- anchors ----------------------------------------------------------------------------------------------------------


def cell_anchors(sizes: Sequence[float], ratios: Sequence[float], *, rounded: bool = False) -> Tensor:
    """Anchors of one place, around (0, 0), A x 4: for each size one of each ratio, as detectron2 has them.

    Args:
        sizes: square roots of their areas, in pixels.
        ratios: height through width.
        rounded: corners lie on whole pixels, and there is for each ratio one of each size: what torchvision's weights
            were trained with.

    Example: size 32 with the ratio 0.5 is [-22.6274, -11.3137, 22.6274, 11.3137]; rounded [-23, -11, 23, 11].
    """
    size = torch.tensor(sizes, dtype=torch.float64)
    root = torch.tensor(ratios, dtype=torch.float64).sqrt()
    pairs = torch.cartesian_prod(root, size).flip(1) if rounded else torch.cartesian_prod(size, root)
    width, height = (pairs[:, 0] / pairs[:, 1]).float(), (pairs[:, 0] * pairs[:, 1]).float()
    corners = torch.stack([-width, -height, width, height], dim=1) / 2
    return corners.round() if rounded else corners


def grid_anchors(cells: Tensor, shape: tuple[int, int], stride: int | tuple[int, int], offset: float = 0.0) -> Tensor:
    """The anchors of every place of a feature map: h * w * A x 4, row by row, the A of a place beside each other.

    Args:
        cells: A x 4, around (0, 0).
        shape: h and w of the map.
        stride: pixels from one place to the next; a pair is down and to the right.
        offset: where the first place lies, in strides: 0 (detectron2, torchvision) or 0.5, the middle of what it sees.

    Example: the first one of size 32 and ratio 0.5 at stride 4 and offset 0.5 is [-20.6274, -9.3137, 24.6274, 13.3137].
    """
    strides = (stride, stride) if isinstance(stride, int) else stride
    down, right = (
        (torch.arange(side, device=cells.device) + offset) * step for side, step in zip(shape, strides, strict=True)
    )
    y, x = torch.meshgrid(down, right, indexing="ij")
    places = torch.stack([x, y, x, y], dim=-1)
    return (places.view(-1, 1, 4) + cells).reshape(-1, 4)


class AnchorGrid:
    """Anchors for all levels of a pyramid.

    Args:
        sizes: those of each level, from fine to coarse.
        ratios: height through width, the same on all levels.
        strides: of the levels.
        offset: see :func:`grid_anchors`.
        convention: whose they are.

    Attributes:
        per_place: A, how many anchors each place has.

    Raises:
        ValueError: there are not as many lists of sizes as levels, or these differ in length.
    """

    def __init__(
        self,
        sizes: Sequence[Sequence[float]],
        ratios: Sequence[float],
        strides: Sequence[int],
        *,
        offset: float = 0.0,
        convention: Convention = "detectron2",
    ) -> None:
        if len(sizes) != len(strides):
            raise ValueError(f"sizes: there are {len(sizes)} of them for {len(strides)} levels")
        if len({len(of_level) for of_level in sizes}) != 1:
            raise ValueError("sizes: all levels are to have the same number of them, because they share a head")
        self.per_place = len(sizes[0]) * len(ratios)
        self._sizes, self._ratios = [tuple(map(float, of_level)) for of_level in sizes], tuple(map(float, ratios))
        self._strides, self._offset, self._convention = tuple(strides), offset, convention

    def __call__(self, maps: Sequence[Tensor], shape: tuple[int, int] | None = None) -> list[Tensor]:
        """Anchors (h * w * A x 4) of each map. They are kept for later calls: do not change them.

        Args:
            maps: B x C x h x w.
            shape: height and width of the batch, which torchvision's strides are computed from.
        """
        anchors = []
        for sizes, stride, one in zip(self._sizes, self._strides, maps, strict=True):
            sides = (one.shape[-2], one.shape[-1])
            steps, rounded = (stride, stride), self._convention == "torchvision"
            if rounded and shape is not None:
                steps = (shape[0] // sides[0], shape[1] // sides[1])
            anchors.append(_kept(sizes, self._ratios, rounded, steps, self._offset, sides, one.device))
        return anchors


@lru_cache(maxsize=64)
def _kept(
    sizes: tuple[float, ...],
    ratios: tuple[float, ...],
    rounded: bool,
    stride: tuple[int, int],
    offset: float,
    shape: tuple[int, int],
    device: torch.device,
) -> Tensor:
    # What is made in inference mode could not take part in training later.
    with torch.inference_mode(False):
        cells = cell_anchors(sizes, ratios, rounded=rounded).to(device, non_blocking=True)
        return grid_anchors(cells, shape, stride, offset)


# --- coding -----------------------------------------------------------------------------------------------------------


def encode(boxes: Tensor, anchors: Tensor, weights: Weights = (1.0, 1.0, 1.0, 1.0)) -> Tensor:
    """How to get from anchors to boxes (N x 4 each): the shift of the centre in widths and heights of the anchor, and
    the logarithms of how much wider and higher the box is, times ``weights`` (Girshick et al. 2014, appendix C).

    Example: from [0, 0, 10, 10] to [2, 2, 12, 14] with the weights 10, 10, 5, 5 is [2, 3, 0, 0.9116].
    """
    # torchvision's does the same, but copies the weights to the device each time, and waits for that.
    size, base = boxes[:, 2:] - boxes[:, :2], anchors[:, 2:] - anchors[:, :2]
    shift = (boxes[:, :2] + 0.5 * size - (anchors[:, :2] + 0.5 * base)) / base
    columns = torch.cat([shift, (size / base).log()], dim=1).unbind(1)
    return torch.stack([weight * column for weight, column in zip(weights, columns, strict=True)], dim=1)


def decode(deltas: Tensor, anchors: Tensor, weights: Weights = (1.0, 1.0, 1.0, 1.0)) -> Tensor:
    """The boxes (N x 4, float32) that :func:`encode` made ``deltas`` of. Nothing gets wider or higher than its anchor
    times 1000 / 16: the logarithms count as log(1000 / 16) = 4.135 where they are above (detectron2)."""
    boxes: Tensor = BoxCoder(weights).decode_single(deltas.float(), anchors)
    return boxes


# --- who is to find what ----------------------------------------------------------------------------------------------

POSITIVE, NEGATIVE, IGNORED = 1, 0, -1


class Matches(NamedTuple):
    """For each of A anchors the thing it overlaps most (int64, A), and whether it is to find it (``labels``, int64, A:
    1), is background (0), or learns nothing (-1)."""

    things: Tensor
    labels: Tensor


def match(quality: Tensor, low: float, high: float, *, low_quality: bool = False) -> Matches:
    """Give each anchor one of N things, or none (Ren et al. 2015, section 3.1.2).

    Args:
        quality: overlap of things and anchors (N x A), from 0 to 1; N may be 0.
        low: an anchor whose best overlap is below is background.
        high: one whose best overlap is this or more is positive; what lies between is ignored.
        low_quality: the anchors that a thing overlaps most (several if they are equal) are positive, too, if it does
            so at all. Each still belongs to the thing that it overlaps most itself.

    Example: [[0.1, 0.5, 0.6], [0.8, 0.2, 0.29]] with 0.3, 0.7 and ``low_quality`` gives the labels [1, -1, 1] and the
    things [1, 0, 0].
    """
    if not len(quality):
        nothing = quality.new_zeros(quality.shape[1], dtype=torch.int64)
        return Matches(nothing, nothing)
    best, things = quality.max(dim=0)
    labels = (best >= high).long() - ((best >= low) & (best < high)).long()
    if low_quality:
        highest = quality.amax(dim=1, keepdim=True)
        labels = labels.masked_fill(((quality == highest) & (quality > 0)).any(dim=0), POSITIVE)
    return Matches(things, labels)


def pyramid_levels(
    boxes: Tensor, lowest: int = 2, highest: int = 5, *, canonical_size: float = 224.0, canonical_level: int = 4
) -> Tensor:
    """On which level of a pyramid each of N boxes is looked at (int64, N; Lin et al. 2017, equation 1).

    Args:
        boxes: N x 4.
        lowest: number of the finest level; level k has the stride 2^k.
        highest: number of the coarsest one.
        canonical_size: a square box with this side ...
        canonical_level: ... is looked at on this level, one of half the side a level below.

    Example: squares of 111, 112, 223, 224, 447 and 448 pixels: 2, 3, 3, 4, 4, 5.
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1).sqrt()
    levels = canonical_level + (sides / canonical_size + 1e-8).log2().floor()
    return levels.clamp(lowest, highest).long()


# --- losses -----------------------------------------------------------------------------------------------------------


def box_loss(
    deltas: Tensor,
    anchors: Tensor,
    boxes: Tensor,
    kind: BoxLoss = "smooth_l1",
    *,
    beta: float = 0.0,
    weights: Weights = (1.0, 1.0, 1.0, 1.0),
) -> Tensor:
    """How far predictions are from the boxes they should be (N, float32).

    Args:
        deltas: predictions, coded as in :func:`encode` (N x 4).
        anchors: what they start from (N x 4).
        boxes: where they should end (N x 4), of positive width and height.
        kind: ``smooth_l1`` compares coded boxes, number by number; the others compare boxes by their overlap, see
            :func:`overlap_loss`.
        beta: of ``smooth_l1``: errors below count squared, error^2 / (2 beta), those above error - beta / 2. 0: all
            count as they are (L1).
        weights: of the coding.

    Example: an error of 0.05 with ``beta`` 0.1 is 0.0125, one of 1 is 0.95.
    """
    if kind == "smooth_l1":
        coded = encode(boxes, anchors, weights)
        return F.smooth_l1_loss(deltas.float(), coded, reduction="none", beta=beta).sum(dim=1)
    return overlap_loss(decode(deltas, anchors, weights), boxes, kind)


_LEAST = 1e-7
"""What divisors are at least."""


def overlap_loss(boxes: Tensor, goals: Tensor, kind: ByOverlap) -> Tensor:
    """One less the intersection over union of boxes and where they should be (... x 4 each, to ...), and a penalty.

    torchvision's numbers; its functions look for the boxes that overlap at all, which waits for the device.

    Args:
        boxes: predictions.
        goals: where they should be, of positive width and height.
        kind: of the penalty: ``giou`` (Rezatofighi et al. 2019), the share of the smallest box around both that is in
            neither; ``diou`` (Zheng et al. 2020), the distance of their centres, squared, over the diagonal of that
            box; ``ciou`` (the same), and how far their shapes differ.

    Example: [0, 0, 2, 2] for [1, 1, 3, 3] is 1.0794 as ``giou`` and 0.9683 as ``diou`` and ``ciou``.
    """
    size, wanted = boxes[..., 2:] - boxes[..., :2], goals[..., 2:] - goals[..., :2]
    ends, starts = torch.minimum(boxes[..., 2:], goals[..., 2:]), torch.maximum(boxes[..., :2], goals[..., :2])
    around = torch.maximum(boxes[..., 2:], goals[..., 2:]) - torch.minimum(boxes[..., :2], goals[..., :2])
    shared = _area((ends - starts).clamp(min=0))
    union = _area(size) + _area(wanted) - shared
    overlap = shared / (union + _LEAST)
    if kind == "giou":
        hull = _area(around)
        return 1 - overlap + (hull - union) / (hull + _LEAST)
    shift = (boxes[..., :2] + boxes[..., 2:] - goals[..., :2] - goals[..., 2:]) / 2
    loss = 1 - overlap + shift.square().sum(-1) / (around.square().sum(-1) + _LEAST)
    if kind == "diou":
        return loss
    difference = (wanted[..., 0] / wanted[..., 1]).atan() - (size[..., 0] / size[..., 1]).atan()
    shape = (2 / math.pi * difference).square()
    with torch.no_grad():
        weight = shape / (1 - overlap + shape + _LEAST)
    return loss + weight * shape


def _area(size: Tensor) -> Tensor:
    # Not prod(), whose gradient looks for zeros on the host.
    return size[..., 0] * size[..., 1]
