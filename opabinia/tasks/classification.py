"""Image classification: one label an image, or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Evaluator, Facts, Fraction, LossPart, Predictions, Task
from opabinia.evaluation.counts import Calibration, Confusion
from opabinia.evaluation.multilabel import MultiLabel
from opabinia.evaluation.topk import TopK, hits
from opabinia.losses.binary import binary_cross_entropy
from opabinia.losses.cross_entropy import cross_entropy, is_exclusive
from opabinia.models.layers import normalize_as


@register.task(name="classification")
class Classification(Task):
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
        facts: Facts,
        /,
        *,
        backbone: BackbonePart,
        loss: LossPart | None = None,
        dropout: Fraction = 0.0,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__()
        if len(facts.classes) < 2:
            raise ValueError(f"classification needs two classes or more; the training data has {len(facts.classes)}")
        self.facts = facts
        net = backbone(facts.channels)
        self.normalize = normalize_as(net.preprocessing, facts.channels, mean, std)
        self.backbone = net
        self.head = nn.Sequential(nn.Dropout(dropout), net.make_head(len(facts.classes)))
        if loss is not None and facts.multi_label and is_exclusive(loss):
            raise ValueError(
                "loss: images may have several labels in this data; take a loss that asks of each class whether it "
                "is there: binary_cross_entropy, binary_focal or asymmetric"
            )
        self.loss = loss or (binary_cross_entropy if facts.multi_label else cross_entropy)

    def _embed(self, batch: Batch) -> Tensor:
        features: Tensor = self.backbone(self.normalize(batch["image"]))
        return features

    def extra_repr(self) -> str:
        """The loss, so that the log shows it with the model."""
        return f"(loss): {self.loss}"

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss`` of the batch; ``top1`` and ``top5`` on it, for mixed labels by the class with the largest share."""
        logits, labels = self.head(self._embed(batch)), batch["label"]
        said = {"loss": self.loss(logits, labels)}
        if not self.facts.multi_label and len(labels):
            best = labels.argmax(1) if labels.is_floating_point() else labels
            top1, top5 = hits(logits.detach(), best, (1, 5)) / len(labels)
            said |= {"top1": top1, "top5": top5}
        return said

    def predict(self, batch: Batch) -> Predictions:
        """``logits`` (B x K) and ``probabilities``: their softmax, or their sigmoid when there are several labels.

        Of images with several views (B x V x C x H x W) the mean over the views' probabilities.
        """
        if batch["image"].ndim == 5:
            return self._predict_views(batch)
        logits = self.head(self._embed(batch))
        return {"logits": logits, "probabilities": logits.sigmoid() if self.facts.multi_label else logits.softmax(1)}

    def _predict_views(self, batch: Batch) -> Predictions:
        images = batch["image"]
        each = self.predict({**batch, "image": images.flatten(0, 1)})["probabilities"]
        mean = each.view(*images.shape[:2], -1).mean(1)
        # Finite, or a class that is ruled out would make the whole row invalid.
        least = torch.finfo(mean.dtype).tiny
        logits = mean.logit(eps=1e-7) if self.facts.multi_label else mean.clamp(min=least).log()
        return {"logits": logits, "probabilities": mean}

    def readable(self, prediction: Mapping[str, Tensor]) -> dict[str, Any]:
        """``top``: the five likeliest classes with their probabilities."""
        values, numbers = prediction["probabilities"].topk(min(5, len(self.facts.classes)))
        pairs = zip(numbers.tolist(), values.tolist(), strict=True)
        return {
            "top": [{"class": self.facts.classes[number], "probability": round(value, 6)} for number, value in pairs]
        }

    def features(self, batch: Batch, layers: Sequence[str] = ()) -> dict[str, Tensor]:
        """``embedding``: what the head sees (B x D).

        Raises:
            KeyError: another layer is asked for.
        """
        for layer in layers:
            if layer != "embedding":
                raise KeyError(f"classification has no layer {layer!r}; it has: embedding")
        return {"embedding": self._embed(batch)}

    def evaluators(self, facts: Facts) -> list[Evaluator]:
        """Those of one label or of several, as the data has it. The first score is the headline.

        Raises:
            ValueError: the classes are not those of training, in the same order, so labels would not mean the same;
                or the images have another number of channels.
        """
        if facts.channels != self.facts.channels:
            raise ValueError(f"its images have {facts.channels} channels, those of training {self.facts.channels}")
        if facts.classes != self.facts.classes:
            missing = [name for name in self.facts.classes if name not in facts.classes]
            new = [name for name in facts.classes if name not in self.facts.classes]
            raise ValueError(
                f"its classes are not those of the training data (missing: {', '.join(missing) or 'none'}; "
                f"new: {', '.join(new) or 'none'}; the order counts)"
            )
        if self.facts.multi_label != facts.multi_label:
            one, other = ("several labels", "one label") if facts.multi_label else ("one label", "several labels")
            raise ValueError(f"its images have {one} each, those of training {other}")
        if self.facts.multi_label:
            return [MultiLabel(facts.classes)]
        return [TopK((1, 5)), Confusion(facts.classes), Calibration()]
