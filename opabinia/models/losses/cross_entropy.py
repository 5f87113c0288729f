"""Cross entropy over classes, for labels and for mixed (soft) targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Fraction, NonNegative

MeanOver = Literal["all", "nonzero"]


def soft_targets(
    targets: Tensor, classes: int, smoothing: float = 0.0, spread: Literal["all", "others"] = "all"
) -> Tensor:
    """Targets as probabilities (float32, B x K), smoothed.

    Args:
        targets: class numbers (int64, B) or probabilities (float, B x K).
        classes: K.
        smoothing: share e of the target that is spread.
        spread: over ``all`` K classes (e/K each), or over the K - 1 ``others`` (e/(K-1) each).

    Example: half of class 1 and half of 2, of four, smoothed by 0.1: [0.025, 0.475, 0.475, 0.025].
    """
    hard = targets if targets.is_floating_point() else F.one_hot(targets, classes).float()
    if not smoothing:
        return hard
    if spread == "all":
        return hard * (1 - smoothing) + smoothing / classes
    return hard * (1 - smoothing) + (1 - hard) * (smoothing / (classes - 1))


@register.loss
def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    /,
    *,
    label_smoothing: Fraction = 0.0,
    smooth_over: Literal["all", "others"] = "all",
    mean_over: MeanOver = "all",
) -> Tensor:
    """Mean cross entropy, with label smoothing (Szegedy et al. 2016, section 7).

    Args:
        logits: B x K.
        targets: class numbers (int64, B) or probabilities (float, B x K).
        label_smoothing: share e of the target that is spread over other classes.
        smooth_over: e/K for all K classes, as in torch, basecls and VISSL; or e/(K-1) for the others, as in FastReID.
        mean_over: all samples, or those whose loss is not 0 (FastReID).

    Example: logits [2, 1, 0.1], class 0: 0.4170; with ``label_smoothing=0.1``: 0.5137.
    """
    if smooth_over == "others" and label_smoothing:
        targets, label_smoothing = soft_targets(targets, logits.shape[1], label_smoothing, "others"), 0.0
    return _mean(F.cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction="none"), mean_over)


def summed_cross_entropy(
    outputs: Sequence[Tensor],
    targets: Tensor,
    *,
    temperature: float = 1.0,
    normalize: bool = False,
    label_smoothing: float = 0.0,
    ignore: int = -1,
) -> Tensor:
    """Mean cross entropy of several classifiers of the same images, added up (VISSL's loss of several outputs).

    Args:
        outputs: logits of each classifier, B x K.
        targets: class numbers (int64, B).
        temperature: divides logits.
        normalize: bring the logits of each image to length 1 first.
        label_smoothing: share e of the target that is spread, e/K for all K classes.
        ignore: images with this number are in no mean; the loss is 0 when all are.

    Example: logits [2, 1, 0.1], class 0, twice: 0.8340.
    """
    known = (targets != ignore).sum().clamp(min=1)
    ways = {"ignore_index": ignore, "label_smoothing": label_smoothing, "reduction": "sum"}
    losses = [
        F.cross_entropy((F.normalize(logits, dim=1) if normalize else logits) / temperature, targets, **ways) / known  # type: ignore[arg-type]
        for logits in outputs
    ]
    return torch.stack(losses).sum()


@register.loss
def adaptive_cross_entropy(
    logits: Tensor, targets: Tensor, /, *, alpha: Fraction = 0.2, mean_over: MeanOver = "all"
) -> Tensor:
    """Cross entropy whose smoothing grows with the model's own confidence in the right class (FastReID, EPSILON < 0).

    The share ``alpha * p`` of the target goes evenly to the other classes; p is not learned from.

    Args:
        logits: B x K.
        targets: class numbers (int64, B) or probabilities (float, B x K).
        alpha: largest share that is spread.
        mean_over: all samples, or those whose loss is not 0 (FastReID).
    """
    hard = soft_targets(targets, logits.shape[1])
    share = alpha * (logits.detach().softmax(1) * hard).sum(1, keepdim=True)
    smooth = hard * (1 - share) + (1 - hard) * share / (logits.shape[1] - 1)
    return _mean(F.cross_entropy(logits, smooth, reduction="none"), mean_over)


@register.loss
def focal(logits: Tensor, targets: Tensor, /, *, gamma: NonNegative = 2.0, alpha: NonNegative = 1.0) -> Tensor:
    """Cross entropy in which classes that are already likely count less (Lin et al. 2017, over a softmax).

    Args:
        logits: B x K.
        targets: class numbers (int64, B) or probabilities (float, B x K).
        gamma: each class counts by ``(1 - p) ** gamma``; 0 is cross entropy.
        alpha: weight of all classes (FastReID's is 0.25).
    """
    logs = logits.log_softmax(1)
    # A power below 1 is infinitely steep at 0, where a certain sample stands.
    weights = alpha * (1 - logs.exp()).clamp(min=torch.finfo(logs.dtype).tiny) ** gamma
    if targets.is_floating_point():
        return -(targets * weights * logs).sum(1).mean()
    return F.nll_loss(weights * logs, targets)


def _mean(losses: Tensor, over: MeanOver) -> Tensor:
    return losses.mean() if over == "all" else losses.sum() / losses.count_nonzero().clamp(min=1)


EXCLUSIVE = (cross_entropy, adaptive_cross_entropy, focal)
"""Losses of which each sample has one class: they compare classes with each other."""


def is_exclusive(loss: object) -> bool:
    """Whether a loss takes classes to exclude each other, so that it does not fit multi-label data."""
    return getattr(loss, "func", loss) in EXCLUSIVE
