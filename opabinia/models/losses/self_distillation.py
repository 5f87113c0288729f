"""Losses of a student that learns from what its own slower copy says."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def warmed_temperature(step: int, length: int, first: float, last: float) -> float:
    """A teacher's temperature: along a line over the first ``length`` steps, then ``last`` (Caron et al. 2021, DINO).

    Args:
        step: steps done.
        length: of the warm-up, in steps; its first step has ``first`` and its last one ``last``.
        first: at the beginning.
        last: at the end of the warm-up and behind it.

    Example: ``[warmed_temperature(step, 4, 0.04, 0.07) for step in range(5)]`` is [0.04, 0.05, 0.06, 0.07, 0.07].
    """
    if step >= length:
        return last
    return first + (last - first) * step / max(1, length - 1)


def centred(logits: Tensor, centre: Tensor, temperature: float) -> Tensor:
    """Targets of a student (float32, ... x K): a sharpened softmax around the mean of what a teacher says.

    The centre keeps one output from winning everywhere, the temperature keeps all from being alike (DINO, section 3.1).

    Args:
        logits: of the teacher (... x K).
        centre: K, see :func:`moved_centre`.
        temperature: divides them; DINO's 0.04 to 0.07.
    """
    return ((logits.float() - centre) / temperature).softmax(-1)


def moved_centre(centre: Tensor, mean: Tensor, momentum: float = 0.9) -> Tensor:
    """The centre (K) after a step whose teacher said ``mean`` (K) on average, in the batch of all processes.

    Example: golden case ``vissl_dino``: from 0, a mean of [1.2225, -0.5775, -0.6525] makes [0.12225, -0.05775,
    -0.06525].
    """
    return torch.lerp(mean, centre, momentum)


def dino(student: Sequence[Tensor], targets: Sequence[Tensor], temperature: float = 0.1) -> Tensor:
    """Cross entropy between what a teacher says of one view and a student of another (DINO, equation 3).

    The mean over images and over all pairs of views, except those in which both look at the same one.

    Args:
        student: logits of V views (B x K each), V of at least 2.
        targets: probabilities of the first T of these views (B x K each); they take no gradient.
        temperature: divides the student's logits.
    """
    pairs = len(targets) * len(student) - len(targets)
    losses = []
    for number, view in enumerate(student):
        others = [target for other, target in enumerate(targets) if other != number]
        if others:
            losses.append(F.cross_entropy(view.float() / temperature, torch.stack(others).sum(0)))
    return torch.stack(losses).sum() / pairs


def hidden_patches(student: Tensor, targets: Tensor, mask: Tensor, temperature: float = 0.1) -> Tensor:
    """Cross entropy of the hidden patches of images (Zhou et al. 2022, iBOT, equation 2), every image weighing alike.

    The mean over an image's hidden patches, then over all images; one with none counts as 0.

    Args:
        student: logits of patches, some of which it did not see (B x N x K).
        targets: probabilities from a teacher that saw all of them (B x N x K).
        mask: which were hidden (bool, B x N).
        temperature: divides the student's logits.
    """
    each = F.cross_entropy(student.float().flatten(0, 1) / temperature, targets.flatten(0, 1), reduction="none")
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
    return (each.view_as(mask) * weights).sum(1).mean()


def koleo(vectors: Tensor, eps: float = 1e-8) -> Tensor:
    """Spreads vectors (B x D) over the sphere: minus the mean logarithm of the distance of each to its nearest
    neighbour (Sablayrolles et al. 2019, equation 2; Oquab et al. 2023, DINOv2).

    Args:
        vectors: of at least two images; they are normalised here.
        eps: keeps equal vectors finite.

    Example: of [[1, 0], [0, 1]] minus half the logarithm of 2, -0.3466.
    """
    vectors = F.normalize(vectors.float(), dim=1)
    # In half precision many neighbours would be equally near.
    with torch.no_grad(), torch.autocast(vectors.device.type, enabled=False):
        nearest = (vectors @ vectors.T).fill_diagonal_(-2).argmax(1)
    return -(F.pairwise_distance(vectors, vectors[nearest], eps=eps) + eps).log().mean()
