"""Losses of segmentation: logits (B x K x H x W) and the class of each pixel (int64, B x H x W; 255 is ignored).

All are means over the pixels, or over the images, of the global batch, so they do not depend on the number of
processes; a batch without labeled pixels has the loss 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Gt, Interval, MinLen
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import IGNORE_LABEL, Count, Fraction, NonNegative
from opabinia.contracts.segmentation import class_presence
from opabinia.runtime.collectives import mean_over_samples
from opabinia.runtime.device import move_tensor

_SMALL = 1e-7


def mean_over_pixels(losses: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the losses of pixels (both B x ...) of the global batch; 0 if all weights are 0."""
    total = mean_over_samples(weights.sum(), len(weights)) * len(weights)
    mean: Tensor = (losses * weights).sum() / total.clamp(min=_SMALL)
    return mean


def _pixel_weights(targets: Tensor, class_weights: Sequence[float] | None, classes: int) -> Tensor:
    """Return the weight of each pixel (float32, like ``targets``): 0 where it is ignored.

    Raises:
        ValueError: there are more or fewer weights than classes.
    """
    labeled = targets != IGNORE_LABEL
    if class_weights is None:
        return labeled.float()
    if len(class_weights) != classes:
        raise ValueError(f"class_weights: {len(class_weights)} weights for {classes} classes; give one for each class")
    by_class = move_tensor(torch.tensor(class_weights, dtype=torch.float32), targets.device)
    return by_class[targets.clamp(max=classes - 1)] * labeled


def _log_probability(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the negative log probability of the class of each pixel (float32, B x H x W); 0 for ignored pixels."""
    return F.cross_entropy(
        logits.float(), targets, ignore_index=IGNORE_LABEL, reduction="none", label_smoothing=label_smoothing
    )


@register.segmentation_loss(name="cross_entropy")
def pixel_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    /,
    *,
    weight: NonNegative = 1.0,
    class_weights: Annotated[list[NonNegative], MinLen(2)] | None = None,
    label_smoothing: Fraction = 0.0,
    hardest: Annotated[float, Interval(gt=0, le=1)] = 1.0,
) -> Tensor:
    """Mean cross entropy of labeled pixels.

    Args:
        logits: B x K x H x W.
        targets: classes (int64, B x H x W); 255 is ignored.
        weight: weight of this loss.
        class_weights: one weight for each class; the mean is then a weighted one, as in torch.
        label_smoothing: share of the target that is spread over all classes.
        hardest: train on this share of each image's labeled pixels, those with the largest loss (online hard example
            mining). detectron2's DeepLab takes 0.2 of all pixels of the batch; per image the result does not depend on
            the number of processes.

    Raises:
        ValueError: the number of class weights is not that of the classes.
    """
    weights = _pixel_weights(targets, class_weights, logits.shape[1])
    losses = _log_probability(logits, targets, label_smoothing)
    if hardest < 1:
        losses, weights = losses.flatten(1), weights.flatten(1)
        count = max(1, round(hardest * losses.shape[1]))
        # Of the pixels that may be taken, an image with fewer labeled ones takes its share of these.
        chosen = (losses.detach() * weights).topk(count, dim=1).indices
        allowed = (weights > 0).sum(1, keepdim=True) * hardest
        rank = torch.arange(count, device=losses.device)
        losses, weights = losses.gather(1, chosen), weights.gather(1, chosen) * (rank < allowed.clamp(min=1))
    return weight * mean_over_pixels(losses, weights)


@register.segmentation_loss(name="focal")
def pixel_focal(logits: Tensor, targets: Tensor, /, *, weight: NonNegative = 1.0, gamma: NonNegative = 2.0) -> Tensor:
    """Mean focal loss of labeled pixels: ``-(1 - p)^gamma log p`` of the softmax probability of the true class (Lin et
    al. 2017, section 3.2, for exclusive classes).

    Args:
        logits: B x K x H x W.
        targets: classes (int64, B x H x W); 255 is ignored.
        weight: weight of this loss.
        gamma: 0 is cross entropy.
    """
    losses = _log_probability(logits, targets)
    return weight * mean_over_pixels((1 - (-losses).exp()) ** gamma * losses, (targets != IGNORE_LABEL).float())


@register.segmentation_loss
def dice(logits: Tensor, targets: Tensor, /, *, weight: NonNegative = 1.0, smooth: NonNegative = 1.0) -> Tensor:
    """Dice loss: 1 minus the overlap of probabilities and targets, ``(2 |p g| + s) / (|p| + |g| + s)``, averaged over
    the classes present in an image, then over images (Milletari et al. 2016, V-Net, without squares).

    Args:
        logits: B x K x H x W.
        targets: classes (int64, B x H x W); 255 is ignored.
        weight: weight of this loss.
        smooth: s, in pixels.
    """
    labeled = (targets != IGNORE_LABEL).unsqueeze(1)
    classes = torch.arange(logits.shape[1], device=targets.device).view(1, -1, 1, 1)
    hot = (targets.unsqueeze(1) == classes).float().flatten(2)
    probabilities = (logits.float().softmax(1) * labeled).flatten(2)
    sizes = hot.sum(2)
    overlap = (2 * (probabilities * hot).sum(2) + smooth) / (probabilities.sum(2) + sizes + smooth).clamp(min=_SMALL)
    present = sizes > 0
    return weight * (((1 - overlap) * present).sum(1) / present.sum(1).clamp(min=1)).mean()


def _present_classes(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return probabilities and one-hot targets (float32, N x H x W; 0 in ignored pixels) of N pairs: each image with
    each class that is present in it; and the weight of each pair in the mean over images of the mean over these classes
    (float32, N). Other classes take no memory; the host waits for the device to know which they are."""
    present = class_presence(targets)[:, :IGNORE_LABEL]
    images, classes = present.nonzero(as_tuple=True)
    probabilities = logits.float().softmax(1)[images, classes] * (targets != IGNORE_LABEL)[images]
    hot = (targets[images] == classes[:, None, None]).float()
    return probabilities, hot, 1 / (len(targets) * present.sum(1)[images])


@register.segmentation_loss
def lovasz(logits: Tensor, targets: Tensor, /, *, weight: NonNegative = 1.0) -> Tensor:
    """Lovász-softmax loss: a convex surrogate of 1 - IoU, averaged over the classes present in an image, then over
    images (Berman et al. 2018, section 3; its authors' options ``per_image`` and ``classes="present"``).

    Args:
        logits: B x K x H x W.
        targets: classes (int64, B x H x W); 255 is ignored.
        weight: weight of this loss.
    """
    probabilities, hot, weights = _present_classes(logits, targets)
    # Ignored pixels have error 0, so they come last and change nothing.
    errors, order = (hot - probabilities).abs().flatten(1).sort(1, descending=True)
    # A cumulative sum of integers is deterministic on GPUs, too.
    covered = hot.flatten(1).gather(1, order).cumsum(1, dtype=torch.int32)
    sizes, ranks = covered[:, -1:], torch.arange(1, covered.shape[1] + 1, device=covered.device)
    jaccard = 1 - (sizes - covered) / (sizes + ranks - covered)
    gradient = torch.diff(jaccard, dim=1, prepend=torch.zeros_like(jaccard[:, :1]))
    return weight * ((errors * gradient).sum(1) * weights).sum()


@register.segmentation_loss
def boundary(
    logits: Tensor,
    targets: Tensor,
    /,
    *,
    weight: NonNegative = 1.0,
    width: Annotated[Count, Gt(1)] = 3,
    tolerance: Annotated[Count, Gt(1)] = 5,
) -> Tensor:
    """Boundary loss: 1 minus the F1 score of predicted and true boundaries, averaged over the classes present in an
    image, then over images (Bokhovkin and Burnaev 2019, section 3; use it with another loss).

    Args:
        logits: B x K x H x W.
        targets: classes (int64, B x H x W); 255 is ignored.
        weight: weight of this loss.
        width: width of the window that finds boundaries, in pixels (theta 0 of the paper).
        tolerance: width of the window in which boundaries match, in pixels (theta).
    """
    probabilities, hot, weights = _present_classes(logits, targets)

    def dilated(maps: Tensor, window: int) -> Tensor:
        pooled = F.max_pool2d(maps.unsqueeze(1), window, stride=1, padding=window // 2).squeeze(1)
        return pooled[:, : maps.shape[1], : maps.shape[2]]

    true_edges, edges = (dilated(1 - maps, width) - (1 - maps) for maps in (hot, probabilities))
    near_true, near = dilated(true_edges, tolerance), dilated(edges, tolerance)
    precision = (edges * near_true).sum((1, 2)) / edges.sum((1, 2)).clamp(min=_SMALL)
    recall = (true_edges * near).sum((1, 2)) / true_edges.sum((1, 2)).clamp(min=_SMALL)
    f1 = 2 * precision * recall / (precision + recall).clamp(min=_SMALL)
    return weight * ((1 - f1) * weights).sum()
