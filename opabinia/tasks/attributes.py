"""Attribute recognition: images with several binary attributes, such as pedestrians with hat, bag and skirt."""

from __future__ import annotations

from functools import partial

from torch import nn

from opabinia.config import register
from opabinia.contracts import BackbonePart, ClassRows, DatasetInfo, Evaluator, Fraction
from opabinia.evaluation.classification.multilabel import AttributeRecognition
from opabinia.models.heads import LinearHead
from opabinia.models.layers import BNNeck
from opabinia.models.losses.binary import binary_cross_entropy, frequency_weighted_binary_cross_entropy
from opabinia.tasks.classification_base import ClassificationBase


@register.task(name="attributes")
class Attributes(ClassificationBase):
    """Attribute recognition (FastReID's FastAttr): multi-label classification with batch norms of features and logits,
    and a loss that weights labels by their frequency.

    Evaluated by ``mA`` (the mean recall of samples with and without an attribute, averaged over attributes),
    ``accuracy``, ``precision``, ``recall`` and ``f1`` of samples, and the metrics of multi-label data.

    Args:
        dataset_info: of the training data, which must be multi-label.
        backbone: maps images to vectors.
        weighted: weight the binary cross entropy by the frequencies of the labels in the training data
            (:func:`opabinia.models.losses.binary.frequency_weighted_binary_cross_entropy`).
        threshold: minimum probability of a predicted attribute.
        dropout: of the vectors before the head.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.

    Raises:
        ValueError: the data is not multi-label, or its labels are not known without reading the images.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        weighted: bool = True,
        threshold: Fraction = 0.5,
        dropout: Fraction = 0.0,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        if not dataset_info.multi_label:
            raise ValueError("attributes: images have one label each in this data; the task is classification")
        if weighted and not dataset_info.label_shares:
            raise ValueError("weighted: the source does not know its labels without reading images; set it to false")
        shares = dataset_info.label_shares
        loss = partial(frequency_weighted_binary_cross_entropy, shares=shares) if weighted else binary_cross_entropy
        super().__init__(dataset_info, backbone=backbone, loss=loss, dropout=dropout, mean=mean, std=std)
        width, count = self.backbone.out_channels, len(dataset_info.classes)
        self.head = nn.Sequential(BNNeck(width), nn.Dropout(dropout), LinearHead(width, count), nn.BatchNorm1d(count))
        self.class_layers = {"head.2": ClassRows(), "head.3": ClassRows()}
        self._threshold = threshold

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return the evaluator; the headline is mA.

        Raises:
            ValueError: classes, their order, channels or the kind of labels differ from the training data.
        """
        super().evaluators(dataset_info)
        return [AttributeRecognition(dataset_info.classes, self._threshold)]
