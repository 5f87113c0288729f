"""Pseudo-labels of segmentation: the classes of the pixels of which the teacher is sure."""

from __future__ import annotations

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    IGNORE_LABEL,
    Batch,
    Fraction,
    Predictions,
    PseudoLabeler,
    PseudoLabels,
    Sizes,
    Task,
)
from opabinia.runtime.collectives import mean_over_samples
from opabinia.runtime.device import move_tensor
from opabinia.tasks.segmentation.task import Segmentation


@register.pseudo_labels(name="pixels")
class PixelLabels(PseudoLabeler):
    """Pseudo-labels of segmentation: the most probable class of each pixel, if its probability is high enough; other
    pixels are ignored. Losses are multiplied by the share of pixels with a label, so that of cross entropy is averaged
    over all pixels (Yang et al. 2023, UniMatch, equation 1, with one strong view and without perturbed features).

    Args:
        threshold: least probability.

    Raises:
        ValueError: the task is no semantic segmentation.
    """

    keeps_positions = True

    def __init__(self, task: Task, unlabeled_samples: int, /, *, threshold: Fraction = 0.95) -> None:
        super().__init__()
        if not isinstance(task, Segmentation):
            raise ValueError(f"pixels are labels of semantic segmentation; the task is {type(task).__name__}")
        self.threshold = threshold

    def predict(self, teacher: Task, batch: Batch) -> Predictions:
        """Return ``probabilities`` of the pixels of the padded batch (B x K x H x W)."""
        assert isinstance(teacher, Segmentation)
        return {"probabilities": teacher.logits(batch["image"], batch["image_sizes"]).float().softmax(1)}

    def forward(self, predictions: Predictions, batch: Batch) -> PseudoLabels:
        """Return ``mask`` (int64, B x H x W)."""
        confidences, classes = predictions["probabilities"].max(1)
        inside = _inside_images(batch["image_sizes"], confidences)
        kept = (confidences >= self.threshold) & inside
        share = mean_over_samples(kept.sum(), len(kept)) / mean_over_samples(inside.sum(), len(kept))
        precision = None
        if "mask" in batch:
            compared = kept & (batch["mask"] != IGNORE_LABEL)
            precision = ((classes == batch["mask"]) & compared).sum() / compared.sum().clamp(min=1)
        return PseudoLabels({"mask": classes.where(kept, IGNORE_LABEL)}, share, precision, share)


def _inside_images(sizes: Sizes, like: Tensor) -> Tensor:
    """Return which pixels of a padded batch belong to the images (bool, B x H x W)."""
    heights, widths = move_tensor(torch.tensor(sizes), like.device)[:, :, None, None].unbind(1)
    rows, columns = (torch.arange(side, device=like.device) for side in like.shape[-2:])
    return (rows[:, None] < heights) & (columns < widths)
