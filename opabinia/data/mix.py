"""Changes to a whole batch. They work on what one process holds, so pairs never straddle two processes' slices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from opabinia.config import register
from opabinia.contracts import Batch, Facts, NonNegative


@register.mix
def mixup(batch: Batch, facts: Facts, /, *, alpha: NonNegative = 0.2) -> Batch:
    """Blend each image, and its label, with that of another sample of the batch.

    All pairs of a batch share one weight, drawn from Beta(alpha, alpha). Images become float32 in 0 to 1, labels
    float32, B x K. Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018.

    Args:
        alpha: 0 leaves images as they are, 1 draws the weight evenly, 0.1 to 0.4 are usual on ImageNet.

    Raises:
        ValueError: the data has no classes.
    """
    if not facts.classes:
        raise ValueError("mixup blends labels, and this data has no classes")
    weight = np.random.beta(alpha, alpha) if alpha > 0 else 1.0
    partners = torch.randperm(len(batch["image"]))
    return {
        **batch,
        "image": blend(float_images(batch["image"]), partners, weight),
        "label": blend(soft_labels(batch["label"], len(facts.classes)), partners, weight),
    }


def blend(values: Tensor, partners: Tensor, weight: float) -> Tensor:
    """``weight`` of each row of ``values`` (B x ..., float), the rest of the row named by ``partners`` (int64, B)."""
    return values.lerp(values[partners], 1 - weight)


def float_images(images: Tensor) -> Tensor:
    """Images as float32 in 0 to 1, the range that tasks expect of float images."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def soft_labels(labels: Tensor, classes: int) -> Tensor:
    """Labels (int64, B) as float32, B x K; labels that are B x K already stay as they are."""
    return labels if labels.is_floating_point() else one_hot(labels, classes).float()
