"""The base class of image and video classification: backbone, linear head, loss over classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from opabinia.contracts import (
    BackbonePart,
    Batch,
    ClassRows,
    Clock,
    DatasetInfo,
    Evaluator,
    FeatureKind,
    Features,
    Fraction,
    LossPart,
    Predictions,
    Task,
)
from opabinia.evaluation.classification.confusion import Calibration, Confusion
from opabinia.evaluation.classification.multilabel import MultiLabel
from opabinia.evaluation.classification.topk import TopK, count_topk_hits
from opabinia.evaluation.classification.worst_samples import WorstSamples
from opabinia.models.backbones.module import build_backbone
from opabinia.models.layers import build_normalization
from opabinia.models.losses.binary import binary_cross_entropy
from opabinia.models.losses.cross_entropy import cross_entropy, is_exclusive
from opabinia.tasks.dataset_checks import check_channels, check_classes
from opabinia.visualization.presenters.classes import ClassPresenter


class ClassificationBase(Task):
    """Classify samples, with one label or several per sample.

    Args:
        dataset_info: of the training data.
        backbone: maps samples to vectors.
        loss: of logits (B x K) and labels (B), or targets (B x K) after mixup or cutmix; None takes cross entropy, for
            multi-label data binary cross entropy.
        dropout: of the vectors before the head.
        mean, std: of images in 0..1; see :func:`opabinia.models.layers.build_normalization`.

    Raises:
        ValueError: there are fewer than two classes, or the loss does not support multi-label data.
    """

    reads: tuple[FeatureKind, ...] = ("vectors",)
    label_keys = ("label",)

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
        super().__init__()
        net = build_backbone(backbone, dataset_info.channels)
        if len(dataset_info.classes) < 2:
            name = type(self).__name__.lower()
            raise ValueError(f"{name} needs two classes or more; the training data has {len(dataset_info.classes)}")
        self.dataset_info = dataset_info
        self.normalize = build_normalization(net.preprocessing, dataset_info.channels, mean, std)
        self.backbone = net
        self.head = nn.Sequential(nn.Dropout(dropout), net.make_head(len(dataset_info.classes)))
        linear = [name for name, layer in self.head.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        self.class_layers = {f"head.{name}": ClassRows() for name in linear[-1:]}
        if loss is not None and dataset_info.multi_label and is_exclusive(loss):
            raise ValueError(
                "loss: images may have several labels in this data; take a loss that treats every class by itself: "
                "binary_cross_entropy, binary_focal or asymmetric"
            )
        self.loss = loss or (binary_cross_entropy if dataset_info.multi_label else cross_entropy)

    def extra_repr(self) -> str:
        """Return the loss, so that the log shows it with the model."""
        return f"(loss): {self.loss}"

    def losses(self, features: Features, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss``; ``top1`` and ``top5`` of the batch, for mixed labels by the class with the largest share."""
        logits, labels = self.head(features["vectors"]), batch["label"]
        values = {"loss": self.loss(logits, labels)}
        if not self.dataset_info.multi_label and len(labels):
            classes = labels.argmax(1) if labels.is_floating_point() else labels
            values["top1"], values["top5"] = count_topk_hits(logits.detach(), classes, (1, 5)) / len(labels)
        return values

    def predictions(self, features: Features, batch: Batch) -> Predictions:
        """Return ``logits`` (B x K) and ``probabilities``, their softmax; their sigmoid for multi-label data."""
        logits = self.head(features["vectors"])
        probabilities = logits.sigmoid() if self.dataset_info.multi_label else logits.softmax(1)
        return {"logits": logits, "probabilities": probabilities}

    def predict_together(self, models: Sequence[Task], batch: Batch) -> Predictions:
        """Return the mean of the models' probabilities, also of each view of a video, and ``logits`` of these."""
        predictions = [model.predict(batch) for model in models]
        means = {
            name: torch.stack([rows[name] for rows in predictions]).mean(0)
            for name in ("probabilities", "views")
            if name in predictions[0]
        }
        return {"logits": logits_from(means["probabilities"], multi_label=self.dataset_info.multi_label), **means}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Return ``embedding``, the input of the head (B x D)."""
        return {"embedding": self.extract(batch)["vectors"]}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return evaluators for single-label or multi-label data. The first score is the headline.

        Raises:
            ValueError: classes, their order, channels or the kind of labels differ from the training data.
        """
        check_channels(dataset_info, self.dataset_info)
        check_classes(dataset_info, self.dataset_info)
        if self.dataset_info.multi_label != dataset_info.multi_label:
            kinds = ("several labels", "one label") if dataset_info.multi_label else ("one label", "several labels")
            raise ValueError(f"its images have {kinds[0]} each, those of training {kinds[1]}")
        if self.dataset_info.multi_label:
            return [MultiLabel(dataset_info.classes)]
        return [TopK((1, 5)), Confusion(dataset_info.classes), Calibration(), WorstSamples(dataset_info.classes)]

    def presenter(self) -> ClassPresenter:
        """Show the most probable classes, and the frames of videos."""
        return ClassPresenter(self.dataset_info)


def logits_from(probabilities: Tensor, *, multi_label: bool) -> Tensor:
    """Return finite logits (B x K) of these probabilities; an infinite one would make its whole row invalid."""
    if multi_label:
        return probabilities.logit(eps=1e-7)
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()
