"""Multiple granularity network: the whole image, its halves and its thirds (Wang et al. 2018)."""

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
    Head,
    HeadPart,
    LossPart,
    MetricLossPart,
    NonNegative,
    PoolingPart,
)
from opabinia.models.backbones.mgn import MultiGranularity
from opabinia.models.heads import linear
from opabinia.models.layers import BNNeck
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.models.pooling import Max
from opabinia.runtime.collectives import gather_batch
from opabinia.tasks.reid.base import Reidentification, Settings, identities, name_of, reduced, share_right

_COMPARED = ((0,), (1,), (2,), (3, 4), (5, 6, 7))
"""Which of the eight features are compared as one: the whole of each branch, the halves, the thirds."""


@register.task(name="mgn")
class MGN(Reidentification):
    """Eight features of an image: of three branches the whole, of the second the halves, of the third the thirds.

    Each has a neck and a classifier of its own; metric losses compare the whole of each branch, the halves together and
    the thirds together. What is evaluated are the eight, side by side.

    Args:
        backbone: a ResNet; its last stages are copied for the three branches.
        pooling: maps to vectors.
        embedding: width of each of the eight.
        metric_feature: what metric losses compare: features ``before`` or ``after`` the neck.
        head: the classifiers.
        loss: of their logits and the identities; the mean of the eight counts.
        loss_scale: multiplies it.
        metric_losses: of features and identities; of each the mean over the five comparisons counts.
        flip_test: evaluate the mean of the features of an image and of its mirror image.
        evaluator: how features are judged; null takes ``retrieval`` where the data has queries, otherwise ``recall``.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.
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
        head: HeadPart = linear,
        loss: LossPart = cross_entropy,
        loss_scale: NonNegative = 1.0,
        metric_losses: list[MetricLossPart] = [],  # noqa: B006 (never changed)
        flip_test: bool = False,
        evaluator: EvaluatorPart | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        net = backbone(dataset_info.channels)
        super().__init__(dataset_info, net, mean, std, Settings(metric_losses, evaluator, flip_test))
        self.backbone = MultiGranularity(net)
        width, classes = self.backbone.map_channels, len(dataset_info.classes)
        self.branches = nn.ModuleList(
            Branch(pooling(width), width, embedding, head(embedding, classes)) for _ in range(self.backbone.parts)
        )
        self.loss, self.loss_scale, self.metric_feature = loss, loss_scale, metric_feature

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Losses by their names; ``top1`` among the training identities by the mean of the logits, without margins."""
        labels, found = identities(batch), self._parts(batch)
        logits = [one.logits for one in found]
        losses = torch.stack([self.loss(one.head.with_margin(one.logits, labels), labels) for one in found])
        said = {
            f"{name_of(self.loss)}_loss": self.loss_scale * losses.mean(),
            "top1": share_right(torch.stack(logits).mean(0), labels),
        }
        if not self.metric_losses:
            return said
        features = [getattr(one, self.metric_feature) for one in found]
        everybody, labels = gather_batch(torch.cat(features, 1), labels, batch["id"])
        each = everybody.chunk(len(features), 1)
        return said | self.compared([torch.cat([each[part] for part in parts], 1) for parts in _COMPARED], labels)

    def seen(self, batch: Batch) -> dict[str, Tensor]:
        """``embedding``, the eight features behind their necks (B x 8 D); ``logits``, the mean of theirs (B x K)."""
        found = self._parts(batch)
        return {
            "embedding": torch.cat([one.after for one in found], 1),
            "logits": torch.stack([one.logits for one in found]).mean(0),
        }

    def _parts(self, batch: Batch) -> list[Part]:
        maps = self.backbone(self.normalize(batch["image"]))
        return [branch(one) for branch, one in zip(self.branches, maps, strict=True)]


class Part(NamedTuple):
    """What is made of one map: features (B x D) before and after the neck, logits (B x K), and their classifier."""

    before: Tensor
    after: Tensor
    logits: Tensor
    head: Head


class Branch(nn.Module):
    """From one map to features and logits.

    Args:
        pooling: maps to vectors.
        channels: of the maps.
        embedding: width of the features.
        head: their classifier.
    """

    def __init__(self, pooling: nn.Module, channels: int, embedding: int, head: Head) -> None:
        super().__init__()
        self.pooling, self.head = pooling, head
        self.embedding, self.neck = reduced(channels, embedding), BNNeck(embedding)

    def forward(self, maps: Tensor) -> Part:
        """B x M x h x w to features and logits."""
        before = self.embedding(self.pooling(maps).flatten(1))
        after = self.neck(before)
        return Part(before, after, self.head(after), self.head)
