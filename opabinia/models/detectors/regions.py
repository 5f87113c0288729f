"""What the heads of R-CNNs share: which regions they learn from, and the part of the maps that lies under a region."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torchvision.ops import box_iou, roi_align

from opabinia.config import register
from opabinia.contracts import Count, Fraction, Level, Positive, Target
from opabinia.models.detectors.anchors import NEGATIVE, POSITIVE, match, pyramid_levels


@register.section(name="region_pooling")
@dataclass(frozen=True, kw_only=True)
class Pooling:
    """How the maps under a region become a square of fixed size (RoIAlign, He et al. 2017, section 3). Defaults are
    detectron2's.

    Args:
        maps: so many maps of the neck are looked at, from the finest on; coarser ones are for proposals only.
        canonical_size: a square region of so many pixels ...
        canonical_level: ... is looked at in the map of stride 2 to the power of this, one of half the side in the next
            finer one (Lin et al. 2017, equation 1).
        samples: in each cell of the square, so many times as many; 0 takes them as close as the map's own places
            (torchvision: 2).
        aligned: places of a map are the middles of what they see, not its corners (torchvision: false).
    """

    maps: Count = 4
    canonical_size: Positive = 224
    canonical_level: Count = 4
    samples: Annotated[int, Ge(0)] = 0
    aligned: bool = True


class RegionPool(nn.Module):
    """Maps under regions, each from the level that suits its size.

    Args:
        levels: what the neck gives.
        side: S, of the squares it makes.
        how: see :class:`Pooling`.

    Raises:
        ValueError: the neck gives fewer maps than are to be looked at.
    """

    def __init__(self, levels: Sequence[Level], side: int, how: Pooling) -> None:
        super().__init__()
        if len(levels) < how.maps:
            raise ValueError(f"maps: {how.maps} are to be looked at, and the neck gives {len(levels)}")
        self.side, self.how = side, how
        self.strides = [level.stride for level in levels[: how.maps]]

    def forward(self, maps: Sequence[Tensor], boxes: Sequence[Tensor]) -> Tensor:
        """R x M x S x S of all boxes (of each image N x 4, R together) from maps (B x M x h x w). Where a box is not
        finite, what comes out is not either."""
        regions = as_regions(boxes)
        lowest = int(math.log2(self.strides[0]))
        levels = pyramid_levels(
            regions[:, 1:],
            lowest,
            lowest + len(self.strides) - 1,
            canonical_size=self.how.canonical_size,
            canonical_level=self.how.canonical_level,
        )
        # A box that is not finite belongs to no level.
        levels = levels.where(regions.isfinite().all(dim=1), -1)
        pooled = maps[0].new_full((len(regions), maps[0].shape[1], self.side, self.side), math.nan)
        for level, (one, stride) in enumerate(zip(maps, self.strides, strict=False), lowest):
            here = torch.where(levels == level)[0]
            squares = roi_align(
                one.float(), regions[here], self.side, 1 / stride, self.how.samples, aligned=self.how.aligned
            )
            pooled[here] = squares.to(pooled.dtype)
        return pooled


def as_regions(boxes: Sequence[Tensor]) -> Tensor:
    """Boxes of several images (N x 4 each) with the number of the image before them (R x 5, float32)."""
    numbers = [torch.full_like(one[:, :1], number) for number, one in enumerate(boxes)]
    return torch.cat([torch.cat(numbers), torch.cat(list(boxes))], dim=1)


def has_extent(boxes: Tensor, smallest: float) -> Tensor:
    """Whether boxes (... x 4) are wider and higher than so many pixels. What is not a number counts as such, so that it
    is seen later on."""
    return ~((boxes[..., 2:] - boxes[..., :2]) <= smallest).any(dim=-1)


def draw(labels: Tensor, count: int, positive: float) -> tuple[Tensor, Tensor]:
    """Draw from N candidates, without waiting for the device: positive ones up to a share, the rest background.

    Args:
        labels: 1 positive, 0 background, others are not drawn (int64, N).
        count: how many are wanted.
        positive: which share of them may be positive, at most.

    Returns:
        their numbers (int64), first the positive ones, and whether they count (bool): there may be fewer than asked.

    Example: of 2 positive ones and 9 of background, with a count of 8 and half of them positive: 2 and 6.
    """
    chance = torch.rand(labels.shape, device=labels.device)
    things = _drawn(chance, labels == POSITIVE, int(count * positive))
    background = _drawn(chance, labels == NEGATIVE, count)
    places = torch.arange(len(background[0]), device=labels.device)
    there_is_room = places < count - things[1].sum()
    return torch.cat([things[0], background[0]]), torch.cat([things[1], background[1] & there_is_room])


def _drawn(chance: Tensor, candidates: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Numbers of those with the highest chance, and whether they are candidates at all."""
    best = chance.masked_fill(~candidates, -1).topk(min(count, len(chance)))
    return best.indices, best.values >= 0


class Regions(NamedTuple):
    """What a head learns from in one image.

    Attributes:
        boxes: N x 4.
        labels: the class of what is there (int64, N); K, the number of classes, for background.
        things: which thing of the image that is (int64, N); of background any.
        goals: the box of that thing (N x 4); of background the region itself.
    """

    boxes: Tensor
    labels: Tensor
    things: Tensor
    goals: Tensor

    def at(self, rows: Tensor) -> Regions:
        """Those with these numbers, or where this is true."""
        return Regions(*(one[rows] for one in self))


def labelled(boxes: Tensor, target: Target, foreground: float, classes: int) -> Regions:
    """Regions (N x 4) with what is in them: the thing they overlap most, where that is ``foreground`` or more."""
    found = match(box_iou(target.boxes, boxes), foreground, foreground)
    if not len(target.boxes):
        return Regions(boxes, torch.full_like(found.labels, classes), found.things, boxes)
    is_thing = found.labels == POSITIVE
    labels = target.labels[found.things].where(is_thing, classes)
    return Regions(boxes, labels, found.things, target.boxes[found.things].where(is_thing[:, None], boxes))


@torch.no_grad()
def sampled(
    proposals: Tensor, target: Target, *, foreground: Fraction, samples: int, positive: Fraction, classes: int
) -> Regions:
    """Regions of one image to learn from, drawn from the proposals (N x 4) and the true boxes, which are among them so
    that there is something to learn from before proposals are any good (detectron2)."""
    regions = labelled(torch.cat([proposals, target.boxes]), target, foreground, classes)
    rows, count = draw((regions.labels < classes).long(), samples, positive)
    return regions.at(rows[count])


def counted(regions: Sequence[Regions], classes: int) -> dict[str, Tensor]:
    """How many regions of an image are of things, and how many of background, in the mean over images."""
    things = torch.stack([(one.labels < classes).sum() for one in regions]).float().mean()
    every = sum(len(one.labels) for one in regions) / len(regions)
    return {"roi_head/num_fg_samples": things, "roi_head/num_bg_samples": every - things}


def things_in(regions: Sequence[Regions], classes: int) -> list[Regions]:
    """Those regions of each image that are not background."""
    return [one.at(one.labels < classes) for one in regions]
