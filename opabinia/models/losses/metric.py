"""Metric learning losses: pull embeddings of one identity together, push others apart. All pairs of a batch count.

They take the batch gathered from all processes (``runtime.collectives.gather_batch``), and compute in float32 under
autocast too.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import NonNegative, Positive


class Pairs(NamedTuple):
    """Shares of a batch's samples that have pairs, on the device.

    Attributes:
        positive: with another sample of the same identity.
        negative: with a sample of another identity.
        anchors: with both; at 0 no loss of this module has a gradient.
    """

    positive: Tensor
    negative: Tensor
    anchors: Tensor


def count_pairs(labels: Tensor) -> Pairs:
    """Compute the shares of samples of a batch of identities (int64, B) that have positives, negatives, and both.

    Example: of labels [0, 0, 1] two thirds have a positive, all have a negative, two thirds are anchors.
    """
    same = _same(labels)
    positive, negative = same.sum(1) > 1, ~same.all(1)
    return Pairs(*(mask.float().mean() for mask in (positive, negative, positive & negative)))


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
    """Triplet loss: positives should be nearer than negatives by a margin (Hermans et al. 2017, batch hard).

    A sample is a positive of its own, at distance 0. The mean is over all B samples; without any negative the loss is
    0.

    Args:
        features: B x D.
        labels: identities (int64, B).
        margin: distance by which negatives should be further away; 0: soft margin, ``log(1 + exp(d_p - d_n))``.
        mining: ``hard``: the furthest positive and the nearest negative; ``weighted``: means of all of them, weighted
            by a softmax of the distances and of the negative distances (Ristani and Tomasi 2018; FastReID's default).
        distance: ``euclidean``, or ``cosine`` for ``2 - 2 cos`` (FastReID's NORM_FEAT).
        scale: multiplies the loss.

    Example: one-dimensional features 0, 1 of one identity and 5, 5 of another: 0; with ``margin=5``: 1.25.
    """
    distances = _euclidean(features) if distance == "euclidean" else _cosine_distance(features)
    same = _same(labels)
    mine = _masked_max if mining == "hard" else _masked_softmax_mean
    positive, negative = mine(distances, same), -mine(-distances, ~same)
    difference = positive - negative
    loss = (difference + margin).relu() if margin > 0 else F.softplus(difference)
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
    """Pairwise circle loss: cosines are weighted by their distance from the optimum (Sun et al. 2020).

    The mean is over all B samples; one without a positive or without a negative counts 0.

    Args:
        features: B x D.
        labels: identities (int64, B).
        margin: cosines of positives should be above ``1 - margin``, those of negatives below ``margin``.
        gamma: scale of cosines, which emphasizes the hardest pairs (FastReID's; the paper takes 256).
        scale: multiplies the loss.
    """
    cosines, positive, negative = _within_batch(features, labels)
    positive_weight, negative_weight = (1 + margin - cosines.detach()).relu(), (cosines.detach() + margin).relu()
    positive_logits = -gamma * positive_weight * (cosines - (1 - margin))
    negative_logits = gamma * negative_weight * (cosines - margin)
    return scale * _pair_loss(positive_logits, positive, negative_logits, negative)


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
    """Pairwise CosFace: cosines of positives should be above those of negatives by a margin (FastReID).

    The mean is over all B samples; one without a positive or without a negative counts 0.

    Args:
        features: B x D.
        labels: identities (int64, B).
        margin: difference of the cosines.
        gamma: scale of cosines, which emphasizes the hardest pairs.
        scale: multiplies the loss.
    """
    return scale * _cosface(_within_batch(features, labels), margin, gamma)


@register.metric_loss
def supervised_contrastive(
    features: Tensor, labels: Tensor, /, *, temperature: Positive = 0.1, scale: NonNegative = 1.0
) -> Tensor:
    """Supervised contrastive loss: cross entropy of finding the positives among all other samples (Khosla et al. 2020,
    L_out in equation 2).

    The mean is over the samples that have a positive; without any it is 0.

    Args:
        features: B x D.
        labels: identities (int64, B).
        temperature: divides cosines; smaller values emphasize the nearest negatives.
        scale: multiplies the loss.
    """
    cosines, positive, negative = _within_batch(features, labels)
    logits = cosines / temperature
    logs = logits - _masked(logits, positive | negative).logsumexp(1, keepdim=True)
    counts = positive.sum(1)
    losses = -logs.where(positive, 0).sum(1) / counts.clamp(min=1)
    return scale * (losses.sum() / (counts > 0).sum().clamp(min=1))


@register.metric_loss
def multi_similarity(
    features: Tensor,
    labels: Tensor,
    /,
    *,
    alpha: Positive = 2.0,
    beta: Positive = 50.0,
    base: float = 0.5,
    epsilon: NonNegative = 0.1,
    scale: NonNegative = 1.0,
) -> Tensor:
    """Multi-similarity loss: soft sums over the informative pairs of a sample (Wang et al. 2019, eq. 10 to 15).

    A negative counts if its cosine is above that of the hardest positive minus ``epsilon``, a positive if its cosine is
    below that of the hardest negative plus ``epsilon``. The mean is over all B samples; one without such a positive and
    such a negative counts 0.

    Args:
        features: B x D.
        labels: identities (int64, B).
        alpha: scale of the cosines of positives (the paper's).
        beta: scale of the cosines of negatives (the paper's; the authors' code has 40).
        base: cosine at which pairs weigh half (the authors' code; lambda in the paper).
        epsilon: margin of the mining (the paper's).
        scale: multiplies the loss.
    """
    cosines, positive, negative = _within_batch(features, labels)
    hardest_positive = -_masked_max(-cosines, positive)[:, None]
    hardest_negative = _masked_max(cosines, negative)[:, None]
    has_both = (positive.any(1) & negative.any(1))[:, None]
    negative &= (cosines + epsilon > hardest_positive) & has_both
    positive &= (cosines - epsilon < hardest_negative) & has_both
    pull = F.softplus(_masked(-alpha * (cosines - base), positive).logsumexp(1)) / alpha
    push = F.softplus(_masked(beta * (cosines - base), negative).logsumexp(1)) / beta
    return scale * (pull + push).where(positive.any(1) & negative.any(1), 0).mean()


@register.loss
def proxy_anchor(logits: Tensor, labels: Tensor, /, *, margin: NonNegative = 3.2) -> Tensor:
    """Proxy anchor loss: each class vector pulls the samples of its class and pushes all others of the batch (Kim et
    al. 2020, equation 4).

    The class vectors of the head ``{name: cosface, scale: 32, margin: 0}`` are the proxies; its scale is the paper's
    alpha. Proxies usually learn faster: ``param_groups.rules: [{pattern: ^head, lr_factor: 100}]``.

    Args:
        logits: scaled cosines of the batch of all ranks (B x K).
        labels: identities (int64, B).
        margin: in logits: the paper's alpha times its delta, 32 x 0.1.
    """
    values = _at_least_float(logits)
    positive = F.one_hot(labels, values.shape[1]).bool()
    pull = F.softplus(_masked(margin - values, positive).logsumexp(0))
    push = F.softplus(_masked(values + margin, ~positive).logsumexp(0))
    return pull.sum() / positive.any(0).sum() + push.mean()


def compares_samples(loss: object) -> bool:
    """Return whether a loss of logits compares the samples of a batch, so that it needs those of all ranks."""
    return getattr(loss, "func", loss) is proxy_anchor


def cross_batch_memory_loss(
    features: Tensor,
    labels: Tensor,
    queue_features: Tensor,
    queue_labels: Tensor,
    *,
    margin: float = 0.25,
    gamma: float = 32.0,
) -> Tensor:
    """:func:`cosface` of a batch against itself and a queue of earlier features (FastReID's MoCo).

    Gradients flow to the features as anchors, not as positives and negatives. Push the batch into the queue after the
    backward pass, which needs the queue unchanged.

    Args:
        features: B x D.
        labels: identities (int64, B).
        queue_features: K x D, each of length 1.
        queue_labels: their identities (int64, K); negative for empty slots.
        margin: see :func:`cosface`.
        gamma: see :func:`cosface`.
    """
    unit, identities = _unit(features), torch.cat([labels, queue_labels])
    same = _same(labels, identities)
    # Two products instead of one with a concatenation, which would copy the queue.
    cosines = torch.cat([_products(unit, unit.detach()), _products(unit, queue_features.to(unit.dtype))], dim=1)
    pairs = _Cosines(cosines, same & ~_diagonal(same), ~same & (identities >= 0))
    return _cosface(pairs, margin, gamma)


# --- similarities -----------------------------------------------------------------------------------------------------


class _Cosines(NamedTuple):
    """Cosines (B x N) of anchors with other samples, and which of these are positives and negatives (bool)."""

    cosines: Tensor
    positive: Tensor
    negative: Tensor


def _within_batch(features: Tensor, labels: Tensor) -> _Cosines:
    same, unit = _same(labels), _unit(features)
    return _Cosines(_products(unit, unit), same & ~_diagonal(same), ~same)


def _same(labels: Tensor, others: Tensor | None = None) -> Tensor:
    """Return which pairs are of one identity (bool, B x N).

    Raises:
        ValueError: labels are not one integer per sample.
    """
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} and type {labels.dtype}: identities are one whole number a sample; "
            "mixed images and several labels an image have none"
        )
    return labels[:, None] == (labels if others is None else others)[None, :]


def _diagonal(matrix: Tensor) -> Tensor:
    return torch.eye(*matrix.shape, dtype=torch.bool, device=matrix.device)


def _unit(features: Tensor) -> Tensor:
    return F.normalize(_at_least_float(features), dim=1)


def _cosine_distance(features: Tensor) -> Tensor:
    unit = _unit(features)
    return 2 - 2 * _products(unit, unit)


def _euclidean(features: Tensor) -> Tensor:
    vectors = _at_least_float(features)
    # Squares of vectors far from 0 are large, and their difference would lose the distance to rounding.
    centered = vectors - vectors.detach().mean(0)
    squares = centered.square().sum(1)
    squared = squares[:, None] + squares[None, :] - 2 * _products(centered, centered)
    # The root has an infinite slope at 0: clamped distances get no gradient instead.
    return squared.masked_fill(_diagonal(squared), 0).clamp(min=1e-12).sqrt()


def _products(first: Tensor, second: Tensor) -> Tensor:
    with torch.autocast(first.device.type, enabled=False):
        return first @ second.T


def _at_least_float(features: Tensor) -> Tensor:
    return features if features.dtype == torch.float64 else features.float()


# --- reductions -------------------------------------------------------------------------------------------------------


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    """Replace values outside of the mask by the lowest number, which no maximum and no softmax selects; it is finite,
    so that rows without any value have gradients, too."""
    return values.masked_fill(~mask, torch.finfo(values.dtype).min)


def _masked_max(values: Tensor, mask: Tensor) -> Tensor:
    return _masked(values, mask).amax(1)


def _masked_softmax_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the masked values of each row, weighted by their softmax."""
    return (_masked(values, mask).softmax(1) * values).sum(1)


def _pair_loss(positive_logits: Tensor, positive: Tensor, negative_logits: Tensor, negative: Tensor) -> Tensor:
    """Mean over rows of ``log(1 + sum of exp(positive + negative) over all pairs of the two)``."""
    positive_sum = _masked(positive_logits, positive).logsumexp(1)
    return F.softplus(positive_sum + _masked(negative_logits, negative).logsumexp(1)).mean()


def _cosface(pairs: _Cosines, margin: float, gamma: float) -> Tensor:
    cosines, positive, negative = pairs
    return _pair_loss(-gamma * cosines, positive, gamma * (cosines + margin), negative)
