"""What one-stage detectors share: they say of every place of a pyramid which class is there and where its box ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torchvision.ops import batched_nms, sigmoid_focal_loss

from opabinia.contracts import Detections, Sizes
from opabinia.models.norms import GroupNorm

HeadNorm = Literal["none", "group"]

Prior = Annotated[float, Interval(gt=0, lt=1)]
"""The chance of a class before anything is learned; its logit is a bias."""

_GROUPS = 32

Decode = Callable[[Tensor, Tensor], Tensor]
"""From codes and the anchors they belong to (N x 4 each) to boxes (N x 4)."""


def head_norm(norm: HeadNorm, channels: int) -> Callable[[int], nn.Module] | None:
    """What makes a norm of so many channels for a head that all levels share; None for none.

    Raises:
        ValueError: the channels cannot be divided into 32 groups.
    """
    if norm == "none":
        return None
    if channels % _GROUPS:
        raise ValueError(
            f"norm: group has {_GROUPS} groups, and the {channels} channels of the neck cannot be divided among them; "
            f"let the neck's channels be a multiple of {_GROUPS}, or take norm: none"
        )
    return partial(GroupNorm, _GROUPS)


def focal(logits: Tensor, classes: Tensor, alpha: float, gamma: float) -> Tensor:
    """Focal loss of each anchor, all classes added up (B x N, float32; Lin et al. 2017, Focal loss, equation 5).

    Args:
        logits: B x N x K.
        classes: what they should say (int64, B x N); -1 is background.
        alpha: weight of the class that is there, the others having 1 - alpha.
        gamma: how much less what is easy counts; 0 is cross entropy.

    Example: with 0.25 and 2 the logits 0, 2 and -2 for a class that is there, there, and not: 0.0433, 0.0005, 0.0014.
    """
    numbers = torch.arange(logits.shape[-1], device=logits.device)
    right = (classes.unsqueeze(-1) == numbers).float()
    losses: Tensor = sigmoid_focal_loss(logits.float(), right, alpha, gamma)
    return losses.sum(dim=-1)


def says_right(logits: Tensor, classes: Tensor) -> Tensor:
    """Whether no class has a higher logit than the right one (bool, B x N); False for background (-1)."""
    logits = logits.detach()
    right = logits.gather(-1, classes.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (right >= logits.amax(dim=-1)) & (classes >= 0)


class Said(NamedTuple):
    """What a head says of one level of B images, and where it says so.

    Attributes:
        logits: B x N x K.
        codes: of the boxes (B x N x 4).
        anchors: N x 4.
        centerness: logits (B x N); None for heads that have none.
    """

    logits: Tensor
    codes: Tensor
    anchors: Tensor
    centerness: Tensor | None = None


def by_level(logits: Tensor, codes: Tensor, anchors: Sequence[Tensor], centerness: Tensor | None = None) -> list[Said]:
    """What a head says of all levels, one behind the other (B x sum of all N x ...), as levels again."""
    ends = [0, *accumulate(map(len, anchors))]
    parts = [slice(*pair) for pair in pairwise(ends)]
    return [
        Said(logits[:, part], codes[:, part], of_level, None if centerness is None else centerness[:, part])
        for part, of_level in zip(parts, anchors, strict=True)
    ]


class Found(NamedTuple):
    """The best of B images: scores and labels (B x D), boxes (B x D x 4)."""

    scores: Tensor
    labels: Tensor
    boxes: Tensor


def best_candidates(level: Said, decode: Decode, most: int) -> Found:
    """The best pairs of an anchor and a class on one level, at most ``most`` in each image.

    A score is the chance of a class; with centerness the root of the two chances' product (Tian et al. 2022, equation
    4).
    """
    # The best pairs are among the best places: only their K scores are computed.
    best = _scores(level.logits.amax(dim=2, keepdim=True), level.centerness).squeeze(2)
    places = best.topk(min(most, best.shape[1])).indices
    centerness = None if level.centerness is None else level.centerness.gather(1, places)
    scores = _scores(_rows(level.logits, places), centerness).flatten(1)
    scores, pairs = scores.topk(min(most, scores.shape[1]))
    classes = level.logits.shape[2]
    places = places.gather(1, pairs // classes)
    boxes = decode(_rows(level.codes, places).flatten(0, 1), level.anchors[places].flatten(0, 1))
    return Found(scores, pairs % classes, boxes.view(*places.shape, 4))


def _scores(logits: Tensor, centerness: Tensor | None) -> Tensor:
    chances = logits.float().sigmoid()
    return chances if centerness is None else (chances * centerness.float().sigmoid().unsqueeze(2)).sqrt()


def _rows(values: Tensor, places: Tensor) -> Tensor:
    """Of B x N x C those at B x M places."""
    return values.gather(1, places.unsqueeze(2).expand(-1, -1, values.shape[2]))


def suppressed(levels: Sequence[Found], sizes: Sizes, threshold: float, nms: float, most: int) -> list[Detections]:
    """What is left of candidates, cut off at the edges of the images. It waits for the device.

    Scores that are not numbers are handed on, so that they are seen.

    Args:
        levels: candidates.
        sizes: of the images.
        threshold: scores of no more than this are left out.
        nms: of two boxes of one class that overlap by more than this the lesser one goes.
        most: things in an image, at most.
    """
    scores, labels, boxes = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
    ends = torch.tensor([(width, height) * 2 for height, width in sizes]).to(boxes.device, non_blocking=True)
    boxes = boxes.clamp(min=0).minimum(ends.unsqueeze(1))
    found = []
    for above, *image in zip(~(scores <= threshold), boxes, scores, labels, strict=True):
        one = Detections(*(values[above] for values in image))
        kept = batched_nms(one.boxes, one.scores, one.labels, nms)[:most]
        found.append(Detections(one.boxes[kept], one.scores[kept], one.labels[kept]))
    return found
