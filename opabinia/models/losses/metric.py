"""Losses of features: those of one identity are to lie near each other, others far. All pairs of a batch count.

They want the batch of all processes (``runtime.exchange.gather_batch``), and compute in float32 under autocast too.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import NonNegative, Positive


class Pairs(NamedTuple):
    """How much of a batch there is to learn from: shares of its samples, as numbers on the device.

    Attributes:
        positive: those of whose identity there is another one.
        negative: those to which there is one of another identity.
        anchors: those that have both; at 0 no loss of this module learns anything.
    """

    positive: Tensor
    negative: Tensor
    anchors: Tensor


def pairs(labels: Tensor) -> Pairs:
    """Count what a batch of identities (int64, B) has to compare.

    Example: of labels [0, 0, 1] two thirds have a positive, all have a negative, two thirds are anchors.
    """
    same = _same(labels)
    positive, negative = same.sum(1) > 1, ~same.all(1)
    return Pairs(*(share.float().mean() for share in (positive, negative, positive & negative)))


@register.metric_loss
def triplet(
    features: Tensor,
    labels: Tensor,
    /,
    *,
    margin: NonNegative = 0.3,
    mining: Literal["hard", "weighted"] = "hard",
    distance: Literal["euclidean", "cosine"] = "euclidean",
    scale: NonNegative = 1.0,
) -> Tensor:
    """For each sample its own identity is to be nearer than any other by a margin (Hermans et al. 2017, batch hard).

    A sample is a positive of its own, at distance 0. The mean is over all B samples; where all are of one identity
    there is nothing to be told from, and they count 0.

    Args:
        features: B x D.
        labels: identities (int64, B).
        margin: by which the negative is to be further away; 0 asks for ever more, by ``log(1 + exp(d_p - d_n))``.
        mining: ``hard``: the furthest positive and the nearest negative; ``weighted``: the means of all of them,
            weighted by a softmax of the distances and of the negative distances (Ristani and Tomasi 2018; FastReID's
            default).
        distance: ``euclidean``, or ``cosine`` for ``2 - 2 cos`` (FastReID's NORM_FEAT).
        scale: multiplies the loss.

    Example: one-dimensional features 0, 1 of one identity and 5, 5 of another: 0; with ``margin=5``: 1.25.
    """
    distances = _euclidean(features) if distance == "euclidean" else _cosine(features)
    same = _same(labels)
    mine = _largest if mining == "hard" else _soft_largest
    positive, negative = mine(distances, same), -mine(-distances, ~same)
    behind = positive - negative
    loss = (behind + margin).relu() if margin > 0 else F.softplus(behind)
    return scale * loss.where(~same.all(1), 0).mean()


@register.metric_loss
def circle(
    features: Tensor,
    labels: Tensor,
    /,
    *,
    margin: NonNegative = 0.25,
    gamma: Positive = 128.0,
    scale: NonNegative = 1.0,
) -> Tensor:
    """Pairwise circle loss: cosines count the more, the further they are from where they should be (Sun et al. 2020).

    The mean is over all B samples; one without a positive or without a negative counts 0.

    Args:
        features: B x D.
        labels: identities (int64, B).
        margin: cosines of positives are to reach ``1 - margin``, those of negatives to fall below ``margin``.
        gamma: how sharply the worst pairs of a sample stand out (FastReID's; the paper takes 256).
        scale: multiplies the loss.
    """
    cosines, alike, unlike = _within(features, labels)
    too_low, too_high = (1 + margin - cosines.detach()).relu(), (cosines.detach() + margin).relu()
    positive = -gamma * too_low * (cosines - (1 - margin))
    negative = gamma * too_high * (cosines - margin)
    return scale * _worst_pairs(positive, alike, negative, unlike)


@register.metric_loss
def cosface(
    features: Tensor,
    labels: Tensor,
    /,
    *,
    margin: NonNegative = 0.25,
    gamma: Positive = 128.0,
    scale: NonNegative = 1.0,
) -> Tensor:
    """Pairwise CosFace: cosines of positives are to be above those of negatives by a margin (FastReID).

    The mean is over all B samples; one without a positive or without a negative counts 0.

    Args:
        features: B x D.
        labels: identities (int64, B).
        margin: by which they are to differ.
        gamma: how sharply the worst pairs of a sample stand out.
        scale: multiplies the loss.
    """
    return scale * _cosface(_within(features, labels), margin, gamma)


@register.metric_loss
def supervised_contrastive(
    features: Tensor, labels: Tensor, /, *, temperature: Positive = 0.1, scale: NonNegative = 1.0
) -> Tensor:
    """Cross entropy of which of all others are of one's own identity (Khosla et al. 2020, L_out in equation 2).

    The mean is over the samples that have a positive; without any it is 0.

    Args:
        features: B x D.
        labels: identities (int64, B).
        temperature: divides cosines; the smaller, the more the nearest negatives count.
        scale: multiplies the loss.
    """
    return scale * _contrastive(_within(features, labels), temperature)


def memory_loss(
    features: Tensor,
    labels: Tensor,
    queue_features: Tensor,
    queue_labels: Tensor,
    *,
    margin: float = 0.25,
    gamma: float = 32.0,
) -> Tensor:
    """:func:`cosface` of a batch against itself and a queue of earlier features (FastReID's MoCo).

    Gradients flow to the features as what is compared, not as what they are compared with. The batch goes into the
    queue after the backward pass, which needs the queue as it was.

    Args:
        features: B x D.
        labels: identities (int64, B).
        queue_features: K x D, each of length 1.
        queue_labels: their identities (int64, K); negative where a place is empty.
        margin: see :func:`cosface`.
        gamma: see :func:`cosface`.
    """
    return _cosface(_with_queue(features, labels, queue_features, queue_labels), margin, gamma)


# --- what is compared -------------------------------------------------------------------------------------------------


class _Compared(NamedTuple):
    """Cosines (B x N) of samples with others, and which of these are of their identity and of another one (bool)."""

    cosines: Tensor
    alike: Tensor
    unlike: Tensor


def _within(features: Tensor, labels: Tensor) -> _Compared:
    same, unit = _same(labels), _unit(features)
    return _Compared(_products(unit, unit), same & ~_itself(same), ~same)


def _with_queue(features: Tensor, labels: Tensor, queue_features: Tensor, queue_labels: Tensor) -> _Compared:
    unit, identities = _unit(features), torch.cat([labels, queue_labels])
    same = _same(labels, identities)
    # Not the products with both in one: the queue may be large, and would be copied.
    cosines = torch.cat([_products(unit, unit.detach()), _products(unit, queue_features.to(unit.dtype))], dim=1)
    return _Compared(cosines, same & ~_itself(same), ~same & (identities >= 0))


def _same(labels: Tensor, others: Tensor | None = None) -> Tensor:
    """Which are of one identity (bool, B x N).

    Raises:
        ValueError: the labels are no class numbers.
    """
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} and type {labels.dtype}: identities are one whole number a sample; "
            "mixed images and several labels an image have none"
        )
    return labels[:, None] == (labels if others is None else others)[None, :]


def _itself(matrix: Tensor) -> Tensor:
    return torch.eye(*matrix.shape, dtype=torch.bool, device=matrix.device)


def _unit(features: Tensor) -> Tensor:
    return F.normalize(_full(features), dim=1)


def _cosine(features: Tensor) -> Tensor:
    unit = _unit(features)
    return 2 - 2 * _products(unit, unit)


def _euclidean(features: Tensor) -> Tensor:
    full = _full(features)
    # The squares of vectors far from 0 are large, and in their difference the distance would get lost.
    centred = full - full.detach().mean(0)
    squares = centred.square().sum(1)
    squared = squares[:, None] + squares[None, :] - 2 * _products(centred, centred)
    # The root has no slope at 0: what is clamped learns nothing, instead of becoming infinite.
    return squared.masked_fill(_itself(squared), 0).clamp(min=1e-12).sqrt()


def _products(one: Tensor, other: Tensor) -> Tensor:
    with torch.autocast(one.device.type, enabled=False):
        return one @ other.T


def _full(features: Tensor) -> Tensor:
    return features if features.dtype == torch.float64 else features.float()


# --- what is made of it -----------------------------------------------------------------------------------------------


def _only(values: Tensor, chosen: Tensor) -> Tensor:
    """``values``, so low where they are not chosen that no maximum and no softmax sees them; finite, so that rows
    without any have gradients, too."""
    return values.masked_fill(~chosen, torch.finfo(values.dtype).min)


def _largest(values: Tensor, chosen: Tensor) -> Tensor:
    return _only(values, chosen).amax(1)


def _soft_largest(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen values of each row, weighted by their softmax."""
    return (_only(values, chosen).softmax(1) * values).sum(1)


def _worst_pairs(positive: Tensor, alike: Tensor, negative: Tensor, unlike: Tensor) -> Tensor:
    """``log(1 + sum of exp(positive + negative) over all pairs of the two)`` of each row; their mean."""
    return F.softplus(_only(positive, alike).logsumexp(1) + _only(negative, unlike).logsumexp(1)).mean()


def _cosface(compared: _Compared, margin: float, gamma: float) -> Tensor:
    cosines, alike, unlike = compared
    return _worst_pairs(-gamma * cosines, alike, gamma * (cosines + margin), unlike)


def _contrastive(compared: _Compared, temperature: float) -> Tensor:
    cosines, alike, unlike = compared
    logits = cosines / temperature
    logs = logits - _only(logits, alike | unlike).logsumexp(1, keepdim=True)
    positives = alike.sum(1)
    each = -logs.where(alike, 0).sum(1) / positives.clamp(min=1)
    return each.sum() / (positives > 0).sum().clamp(min=1)
