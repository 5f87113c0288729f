"""Image classification, single-label and multi-label."""

from __future__ import annotations

from opabinia.config import register
from opabinia.contracts import Batch, Predictions
from opabinia.tasks.classification_base import ClassificationBase, logits_from


@register.task(name="classification")
class Classification(ClassificationBase):
    """Image classification: backbone, linear head, loss.

    Single-label data is evaluated by top-1 and top-5 accuracy, recall and F1 over classes, and calibration; multi-label
    data by mean average precision and F1.

    Args:
        backbone: maps images to vectors.
        loss: of logits (B x K) and labels (B), or targets (B x K) after mixup or cutmix; null takes cross entropy, for
            multi-label data binary cross entropy.
        dropout: of the vectors before the head.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
    """

    def predict(self, batch: Batch) -> Predictions:
        """Return ``logits`` and ``probabilities`` (B x K); of several views (B x V x C x H x W) the mean over views."""
        images = batch["image"]
        if images.ndim != 5:
            return super().predict(batch)
        views = super().predict({**batch, "image": images.flatten(0, 1)})["probabilities"]
        mean = views.view(*images.shape[:2], -1).mean(1)
        return {"logits": logits_from(mean, multi_label=self.dataset_info.multi_label), "probabilities": mean}
