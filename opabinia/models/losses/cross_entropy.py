"""Cross entropy over classes, for class labels and for soft targets (mixed images)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Fraction, NonNegative

AveragedSamples = Literal["all", "nonzero"]
SmoothingClasses = Literal["all", "others"]


def soft_targets(
    targets: Tensor, classes: int, smoothing: float = 0.0, smoothing_classes: SmoothingClasses = "all"
) -> Tensor:
    """Convert targets to smoothed probabilities (float32, B x K).

    Args:
        targets: class labels (int64, B) or probabilities (float, B x K).
        classes: K.
        smoothing: share e of the target that is spread.
        smoothing_classes: over ``all`` K classes (e/K each), or over the K - 1 ``others`` (e/(K-1) each).

    Example: half of class 1 and half of 2, of four, smoothed by 0.1: [0.025, 0.475, 0.475, 0.025].
    """
    hard = targets if targets.is_floating_point() else F.one_hot(targets, classes).float()
    if not smoothing:
        return hard
    if smoothing_classes == "all":
        return hard * (1 - smoothing) + smoothing / classes
    return hard * (1 - smoothing) + (1 - hard) * (smoothing / (classes - 1))


@register.loss
def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    /,
    *,
    label_smoothing: Fraction = 0.0,
    smoothing_classes: SmoothingClasses = "all",
    averaged_samples: AveragedSamples = "all",
) -> Tensor:
    """Mean cross entropy with label smoothing (Szegedy et al. 2016, section 7).

    Args:
        logits: B x K.
        targets: class labels (int64, B) or probabilities (float, B x K). A row of zeros has the loss 0.
        label_smoothing: share e of the target that is spread over other classes.
        smoothing_classes: ``all``: e/K for all K classes, as in torch, basecls and VISSL; ``others``: e/(K-1) for the
            other classes, as in FastReID.
        averaged_samples: ``all``, or those with a ``nonzero`` loss (FastReID).

    Example: logits [2, 1, 0.1], class 0: 0.4170; with ``label_smoothing=0.1``: 0.5137.
    """
    if label_smoothing and targets.is_floating_point():
        targets, label_smoothing = _smooth_rows(targets, label_smoothing, smoothing_classes), 0.0
    elif label_smoothing and smoothing_classes == "others":
        targets, label_smoothing = soft_targets(targets, logits.shape[1], label_smoothing, "others"), 0.0
    losses = F.cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction="none")
    return _average(losses, averaged_samples)


def _smooth_rows(targets: Tensor, smoothing: float, smoothing_classes: SmoothingClasses) -> Tensor:
    """Smooth probabilities (B x K); each row keeps its sum."""
    sums, classes = targets.sum(1, keepdim=True), targets.shape[1]
    if smoothing_classes == "all":
        return targets * (1 - smoothing) + sums * (smoothing / classes)
    return targets * (1 - smoothing) + (sums - targets) * (smoothing / (classes - 1))


@register.loss
def adaptive_cross_entropy(
    logits: Tensor, targets: Tensor, /, *, alpha: Fraction = 0.2, averaged_samples: AveragedSamples = "all"
) -> Tensor:
    """Cross entropy whose label smoothing grows with the probability p of the true class (FastReID, EPSILON < 0).

    The share ``alpha * p`` of the target is spread over the other classes; no gradient flows through p.

    Args:
        logits: B x K.
        targets: class labels (int64, B) or probabilities (float, B x K).
        alpha: largest share that is spread.
        averaged_samples: ``all``, or those with a ``nonzero`` loss (FastReID).
    """
    hard = soft_targets(targets, logits.shape[1])
    smoothing = alpha * (logits.detach().softmax(1) * hard).sum(1, keepdim=True)
    smooth = hard * (1 - smoothing) + (1 - hard) * smoothing / (logits.shape[1] - 1)
    return _average(F.cross_entropy(logits, smooth, reduction="none"), averaged_samples)


@register.loss
def focal(logits: Tensor, targets: Tensor, /, *, gamma: NonNegative = 2.0, alpha: NonNegative = 1.0) -> Tensor:
    """Focal loss over a softmax (Lin et al. 2017).

    Args:
        logits: B x K.
        targets: class labels (int64, B) or probabilities (float, B x K).
        gamma: focusing exponent: classes of probability p have weight ``(1 - p) ** gamma``; 0 is cross entropy.
        alpha: weight of all classes (FastReID's is 0.25).
    """
    logs = logits.log_softmax(1)
    # A power below 1 has an infinite slope at 0, which certain predictions reach.
    weights = alpha * (1 - logs.exp()).clamp(min=torch.finfo(logs.dtype).tiny) ** gamma
    if targets.is_floating_point():
        return -(targets * weights * logs).sum(1).mean()
    return F.nll_loss(weights * logs, targets)


def _average(losses: Tensor, samples: AveragedSamples) -> Tensor:
    return losses.mean() if samples == "all" else losses.sum() / losses.count_nonzero().clamp(min=1)


EXCLUSIVE = (cross_entropy, adaptive_cross_entropy, focal)
"""Losses for one class per sample."""


def is_exclusive(loss: object) -> bool:
    """Return whether a loss assumes mutually exclusive classes, so that it does not fit multi-label data."""
    return getattr(loss, "func", loss) in EXCLUSIVE
