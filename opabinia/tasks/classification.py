"""Image classification: one label an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Evaluator, Facts, Fraction, LossPart, Predictions, Task
from opabinia.evaluation.topk import TopK, hits
from opabinia.losses.cross_entropy import cross_entropy
from opabinia.models.layers import Normalize


@register.task(name="classification")
class Classification(Task):
    """Backbone, linear head, loss; evaluated by top-1 and top-5.

    Args:
        backbone: images to one vector each.
        loss: of logits (B x K) and labels (B), or targets (B x K) after mixing.
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
        loss: LossPart = cross_entropy,
        dropout: Fraction = 0.0,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__()
        if len(facts.classes) < 2:
            raise ValueError(f"classification needs two classes or more; the training data has {len(facts.classes)}")
        self.facts = facts
        net = backbone(facts.channels)
        known, colour = net.preprocessing, facts.channels == 3
        self.normalize = Normalize(
            mean or (known.mean if known else [0.485, 0.456, 0.406] if colour else [0.5]),
            std or (known.std if known else [0.229, 0.224, 0.225] if colour else [0.5]),
            facts.channels,
        )
        self.backbone = net
        self.head = nn.Sequential(nn.Dropout(dropout), net.make_head(len(facts.classes)))
        self.loss = loss

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
        """``logits`` (B x K) and their softmax ``probabilities``."""
        logits = self.head(self._embed(batch))
        return {"logits": logits, "probabilities": logits.softmax(1)}

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
        """Top-1 and top-5.

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
        return [TopK((1, 5))]
