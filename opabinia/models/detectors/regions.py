"""Shared by the heads of R-CNNs: the regions that they are trained on, and RoIAlign on a feature pyramid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torchvision.ops import box_iou, roi_align
from torchvision.ops._utils import convert_boxes_to_roi_format

from opabinia.config import register
from opabinia.contracts import Count, Level, Positive, Target
from opabinia.models.losses.matching import NEGATIVE, POSITIVE, match_anchors
from opabinia.runtime.device import true_indices


@register.section(name="region_pooling")
@dataclass(frozen=True, kw_only=True)
class PoolingOptions:
    """Options of RoIAlign (He et al. 2017, section 3), which pools the features of a region into a square of fixed
    size. Defaults are detectron2's.

    Args:
        num_levels: levels of the neck to pool from, from the finest on; coarser ones are for proposals only.
        canonical_size: side of the square region, in pixels, that is ...
        canonical_level: ... pooled from the level of stride 2 to the power of this; one of half the side is pooled from
            the next finer level (Lin et al. 2017, equation 1).
        sampling_ratio: samples per cell of the square in each direction; 0 takes one per position of the feature map
            (torchvision: 2).
        aligned: positions of a feature map are the centers of its cells, not their corners (torchvision: false).
        last_stage: the backbone's last stage runs on pooled regions instead of images (ResNet-C4; Ren et al. 2015, He
            et al. 2016; detectron2's Res5ROIHeads). It needs a ResNet, ``num_levels: 1`` and the neck ``no_neck``;
            detectron2 has ``resolution: 14`` and ``num_fc: 0`` of the boxes, and ``num_convs: 0`` of the masks.
    """

    num_levels: Count = 4
    canonical_size: Positive = 224
    canonical_level: Count = 4
    sampling_ratio: Annotated[int, Ge(0)] = 0
    aligned: bool = True
    last_stage: bool = False

    def with_sampling_ratio(self, sampling_ratio: int | None) -> PoolingOptions:
        """Return the options with another sampling ratio; None keeps it."""
        return self if sampling_ratio is None else replace(self, sampling_ratio=sampling_ratio)


class RegionPool(nn.Module):
    """RoIAlign, with each region pooled from the level that suits its size, and the backbone's last stage if it is to
    run on regions.

    Args:
        levels: feature levels of the neck; with ``last_stage`` also that of the backbone's last stage, at the end.
        side: S, of the pooled squares; the last stage halves it.
        options: see :class:`PoolingOptions`.

    Attributes:
        out_channels: number of channels of the output.
        stage: the last stage, in a tuple, so that it is not a child; empty without one.

    Raises:
        ValueError: the neck has fewer levels than ``num_levels``.
    """

    def __init__(self, levels: Sequence[Level], side: int, options: PoolingOptions) -> None:
        super().__init__()
        if len(levels) < options.num_levels:
            raise ValueError(f"num_levels: {options.num_levels} levels to pool from, and the neck has {len(levels)}")
        self.side, self.options = side, options
        self.out_channels = levels[-1 if options.last_stage else 0].channels
        self.stage: tuple[nn.Module, ...] = ()
        self.strides = [level.stride for level in levels[: options.num_levels]]

    def forward(self, maps: Sequence[Tensor], boxes: Sequence[Tensor] | Tensor) -> Tensor:
        """Pool the features (R x M x S x S) of the boxes of all images (N x 4 each, R in all; or B x N x 4) from
        feature maps (B x M x h x w). The features of boxes that are not finite are NaN."""
        rois = _boxes_to_rois(boxes)
        lowest = int(math.log2(self.strides[0]))
        highest, options = lowest + len(self.strides) - 1, self.options
        levels = assign_levels(rois[:, 1:], lowest, highest, options.canonical_size, options.canonical_level)
        # Boxes that are not finite belong to no level.
        levels = levels.where(rois.isfinite().all(dim=1), -1)
        pooled = maps[0].new_full((rois.shape[0], maps[0].shape[1], self.side, self.side), math.nan)
        rows_by_level = true_indices([levels == level for level in range(lowest, highest + 1)])
        for level_map, stride, rows in zip(maps, self.strides, rows_by_level, strict=False):
            sampling = options.sampling_ratio, options.aligned
            squares = roi_align(level_map.float(), rois[rows], self.side, 1 / stride, *sampling)
            pooled[rows] = squares.to(pooled.dtype)
        for stage in self.stage:
            pooled = stage(pooled)
        return pooled


def _boxes_to_rois(boxes: Sequence[Tensor] | Tensor) -> Tensor:
    """Put the number of its image before each box (R x 5). Boxes in one tensor may be of any number of images in an
    exported graph."""
    if not isinstance(boxes, Tensor):
        rois: Tensor = convert_boxes_to_roi_format(list(boxes))
        return rois
    images = torch.arange(boxes.shape[0], device=boxes.device).view(-1, 1, 1).expand(-1, boxes.shape[1], 1)
    return torch.cat([images.to(boxes.dtype), boxes], dim=2).flatten(0, 1)


def draw_samples(labels: Tensor, count: int, positive_fraction: float) -> tuple[Tensor, Tensor]:
    """Draw from N candidates, without waiting for the device: positive ones up to a share, the rest background.

    Args:
        labels: 1 positive, 0 background, others are never drawn (int64, N).
        count: number of samples.
        positive_fraction: largest share of positive samples.

    Returns:
        the indices of the samples (int64), positive ones first, and which of them are valid (bool): there may be fewer
        than ``count``.

    Example: of 2 positive and 9 background candidates, with a count of 8 and a fraction of 0.5: 2 and 6.
    """
    priority = torch.rand(labels.shape, device=labels.device)
    positive, positive_valid = _draw_from(priority, labels == POSITIVE, int(count * positive_fraction))
    background, background_valid = _draw_from(priority, labels == NEGATIVE, count)
    slots = torch.arange(len(background), device=labels.device)
    background_valid = background_valid & (slots < count - positive_valid.sum())
    return torch.cat([positive, background]), torch.cat([positive_valid, background_valid])


def _draw_from(priority: Tensor, candidates: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the indices with the highest priority, and whether they are candidates."""
    best = priority.masked_fill(~candidates, -1).topk(min(count, len(priority)))
    return best.indices, best.values >= 0


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


class Regions(NamedTuple):
    """The training samples of a head in one image.

    Attributes:
        boxes: N x 4.
        labels: class of the object (int64, N); K, the number of classes, for background.
        matched: index of the object in the image (int64, N); any for background.
        targets: box of that object (N x 4); the region itself for background.
    """

    boxes: Tensor
    labels: Tensor
    matched: Tensor
    targets: Tensor

    def at(self, rows: Tensor | slice) -> Regions:
        """Select regions by index."""
        return Regions(*(values[rows] for values in self))


def label_regions(boxes: Tensor, target: Target, foreground_iou: float, classes: int) -> Regions:
    """Assign regions (N x 4) to the object that they overlap most, if the IoU is at least ``foreground_iou``."""
    matches = match_anchors(box_iou(target.boxes, boxes), foreground_iou, foreground_iou)
    if not len(target.boxes):
        return Regions(boxes, torch.full_like(matches.labels, classes), matches.indices, boxes)
    positive = matches.labels == POSITIVE
    labels = target.labels[matches.indices].where(positive, classes)
    targets = target.boxes[matches.indices].where(positive[:, None], boxes)
    return Regions(boxes, labels, matches.indices, targets)


@torch.no_grad()
def sample_regions(
    proposals: Sequence[Tensor],
    targets: Sequence[Target],
    foreground_iou: float,
    count: int,
    positive_fraction: float,
    classes: int,
) -> list[Regions]:
    """Draw the training samples of each image from its proposals (N x 4) and the ground-truth boxes, which provide
    positive samples before proposals are any good (detectron2). The host waits for the device once."""
    regions = [
        label_regions(torch.cat([boxes, target.boxes]), target, foreground_iou, classes)
        for boxes, target in zip(proposals, targets, strict=True)
    ]
    drawn = [draw_samples((image.labels < classes).long(), count, positive_fraction) for image in regions]
    slots = true_indices([valid for _, valid in drawn])
    return [image.at(rows[valid]) for image, (rows, _), valid in zip(regions, drawn, slots, strict=True)]


def count_regions(regions: Sequence[Regions], classes: int) -> dict[str, Tensor]:
    """Return the mean number of foreground and background regions per image."""
    foreground = torch.stack([(image.labels < classes).sum() for image in regions]).float().mean()
    total = sum(len(image.labels) for image in regions) / len(regions)
    return {"roi_head/num_fg_samples": foreground, "roi_head/num_bg_samples": total - foreground}


def foreground_regions(regions: Sequence[Regions], classes: int) -> list[Regions]:
    """Return the regions of each image that are not background."""
    foreground = true_indices([image.labels < classes for image in regions])
    return [image.at(rows) for image, rows in zip(regions, foreground, strict=True)]


def concat_regions(regions: Sequence[Regions]) -> Regions:
    """Concatenate the regions of all images."""
    return Regions(*(torch.cat(values) for values in zip(*regions, strict=True)))
