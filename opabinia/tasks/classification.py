"""Image classification: one label an image, or several."""

from __future__ import annotations

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, DatasetInfo, Fraction, LossPart, Predictions
from opabinia.tasks.classification_base import Labelled, logits_of


@register.task(name="classification")
class Classification(Labelled):
    """Backbone, linear head, loss.

    With one label an image evaluated by top-1 and top-5, recall and F1 over classes, calibration; where the data says
    that an image may have several, or none, by mean average precision and F1.

    Args:
        backbone: images to one vector each.
        loss: of logits (B x K) and labels (B), or targets (B x K) after mixing; null takes cross entropy, for several
            labels an image binary cross entropy.
        dropout: on the vector before the head.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        loss: LossPart | None = None,
        dropout: Fraction = 0.0,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), loss, dropout, mean, std)

    def embed(self, batch: Batch) -> Tensor:
        """The backbone's vectors (B x D) of ``image``."""
        features: Tensor = self.backbone(self.normalize(batch["image"]))
        return features

    def predict(self, batch: Batch) -> Predictions:
        """As of any labelled samples.

        Of images with several views (B x V x C x H x W) the mean over the views' probabilities.
        """
        images = batch["image"]
        if images.ndim != 5:
            return super().predict(batch)
        each = super().predict({**batch, "image": images.flatten(0, 1)})["probabilities"]
        mean = each.view(*images.shape[:2], -1).mean(1)
        return {"logits": logits_of(mean, multi_label=self.dataset_info.multi_label), "probabilities": mean}
