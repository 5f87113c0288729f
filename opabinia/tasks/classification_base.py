"""What classification of images and of clips have in common: a network, a linear head, a loss over classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone, Batch, Clock, DatasetInfo, Evaluator, LossPart, Predictions, Task
from opabinia.evaluation.classification.confusion import Calibration, Confusion
from opabinia.evaluation.classification.multilabel import MultiLabel
from opabinia.evaluation.classification.topk import TopK, hits
from opabinia.evaluation.classification.worst_samples import WorstSamples
from opabinia.models.layers import normalize_as
from opabinia.models.losses.binary import binary_cross_entropy
from opabinia.models.losses.cross_entropy import cross_entropy, is_exclusive


class Labelled(Task):
    """Tells the class of each sample, or its classes.

    What is left to its heirs: :meth:`embed`.

    Args:
        facts: of the training data.
        backbone: samples to one vector each.
        loss: of logits (B x K) and labels (B), or targets (B x K) after mixing; None takes cross entropy, for several
            labels a sample binary cross entropy.
        dropout: on the vector before the head.
        mean, std: of the images, if a person says them.

    Raises:
        ValueError: there are fewer than two classes, or the loss does not go with several labels a sample.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        backbone: Backbone,
        loss: LossPart | None,
        dropout: float,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
    ) -> None:
        super().__init__()
        if len(dataset_info.classes) < 2:
            name = type(self).__name__.lower()
            raise ValueError(f"{name} needs two classes or more; the training data has {len(dataset_info.classes)}")
        self.dataset_info = dataset_info
        self.normalize = normalize_as(backbone.preprocessing, dataset_info.channels, mean, std)
        self.backbone = backbone
        self.head = nn.Sequential(nn.Dropout(dropout), backbone.make_head(len(dataset_info.classes)))
        if loss is not None and dataset_info.multi_label and is_exclusive(loss):
            raise ValueError(
                "loss: images may have several labels in this data; take a loss that asks of each class whether it "
                "is there: binary_cross_entropy, binary_focal or asymmetric"
            )
        self.loss = loss or (binary_cross_entropy if dataset_info.multi_label else cross_entropy)

    def embed(self, batch: Batch) -> Tensor:
        """The backbone's vectors (B x D)."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """The loss, so that the log shows it with the model."""
        return f"(loss): {self.loss}"

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss`` of the batch; ``top1`` and ``top5`` on it, for mixed labels by the class with the largest share."""
        logits, labels = self.head(self.embed(batch)), batch["label"]
        said = {"loss": self.loss(logits, labels)}
        if not self.dataset_info.multi_label and len(labels):
            best = labels.argmax(1) if labels.is_floating_point() else labels
            top1, top5 = hits(logits.detach(), best, (1, 5)) / len(labels)
            said |= {"top1": top1, "top5": top5}
        return said

    def predict(self, batch: Batch) -> Predictions:
        """``logits`` (B x K) and ``probabilities``: their softmax, or their sigmoid when there are several labels."""
        logits = self.head(self.embed(batch))
        return {
            "logits": logits,
            "probabilities": logits.sigmoid() if self.dataset_info.multi_label else logits.softmax(1),
        }

    def readable(self, prediction: Mapping[str, Tensor]) -> dict[str, Any]:
        """``top``: the five likeliest classes with their probabilities."""
        values, numbers = prediction["probabilities"].topk(min(5, len(self.dataset_info.classes)))
        pairs = zip(numbers.tolist(), values.tolist(), strict=True)
        return {
            "top": [
                {"class": self.dataset_info.classes[number], "probability": round(value, 6)} for number, value in pairs
            ]
        }

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """``embedding``: what the head sees (B x D)."""
        return {"embedding": self.embed(batch)}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Those of one label or of several, as the data has it. The first score is the headline.

        Raises:
            ValueError: the classes are not those of training, in the same order, so labels would not mean the same;
                or the images have another number of channels.
        """
        if dataset_info.channels != self.dataset_info.channels:
            raise ValueError(
                f"its images have {dataset_info.channels} channels, those of training {self.dataset_info.channels}"
            )
        if dataset_info.classes != self.dataset_info.classes:
            missing = [name for name in self.dataset_info.classes if name not in dataset_info.classes]
            new = [name for name in dataset_info.classes if name not in self.dataset_info.classes]
            raise ValueError(
                f"its classes are not those of the training data (missing: {', '.join(missing) or 'none'}; "
                f"new: {', '.join(new) or 'none'}; the order counts)"
            )
        if self.dataset_info.multi_label != dataset_info.multi_label:
            one, other = (
                ("several labels", "one label") if dataset_info.multi_label else ("one label", "several labels")
            )
            raise ValueError(f"its images have {one} each, those of training {other}")
        if self.dataset_info.multi_label:
            return [MultiLabel(dataset_info.classes)]
        return [TopK((1, 5)), Confusion(dataset_info.classes), Calibration(), WorstSamples(dataset_info.classes)]


def logits_of(probabilities: Tensor, *, multi_label: bool) -> Tensor:
    """Logits (B x K) that give such probabilities, all of them finite: a class that is ruled out would make the whole
    row invalid."""
    if multi_label:
        return probabilities.logit(eps=1e-7)
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()
