"""Contrastive losses, which discriminate views of one image from all other images.

They compute in float32 under autocast too: cosines are divided by small temperatures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent(views: Sequence[Tensor], temperature: float = 0.1) -> Tensor:
    """Normalized temperature-scaled cross entropy (Chen et al. 2020, SimCLR, equation 1), the mean over all anchors.

    The positive of a view is another view of the same image, negatives are the views of other images. Every ordered
    pair of V views counts; the V - 1 other views of the same image are no negatives (VISSL's multi-crop SimCLR).

    Args:
        views: embeddings of each view (B x D), of any length; B of at least 2, two views or more.
        temperature: divides cosines; SimCLR's 0.1 for large batches, 0.5 for small ones.

    Example: golden case ``vissl_simclr``: three images in four dimensions at 0.5 give 2.05588.
    """
    vectors = [F.normalize(view.float(), dim=1) for view in views]
    all_vectors = torch.cat(vectors)
    count = len(vectors[0])
    same = torch.eye(count, dtype=torch.bool, device=all_vectors.device).repeat(1, len(vectors))
    losses = []
    for view, other in permutations(range(len(vectors)), 2):
        logits = _products(vectors[view], all_vectors.T) / temperature
        positive = (vectors[view] * vectors[other]).sum(1, keepdim=True) / temperature
        negatives = logits.masked_fill(same, -torch.inf)
        losses.append(torch.cat([positive, negatives], 1).logsumexp(1) - positive.squeeze(1))
    return torch.stack(losses).mean()


def info_nce(queries: Tensor, keys: Tensor, negatives: Tensor, temperature: float = 0.2) -> Tensor:
    """InfoNCE: cross entropy of finding each query's key among negatives (van den Oord et al. 2018), the mean over
    queries.

    The loss of MoCo (He et al. 2020, equation 1) and the InfoNCE form of VISSL's loss with memory.

    Args:
        queries: B x D, of any length, as all vectors here.
        keys: embeddings of the same images (B x D).
        negatives: K x D for all queries (MoCo's queue), or B x K x D for each query.
        temperature: divides cosines; MoCo v2's 0.2 (0.07 in the first version, and in NPID).

    Example: golden case ``vissl_nce_memory``: two images against three entries each at 0.07 give 0.34718.
    """
    logits = _logits(queries, keys, negatives, temperature)
    return (logits.logsumexp(1) - logits[:, 0]).mean()


def moco_v3_loss(queries: Tensor, keys: Tensor, temperature: float = 0.2) -> Tensor:
    """MoCo v3's loss: InfoNCE with the keys of the other images in the batch as negatives.

    Chen et al. 2021, algorithm 1: the cross entropy times twice the temperature, which makes gradients depend less on
    the temperature; the mean over queries.

    Args:
        queries: B x D, of any length.
        keys: embeddings of the same images in the same order (B x D), of any length.
        temperature: divides cosines; the paper's 0.2.
    """
    logits = _products(F.normalize(queries.float(), dim=1), F.normalize(keys.float(), dim=1).T) / temperature
    return 2 * temperature * (logits.logsumexp(1) - logits.diagonal()).mean()


def memory_nce(
    queries: Tensor, keys: Tensor, noise: Tensor, log_normalizer: Tensor, samples: int, temperature: float = 0.07
) -> Tensor:
    """Noise-contrastive estimation of instance discrimination against a memory bank, the mean over queries.

    An entry of the memory is the query's image with probability ``p = exp(cosine / temperature) / Z``, and noise has
    the density ``K / N``; the loss is binary cross entropy between data and noise for the query's own entry and each of
    the K noise entries (Wu et al. 2018, equations 4 to 7; Mnih and Kavukcuoglu 2013).

    Args:
        queries: B x D, of any length, as all vectors here.
        keys: the memory's entries of the same images (B x D).
        noise: entries drawn from the memory: K x D for all queries, or B x K x D for each query. They may include a
            query's own image, as noise is drawn from all images.
        log_normalizer: the logarithm of Z (0-d); see :func:`estimate_log_normalizer`.
        samples: N, the number of training images.
        temperature: divides cosines; the paper's 0.07.

    Example: golden case ``vissl_nce_memory``: two images, three noise entries each of five, give 2.67709.
    """
    logits = _logits(queries, keys, noise, temperature) - log_normalizer
    # The log odds of data and noise, log p - log(K / N): no exponential could overflow.
    odds = logits - math.log(noise.shape[-2] / samples)
    return (F.softplus(-odds[:, 0]) + F.softplus(odds[:, 1:]).sum(1)).mean()


def estimate_log_normalizer(
    queries: Tensor, keys: Tensor, noise: Tensor, samples: int, temperature: float = 0.07
) -> Tensor:
    """Estimate the logarithm of Z of :func:`memory_nce` from a batch (0-d): N times the mean of ``exp(cosine /
    temperature)`` (Wu et al. 2018, equation 8). See there for the arguments.

    Example: golden case ``vissl_nce_memory``: Z is 446,384.
    """
    logits = _logits(queries.detach(), keys, noise, temperature)
    return logits.flatten().logsumexp(0) - math.log(logits.numel() / samples)


def _logits(queries: Tensor, keys: Tensor, others: Tensor, temperature: float) -> Tensor:
    """Cosines over the temperature (B x (1 + K)): with the key, then with the others."""
    queries, keys, others = (F.normalize(vectors.float(), dim=-1) for vectors in (queries, keys, others))
    positive = (queries * keys).sum(1, keepdim=True)
    rest = _products(queries, others.T) if others.ndim == 2 else _products(others, queries[:, :, None]).squeeze(2)
    return torch.cat([positive, rest], 1) / temperature


def _products(first: Tensor, second: Tensor) -> Tensor:
    with torch.autocast(first.device.type, enabled=False):
        return first @ second
