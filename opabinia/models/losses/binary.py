"""Binary losses, one per class: for multi-label data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from opabinia.config import register
from opabinia.contracts import DataMismatch, Fraction, NonNegative
from opabinia.models.losses.cross_entropy import soft_targets
from opabinia.runtime.device import move_tensor


@register.loss
def binary_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    /,
    *,
    label_smoothing: Fraction = 0.0,
    target_threshold: Fraction | None = None,
    sum_classes: bool = False,
) -> Tensor:
    """Binary cross entropy, averaged over samples and classes (Wightman et al. 2021, ResNet strikes back, section 2.2).

    Args:
        logits: B x K.
        targets: class labels (int64, B), or probabilities of the classes (float, B x K).
        label_smoothing: share e of each target that is spread evenly over the K classes, as in cross entropy.
        target_threshold: targets above it become 1, others 0, after smoothing; mixed images then have both labels.
        sum_classes: sum over the classes instead of averaging.

    Example: logits [0, 2], targets [1, 0]: 1.4100.
    """
    soft = soft_targets(targets, logits.shape[1], label_smoothing)
    if target_threshold is not None:
        soft = (soft > target_threshold).to(logits.dtype)
    loss = F.binary_cross_entropy_with_logits(logits, soft)
    return loss * logits.shape[1] if sum_classes else loss


def frequency_weighted_binary_cross_entropy(logits: Tensor, targets: Tensor, shares: Sequence[float]) -> Tensor:
    """Binary cross entropy whose terms have the weight exp(1 - share) for positive and exp(share) for negative labels,
    averaged over samples and classes (Li et al. 2015, DeepMAR, equation 3, as in FastReID's FastAttr).

    Args:
        logits: B x K.
        targets: 1 for each positive label (float, B x K).
        shares: share of the training samples that have each label (K).

    Example: logits [0, 0], targets [1, 0], shares [0.2, 0.2]: (e^0.8 + e^0.2) / 2 * 0.6931 = 1.1946.
    """
    positive = move_tensor(torch.tensor(shares, dtype=logits.dtype), logits.device)
    weights = torch.where(targets > 0.5, 1 - positive, positive).exp()
    return F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), weights)


@register.loss
def binary_focal(logits: Tensor, targets: Tensor, /, *, gamma: NonNegative = 2.0, alpha: Fraction = 0.25) -> Tensor:
    """Binary focal loss, summed over classes (Lin et al. 2017).

    Args:
        logits: B x K.
        targets: class labels (int64, B), or probabilities of the classes (float, B x K).
        gamma: focusing exponent: predictions with probability p of being right have weight ``(1 - p) ** gamma``.
        alpha: weight of positive classes; negative ones have ``1 - alpha``.
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
    """Asymmetric loss: binary cross entropy with different focusing of positive and negative classes, summed over
    classes (Ridnik et al. 2021). For many classes of which an image has few.

    Args:
        logits: B x K.
        targets: class labels (int64, B), or 1 for each positive class (float, B x K).
        gamma_positive: focusing exponent of positive classes.
        gamma_negative: focusing exponent of negative classes.
        margin: probabilities of negative classes below it have no loss.
    """
    soft = soft_targets(targets, logits.shape[1])
    positive = logits.sigmoid()
    negative = (1 - positive + margin).clamp(max=1)
    loss = soft * F.logsigmoid(logits) * (1 - positive) ** gamma_positive
    loss = loss + (1 - soft) * negative.clamp(min=1e-8).log() * (1 - negative) ** gamma_negative
    return -loss.sum(1).mean()


def draw_federated_classes(labels: Tensor, weights: Tensor, count: int) -> Tensor:
    """Return the classes that the federated loss is summed over: those of the regions, and others drawn without
    replacement until there are ``count``, the background included (bool, K; detectron2). This waits for the device.

    Args:
        labels: labels of regions (int64, R); K is background.
        weights: weights of the classes and of the background, which is 0 (K + 1).
        count: number of classes.

    Raises:
        DataMismatch: the numbers of images, which the weights are made of, are not known.
    """
    if len(weights) == 1:
        raise DataMismatch(
            "class_loss: federated draws classes by their numbers of images, which this training data does not have: "
            "take a source of annotation files, such as coco, or class_loss: sigmoid"
        )
    chosen = torch.zeros_like(weights, dtype=torch.bool)
    chosen[labels] = True
    others = weights.masked_fill(chosen, 0)
    missing = min(count - int(chosen.sum()), int(others.count_nonzero()))
    if missing > 0:
        chosen[torch.multinomial(others, missing)] = True
    return chosen[:-1]
