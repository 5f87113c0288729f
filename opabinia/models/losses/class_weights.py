"""Weights of classes in the losses of detectors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from opabinia.contracts import DatasetInfo, NonNegative

ClassWeights = Literal["balanced"] | dict[str, NonNegative]
"""Weights by class name; a class that is not named has weight 1. ``balanced``: by inverse frequency."""


def class_weight_table(weights: ClassWeights | None, dataset_info: DatasetInfo) -> Tensor | None:
    """Return the weight of each class and, last, of the background, which is 1 (float32, K + 1); None without weights.

    ``balanced`` weights are N / (K n), where n is the number of training images with the class and N the sum of all n
    (scikit-learn's rule, King and Zeng 2001); a class without images has weight 1.

    Args:
        weights: config value.
        dataset_info: description of the training data, with K classes.

    Raises:
        ValueError: a name is not a class, or the numbers of images are unknown.

    Example: classes in 30 and 10 images: 40 / (2 * 30) = 0.6667 and 40 / (2 * 10) = 2.
    """
    if weights is None:
        return None
    classes, counts = dataset_info.classes, dataset_info.image_counts
    if weights == "balanced":
        if not counts:
            raise ValueError("class_weights: balanced needs data that counts its images by class; give weights by name")
        present = sum(count > 0 for count in counts)
        values = [sum(counts) / (present * count) if count else 1.0 for count in counts]
    else:
        assert isinstance(weights, dict)
        if unknown := sorted(weights.keys() - set(classes)):
            raise ValueError(f"class_weights: the training data has no class {', '.join(unknown)}")
        values = [weights.get(name, 1.0) for name in classes]
    return torch.tensor([*values, 1.0])


def weighted_by_class(losses: Tensor, classes: Tensor, table: Tensor | None) -> Tensor:
    """Return losses of anchors, points or regions times the weight of the class of the object that they are assigned
    to; without a table the losses as they are.

    Args:
        losses: any shape.
        classes: targets (int64, of this shape); -1 or K is background.
        table: see :func:`class_weight_table`.
    """
    return losses if table is None else losses * table[classes]
