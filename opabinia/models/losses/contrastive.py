"""Losses that tell views of one image from all other images.

They compute in float32 under autocast, too: cosines are divided by small temperatures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent(views: Sequence[Tensor], temperature: float = 0.1) -> Tensor:
    """Normalised temperature-scaled cross entropy (Chen et al. 2020, SimCLR, equation 1), the mean over all anchors.

    A view of an image is to be nearer to the other view than views of other images are. Of V views every ordered pair
    counts, with the V - 1 others of the same image left out of the negatives (VISSL's multi-crop SimCLR).

    Args:
        views: vectors of each view (B x D), of any length; B of at least 2, two views or more.
        temperature: divides cosines; SimCLR's 0.1 for large batches, 0.5 for small ones.

    Example: golden case ``vissl_simclr``: three images in four dimensions at 0.5 give 2.05588.
    """
    vectors = [F.normalize(view.float(), dim=1) for view in views]
    everything = torch.cat(vectors)
    count = len(vectors[0])
    same = torch.eye(count, dtype=torch.bool, device=everything.device).repeat(1, len(vectors))
    losses = []
    for one, other in permutations(range(len(vectors)), 2):
        logits = _products(vectors[one], everything.T) / temperature
        positive = (vectors[one] * vectors[other]).sum(1, keepdim=True) / temperature
        negatives = logits.masked_fill(same, -torch.inf)
        losses.append(torch.cat([positive, negatives], 1).logsumexp(1) - positive.squeeze(1))
    return torch.stack(losses).mean()


def info_nce(queries: Tensor, keys: Tensor, others: Tensor, temperature: float = 0.2) -> Tensor:
    """How far each query is from telling its key from other vectors (van den Oord et al. 2018), the mean over queries.

    The cross entropy of MoCo (He et al. 2020, equation 1) and the InfoNCE form of VISSL's loss with memory.

    Args:
        queries: B x D, of any length, as all vectors here.
        keys: of the same images (B x D).
        others: to tell the keys from: K x D for all queries (MoCo's queue), or B x K x D for each its own.
        temperature: divides cosines; MoCo v2's 0.2 (0.07 in the first one, and in NPID).

    Example: golden case ``vissl_nce_memory``: two images against three entries each at 0.07 give 0.34718.
    """
    logits = _against(queries, keys, others, temperature)
    return (logits.logsumexp(1) - logits[:, 0]).mean()


def against_keys(queries: Tensor, keys: Tensor, temperature: float = 0.2) -> Tensor:
    """MoCo v3's loss: each query is to tell its key from the keys of the other images in the batch.

    Chen et al. 2021, algorithm 1: the cross entropy times twice the temperature, so that gradients do not depend on the
    temperature as much; the mean over queries.

    Args:
        queries: B x D, of any length.
        keys: of the same images in the same order (B x D), of any length.
        temperature: divides cosines; the paper's 0.2.
    """
    logits = _products(F.normalize(queries.float(), dim=1), F.normalize(keys.float(), dim=1).T) / temperature
    return 2 * temperature * (logits.logsumexp(1) - logits.diagonal()).mean()


def memory_nce(
    queries: Tensor, keys: Tensor, others: Tensor, log_normalizer: Tensor, samples: int, temperature: float = 0.07
) -> Tensor:
    """Noise-contrastive estimation of which image of the training data each query is of, the mean over queries.

    An entry of the memory has the probability ``p = exp(cosine / temperature) / Z`` to be the query's image, and noise
    has ``K / N``; whether an entry is the query's own or noise is a binary question for the own one and each of the K
    others (Wu et al. 2018, equations 4 to 7; Mnih and Kavukcuoglu 2013).

    Args:
        queries: B x D, of any length, as all vectors here.
        keys: what the memory has of the same images (B x D).
        others: drawn from the memory: K x D for all queries, or B x K x D for each its own. A query's own image may be
            among them, as noise is drawn from all images.
        log_normalizer: the logarithm of Z (0-d); see :func:`log_normalizer_of`.
        samples: N; images of the training data.
        temperature: divides cosines; the paper's 0.07.

    Example: golden case ``vissl_nce_memory``: two images, three others each of five, give 2.67709.
    """
    logits = _against(queries, keys, others, temperature) - log_normalizer
    # The log odds of being the own one, log p - log(K / N): nothing is exponentiated that could overflow.
    odds = logits - math.log(others.shape[-2] / samples)
    return (F.softplus(-odds[:, 0]) + F.softplus(odds[:, 1:]).sum(1)).mean()


def log_normalizer_of(queries: Tensor, keys: Tensor, others: Tensor, samples: int, temperature: float = 0.07) -> Tensor:
    """The logarithm of Z in :func:`memory_nce` as a batch estimates it (0-d): N times the mean of
    ``exp(cosine / temperature)`` (Wu et al. 2018, equation 8). See there for the arguments.

    Example: golden case ``vissl_nce_memory``: Z is 446,384.
    """
    logits = _against(queries.detach(), keys, others, temperature)
    return logits.flatten().logsumexp(0) - math.log(logits.numel() / samples)


def _against(queries: Tensor, keys: Tensor, others: Tensor, temperature: float) -> Tensor:
    """Cosines over the temperature (B x (1 + K)): with the key, then with the others."""
    queries, keys, others = (F.normalize(one.float(), dim=-1) for one in (queries, keys, others))
    own = (queries * keys).sum(1, keepdim=True)
    rest = _products(queries, others.T) if others.ndim == 2 else _products(others, queries[:, :, None]).squeeze(2)
    return torch.cat([own, rest], 1) / temperature


def _products(one: Tensor, other: Tensor) -> Tensor:
    with torch.autocast(one.device.type, enabled=False):
        return one @ other
