"""Suppression with static shapes, for exports: the same rule as in :mod:`opabinia.models.detectors.dense`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from opabinia.contracts import Detections
from opabinia.models.detectors.dense import Found


@runtime_checkable
class Dense(Protocol):
    """A detector whose candidates are as many in every image.

    Attributes:
        threshold: scores of no more than this are left out.
        nms: of two boxes of one class that overlap by more than this the lesser one goes.
        most: things in an image, at most.
    """

    threshold: float
    nms: float
    most: int

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]: ...

    def candidates(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> list[Found]: ...


def left_of(levels: Sequence[Found], sizes: Tensor, threshold: float, nms: float, most: int) -> Detections:
    """What is left of candidates, always ``most`` in an image, filled up with label -1.

    The best that is left is taken, and all of its class that overlap with it go, ``most`` times: what
    :func:`torchvision.ops.batched_nms` keeps first, without shapes that depend on the scores.

    Args:
        levels: candidates.
        sizes: height and width of each image (int64, B x 2).
        threshold, nms, most: see :class:`Dense`.

    Returns:
        boxes B x D x 4, scores B x D, labels int64 B x D.
    """
    scores, labels, boxes = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
    ends = sizes.flip(1).repeat(1, 2).unsqueeze(1).to(boxes.dtype)
    boxes = boxes.clamp(min=0).minimum(ends)
    areas = (boxes[..., 2:] - boxes[..., :2]).prod(2)

    def take_best(left: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        place = left.argmax(1, keepdim=True)
        box = boxes.gather(1, place.unsqueeze(2).expand(-1, -1, 4))
        sides = torch.minimum(box[..., 2:], boxes[..., 2:]) - torch.maximum(box[..., :2], boxes[..., :2])
        shared = sides.clamp(min=0).prod(2)
        overlaps = shared / (areas.gather(1, place) + areas - shared) > nms
        gone = overlaps & (labels == labels.gather(1, place))
        return left.masked_fill(gone, -1.0).scatter(1, place, -1.0), torch.where(left.gather(1, place) < 0, -1, place)

    left = scores.masked_fill(scores <= threshold, -1.0)
    _, taken = scan(take_best, left, torch.zeros(most, 1))
    places = taken.squeeze(2).t()
    there, places = places >= 0, places.clamp(min=0)
    return Detections(
        boxes.gather(1, places.unsqueeze(2).expand(-1, -1, 4)) * there.unsqueeze(2),
        scores.gather(1, places) * there,
        labels.gather(1, places).masked_fill(~there, -1),
    )


ALONE = 0.05
"""Share of things that may have no partner: where two overlap and their scores are equal but for rounding, either one
may suppress the other, and what each of them would have suppressed follows from it."""


def differ_in_things(
    original: Mapping[str, Tensor], found: Mapping[str, Tensor], threshold: float, margin: float = 1e-3
) -> float:
    """How far things that were found differ: in their scores, or in their boxes as a share of the largest coordinate.

    Each is compared with its partner, the nearest thing of its class on the other side that differs by less than
    ``margin``, wherever that stands in the list. Things without one are left out if they are few (:data:`ALONE`), and
    otherwise the difference is infinite; those with scores within ``margin`` of the threshold do not count.

    Args:
        original, found: ``boxes`` (B x D x 4), ``scores`` (B x D) and ``labels`` (B x D; -1: nothing).
        threshold: of scores.
        margin: see above.
    """
    if any(original[name].shape != found[name].shape for name in original):
        return inf
    scale = max(1.0, float(original["boxes"].abs().max()))
    pairs = [(_of_image(original, number), _of_image(found, number)) for number in range(len(original["scores"]))]
    pairs += [(other, one) for one, other in pairs]
    apart = torch.cat([_apart(one, other, scale) for one, other in pairs])
    scores = torch.cat([one.scores for one, _ in pairs])
    matched = apart <= margin
    alone = ~matched & (scores > threshold + margin)
    if alone.sum() > ALONE * len(apart):
        return inf
    return float(apart[matched].max()) if matched.any() else 0.0


def _of_image(things: Mapping[str, Tensor], number: int) -> Detections:
    there = things["labels"][number] >= 0
    return Detections(*(things[name][number][there] for name in ("boxes", "scores", "labels")))


def _apart(some: Detections, others: Detections, scale: float) -> Tensor:
    """How far each of N things is from the nearest of its class among ``others`` (N); infinite without one."""
    boxes = (some.boxes[:, None] - others.boxes[None]).abs().amax(2) / scale
    scores = (some.scores[:, None] - others.scores[None]).abs()
    off = torch.maximum(boxes, scores).masked_fill(some.labels[:, None] != others.labels[None], inf)
    return torch.cat([off, off.new_full((len(off), 1), inf)], 1).amin(1)
