"""Multiple granularity network: features of the whole image, its halves and its thirds (Wang et al. 2018)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Count,
    DatasetInfo,
    EvaluatorPart,
    Features,
    Head,
    HeadPart,
    LossPart,
    MetricLossPart,
    NonNegative,
    PoolingPart,
)
from opabinia.models.backbones.mgn import MultiGranularity
from opabinia.models.backbones.module import build_backbone
from opabinia.models.heads import LinearHead
from opabinia.models.layers import BNNeck
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.models.pooling import Max
from opabinia.runtime.collectives import gather_batch
from opabinia.tasks.reid.base import Reidentification, accuracy, identity_labels, part_name, reduction_layer

_COMPARED = ((0,), (1,), (2,), (3, 4), (5, 6, 7))
"""Features compared as one: the whole image of each branch, the two halves, the three thirds."""


@register.task(name="mgn")
class MGN(Reidentification):
    """Multiple granularity network: eight features of an image, of whole, halves and thirds, from three branches.

    Each has a neck and a classifier of its own. Metric losses compare the whole of each branch, the halves concatenated
    and the thirds concatenated; evaluation uses all eight, concatenated.

    Args:
        backbone: a ResNet; its last stages are copied for the three branches.
        pooling: of feature maps to vectors.
        embedding: width of each of the eight.
        metric_feature: the features that metric losses compare: ``before`` or ``after`` the neck.
        head: the classifiers.
        loss: of their logits and the identities, averaged over the eight.
        loss_scale: multiplies the loss.
        metric_losses: of features and identities, each averaged over the five comparisons.
        flip_test: evaluate the mean of the features of an image and of its mirror image.
        evaluator: of the features; null takes ``retrieval`` if the data has queries, otherwise ``recall``.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
    """

    loss: LossPart

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        pooling: PoolingPart = Max,
        embedding: Count = 256,
        metric_feature: Literal["before", "after"] = "before",
        head: HeadPart = LinearHead,
        loss: LossPart = cross_entropy,
        loss_scale: NonNegative = 1.0,
        metric_losses: list[MetricLossPart] = [],  # noqa: B006 (never changed)
        flip_test: bool = False,
        evaluator: EvaluatorPart | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        net = build_backbone(backbone, dataset_info.channels)
        super().__init__(dataset_info, net, mean, std, metric_losses, evaluator, flip_test)
        self.backbone = MultiGranularity(net)
        width, classes = self.backbone.map_channels, len(dataset_info.classes)
        self.branches = nn.ModuleList(
            Branch(pooling(width), width, embedding, head(embedding, classes)) for _ in range(self.backbone.parts)
        )
        self.embedding_width = self.backbone.parts * embedding
        self.loss, self.loss_scale, self.metric_feature = loss, loss_scale, metric_feature

    def extract(self, batch: Batch) -> Features:
        """Return the feature maps of the whole image, its halves and its thirds."""
        return {"pyramid": self.backbone(self.normalize(batch["image"]))}

    def losses(self, features: Features, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return losses by name and ``top1``, the accuracy among the training identities by the mean logits, without
        margins."""
        labels, parts = identity_labels(batch), self._parts(features)
        losses = torch.stack([self.loss(part.head.with_margin(part.logits, labels), labels) for part in parts])
        values = {
            f"{part_name(self.loss)}_loss": self.loss_scale * losses.mean(),
            "top1": accuracy(torch.stack([part.logits for part in parts]).mean(0), labels),
        }
        if not self.metric_losses:
            return values
        compared = [getattr(part, self.metric_feature) for part in parts]
        gathered, labels = gather_batch(torch.cat(compared, 1), labels, batch["id"])
        chunks = gathered.chunk(len(compared), 1)
        groups = [torch.cat([chunks[index] for index in group], 1) for group in _COMPARED]
        return values | self.compute_metric_losses(groups, labels)

    def embed_and_classify(self, features: Features) -> dict[str, Tensor]:
        """Return ``embedding``, the eight features after their necks (B x 8 D), and ``logits``, their mean (B x K)."""
        parts = self._parts(features)
        return {
            "embedding": torch.cat([part.after for part in parts], 1),
            "logits": torch.stack([part.logits for part in parts]).mean(0),
        }

    def _parts(self, features: Features) -> list[Part]:
        return [branch(part) for branch, part in zip(self.branches, features["pyramid"], strict=True)]


class Part(NamedTuple):
    """Outputs for one feature map: features (B x D) before and after the neck, logits (B x K), and the classifier."""

    before: Tensor
    after: Tensor
    logits: Tensor
    head: Head


class Branch(nn.Module):
    """Map one feature map to features and logits.

    Args:
        pooling: of feature maps to vectors.
        channels: of the feature maps.
        embedding: width of the features.
        head: their classifier.
    """

    def __init__(self, pooling: nn.Module, channels: int, embedding: int, head: Head) -> None:
        super().__init__()
        self.pooling, self.head = pooling, head
        self.embedding, self.neck = reduction_layer(channels, embedding), BNNeck(embedding)

    def forward(self, maps: Tensor) -> Part:
        """Map B x M x h x w to features and logits."""
        before = self.embedding(self.pooling(maps).flatten(1))
        after = self.neck(before)
        return Part(before, after, self.head(after), self.head)
