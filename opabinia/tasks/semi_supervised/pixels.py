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
    Source,
    Task,
)
from opabinia.runtime.collectives import mean_over_samples
from opabinia.runtime.device import move_tensor
from opabinia.tasks.segmentation.task import Segmentation

_SHARE, _RATIO = (0.02, 0.4), 1 / 0.3
"""The least and the largest share of an image that a pasted rectangle covers, and its largest width in heights."""


@register.pseudo_labels(name="pixels")
class PixelLabels(PseudoLabeler):
    """Pseudo-labels of segmentation: the most probable class of each pixel, if its probability is high enough; other
    pixels are ignored. Losses are multiplied by the share of pixels with a label, so that of cross entropy is averaged
    over all pixels (Yang et al. 2023, UniMatch, equation 1, with one strong view and without perturbed features).

    Strong views are mixed with each other (French et al. 2020, Semi-supervised semantic segmentation needs strong,
    varied perturbations; as in UniMatch): a rectangle of 2 to 40 % of an image, 0.3 to 3.3 times as wide as high, shows
    the one before it in the batch of the process, with its pseudo-labels.

    Args:
        threshold: least probability.
        cutmix: probability of such a rectangle, for each image.

    Raises:
        ValueError: the task is no semantic segmentation.
    """

    keeps_positions = True

    def __init__(self, task: Task, unlabeled: Source, /, *, threshold: Fraction = 0.95, cutmix: Fraction = 0.5) -> None:
        super().__init__()
        if not isinstance(task, Segmentation):
            raise ValueError(f"pixels are labels of semantic segmentation; the task is {type(task).__name__}")
        self.threshold, self.cutmix = threshold, cutmix

    def predict(self, teacher: Task, batch: Batch) -> Predictions:
        """Return ``probabilities`` of the pixels of the padded batch (B x K x H x W)."""
        assert isinstance(teacher, Segmentation)
        return {"probabilities": teacher.logits(batch["image"], batch["image_sizes"]).float().softmax(1)}

    def forward(self, predictions: Predictions, batch: Batch) -> PseudoLabels:
        """Return ``mask`` (int64, B x H x W), and the ``image`` that it belongs to: the strong views, mixed."""
        confidences, classes = predictions["probabilities"].max(1)
        inside = _inside_images(batch["image_sizes"], confidences)
        kept = (confidences >= self.threshold) & inside
        precision = None
        if "mask" in batch:
            compared = kept & (batch["mask"] != IGNORE_LABEL)
            precision = ((classes == batch["mask"]) & compared).sum() / compared.sum().clamp(min=1)
        pasted = inside & _rectangles(batch["image_sizes"], self.cutmix, confidences)
        mask, image = classes.where(kept, IGNORE_LABEL), batch["image"]
        labels = {
            "mask": mask.roll(1, 0).where(pasted, mask),
            "image": image.roll(1, 0).where(pasted[:, None], image),
        }
        total = mean_over_samples(inside.sum(), len(kept))
        factor = mean_over_samples((labels["mask"] != IGNORE_LABEL).sum(), len(kept)) / total
        return PseudoLabels(labels, mean_over_samples(kept.sum(), len(kept)) / total, precision, factor)


def _inside_images(sizes: Sizes, like: Tensor) -> Tensor:
    """Return which pixels of a padded batch belong to the images (bool, B x H x W)."""
    heights, widths = move_tensor(torch.tensor(sizes), like.device)[:, :, None, None].unbind(1)
    rows, columns = (torch.arange(side, device=like.device) for side in like.shape[-2:])
    return (rows[:, None] < heights) & (columns < widths)


def _rectangles(sizes: Sizes, probability: float, like: Tensor) -> Tensor:
    """Draw a rectangle in each image with a probability, and return its pixels (bool, B x H x W)."""
    drawn, shares, shapes, *positions = torch.rand(5, len(sizes))
    shares = (_SHARE[0] + (_SHARE[1] - _SHARE[0]) * shares) * (drawn < probability)
    widths = (shares * _RATIO ** (2 * shapes - 1)).sqrt().clamp(1e-6, 1)
    extents = torch.stack([(shares / widths).clamp(max=1), widths])
    sides = torch.tensor(sizes).T
    starts = (torch.stack(positions) * (1 - extents) * sides).round()
    ends = starts + (extents * sides).round()
    (top, left), (bottom, right) = move_tensor(torch.stack([starts, ends]), like.device)[..., None, None]
    rows, columns = (torch.arange(side, device=like.device) for side in like.shape[-2:])
    drawn_rows = (rows[:, None] >= top) & (rows[:, None] < bottom)
    inside: Tensor = drawn_rows & (columns >= left) & (columns < right)
    return inside
