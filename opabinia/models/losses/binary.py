"""Losses that ask of every class on its own whether it is there: for several labels an image, or none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from opabinia.config import register
from opabinia.contracts import Fraction, NonNegative
from opabinia.models.losses.cross_entropy import soft_targets


@register.loss
def binary_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    /,
    *,
    label_smoothing: Fraction = 0.0,
    threshold: Fraction | None = None,
    sum_classes: bool = False,
) -> Tensor:
    """Mean binary cross entropy over samples and classes (Wightman et al. 2021, ResNet strikes back, section 2.2).

    Args:
        logits: B x K.
        targets: class numbers (int64, B), or shares of the classes (float, B x K).
        label_smoothing: share e of each target that is spread evenly over the K classes, as in cross entropy.
        threshold: targets above it become 1, others 0, after smoothing; so mixed images have both labels.
        sum_classes: sum over the classes instead of their mean.

    Example: logits [0, 2], targets [1, 0]: 1.4100.
    """
    soft = soft_targets(targets, logits.shape[1], label_smoothing)
    if threshold is not None:
        soft = (soft > threshold).to(logits.dtype)
    loss = F.binary_cross_entropy_with_logits(logits, soft)
    return loss * logits.shape[1] if sum_classes else loss


def known_binary_cross_entropy(outputs: Sequence[Tensor], targets: Tensor, *, normalize: bool = False) -> Tensor:
    """Binary cross entropy where some labels are not known: the mean over the images of which a class is known, summed
    over the classes and over several classifiers of the same images (VISSL's for multi-label data).

    Args:
        outputs: logits of each classifier, B x K.
        targets: 1 where a class is there, 0 where it is not, -1 where nobody knows (B x K).
        normalize: bring the logits of each image to length 1 first.

    Example: logits [[0], [2]], targets [[1], [-1]]: 0.6931, for the second image tells nothing.
    """
    known = targets >= 0
    counts = known.sum(0).clamp(min=1)
    losses = [
        F.binary_cross_entropy_with_logits(
            F.normalize(logits, dim=1) if normalize else logits, targets.clamp(min=0).to(logits.dtype), reduction="none"
        ).where(known, 0)
        / counts
        for logits in outputs
    ]
    return torch.stack(losses).sum()


@register.loss
def binary_focal(logits: Tensor, targets: Tensor, /, *, gamma: NonNegative = 2.0, alpha: Fraction = 0.25) -> Tensor:
    """Binary cross entropy in which what is already known counts less (Lin et al. 2017); summed over classes.

    Args:
        logits: B x K.
        targets: class numbers (int64, B), or shares of the classes (float, B x K).
        gamma: what has probability p of being right counts by ``(1 - p) ** gamma``.
        alpha: weight of classes that are there; of those that are not, ``1 - alpha``.
    """
    soft = soft_targets(targets, logits.shape[1])
    loss: Tensor = sigmoid_focal_loss(logits, soft, alpha=alpha, gamma=gamma)
    return loss.sum(1).mean()


@register.loss
def asymmetric(
    logits: Tensor,
    targets: Tensor,
    /,
    *,
    gamma_positive: NonNegative = 1.0,
    gamma_negative: NonNegative = 4.0,
    margin: Fraction = 0.05,
) -> Tensor:
    """Binary cross entropy with another focus for what is there and what is not (Ridnik et al. 2021); summed over
    classes. For many classes, of which an image has few.

    Args:
        logits: B x K.
        targets: class numbers (int64, B), or 1 for each class that is there (float, B x K).
        gamma_positive: focus on the classes that are there.
        gamma_negative: focus on those that are not.
        margin: probabilities below it do not count for classes that are not there.
    """
    soft = soft_targets(targets, logits.shape[1])
    there = logits.sigmoid()
    absent = (1 - there + margin).clamp(max=1)
    loss = soft * F.logsigmoid(logits) * (1 - there) ** gamma_positive
    loss = loss + (1 - soft) * absent.clamp(min=1e-8).log() * (1 - absent) ** gamma_negative
    return -loss.sum(1).mean()
