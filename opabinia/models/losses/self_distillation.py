"""Losses of self-distillation: a student learns from an EMA teacher (DINO, iBOT, DINOv2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def warmup_temperature(step: int, length: int, first: float, last: float) -> float:
    """Temperature of the teacher: linear warm-up over ``length`` steps, then ``last`` (Caron et al. 2021, DINO).

    Args:
        step: completed steps.
        length: length of the warm-up, in steps; its first step has ``first`` and its last one ``last``.
        first: initial temperature.
        last: temperature from the end of the warm-up on.

    Example: ``[warmup_temperature(step, 4, 0.04, 0.07) for step in range(5)]`` is [0.04, 0.05, 0.06, 0.07, 0.07].
    """
    if step >= length:
        return last
    return first + (last - first) * step / max(1, length - 1)


def centered_softmax(logits: Tensor, center: Tensor, temperature: float) -> Tensor:
    """Targets of the student (float32, ... x K): a centered and sharpened softmax of the teacher's logits.

    Centering keeps one output from dominating, sharpening keeps outputs from being uniform (DINO, section 3.1).

    Args:
        logits: logits of the teacher (... x K).
        center: K, see :func:`update_center`.
        temperature: divides them; DINO's 0.04 to 0.07.
    """
    return ((logits.float() - center) / temperature).softmax(-1)


def update_center(center: Tensor, mean: Tensor, momentum: float = 0.9) -> Tensor:
    """Update the moving average (K) of the teacher's logits by their mean (K) over the batch of all processes.

    Example: golden case ``vissl_dino``: from 0, a mean of [1.2225, -0.5775, -0.6525] makes [0.12225, -0.05775,
    -0.06525].
    """
    return torch.lerp(mean, center, momentum)


def dino_loss(student: Sequence[Tensor], targets: Sequence[Tensor], temperature: float = 0.1) -> Tensor:
    """Cross entropy of the teacher's targets for one view and the student's prediction for another (DINO, equation 3).

    The mean over images and over all pairs of different views.

    Args:
        student: logits of V views (B x K each), V of at least 2.
        targets: probabilities of the first T of these views (B x K each); they get no gradient.
        temperature: divides the student's logits.
    """
    pairs = len(targets) * len(student) - len(targets)
    losses = []
    for index, view in enumerate(student):
        others = [target for other, target in enumerate(targets) if other != index]
        if others:
            losses.append(F.cross_entropy(view.float() / temperature, torch.stack(others).sum(0)))
    return torch.stack(losses).sum() / pairs


def masked_patch_loss(student: Tensor, targets: Tensor, mask: Tensor, temperature: float = 0.1) -> Tensor:
    """Cross entropy over masked patches (Zhou et al. 2022, iBOT, equation 2), with the same weight for every image.

    The mean over an image's masked patches, then over all images; an image without masked patches counts as 0.

    Args:
        student: logits of patches, from masked images (B x N x K).
        targets: probabilities of the teacher, from whole images (B x N x K).
        mask: True for masked patches (bool, B x N).
        temperature: divides the student's logits.
    """
    losses = F.cross_entropy(student.float().flatten(0, 1) / temperature, targets.flatten(0, 1), reduction="none")
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
    return (losses.view_as(mask) * weights).sum(1).mean()


def koleo(vectors: Tensor) -> Tensor:
    """KoLeo regularizer, which spreads vectors (B x D) over the sphere: minus the mean logarithm of the distance to the
    nearest neighbor (Sablayrolles et al. 2019, equation 2; Oquab et al. 2023, DINOv2).

    Args:
        vectors: embeddings of at least two images; they are normalized here.

    Example: of [[1, 0], [0, 1]] minus half the logarithm of 2, -0.3466.
    """
    vectors = F.normalize(vectors.float(), dim=1)
    # In half precision many neighbors would be at the same distance.
    with torch.no_grad(), torch.autocast(vectors.device.type, enabled=False):
        nearest = (vectors @ vectors.T).fill_diagonal_(-2).argmax(1)
    eps = 1e-8  # keeps the loss of equal vectors finite
    return -(F.pairwise_distance(vectors, vectors[nearest], eps=eps) + eps).log().mean()
