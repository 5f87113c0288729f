"""The strong baseline of re-identification (Luo et al. 2019), as FastReID builds on it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Count,
    DatasetInfo,
    Evaluator,
    EvaluatorPart,
    Fraction,
    HeadPart,
    Hook,
    LossPart,
    MetricLossPart,
    NonNegative,
    PoolingPart,
    Positive,
)
from opabinia.models.heads import linear
from opabinia.models.layers import BNNeck
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.runtime.collectives import gather_batch
from opabinia.tasks.reid.base import Reidentification, Settings, identities, name_of, reduced, share_right
from opabinia.tasks.reid.cross_batch_memory import Memory, QueueMemory, Remember


@register.task(name="reid")
class Baseline(Reidentification):
    """Backbone, pooling, batch norm neck, classifier of the training identities; metric losses before the neck.

    Evaluated by what the features behind the neck find: mAP, Rank-1, mINP.

    Args:
        backbone: images to feature maps, or to vectors.
        pooling: maps to vectors; null takes the backbone's own (of a vision transformer its class token).
        embedding: width that features are brought to before the neck; null keeps the backbone's.
        neck: what stands between feature and classifier: a ``batch`` norm without shift (Luo et al. 2019, section 3.5),
            a ``layer`` norm without weights (Zhai and Wu 2019, section 3.2), or null, nothing.
        dropout: on the feature before the classifier.
        metric_feature: what metric losses compare in training: the feature ``before`` or ``after`` the neck. What is
            evaluated is always behind it. With ``embedding``, before the neck is behind the layer that makes it;
            FastReID's NECK_FEAT "before" is what was pooled, before both.
        side_information: multiplies a learned vector for each camera and view, which is added to the tokens of a
            vision transformer (He et al. 2021, TransReID, section 3.3; their factor is 3). null: cameras are not looked
            at.
        head: the classifier.
        loss: of its logits (B x K) and the identities (B); null: none, then there are metric losses alone.
        loss_scale: multiplies it.
        metric_losses: of features and identities; each has a ``scale``.
        memory: a queue of earlier features to compare with; null: none.
        flip_test: evaluate the mean of the features of an image and of its mirror image.
        evaluator: how features are judged; null takes ``retrieval`` where the data has queries, otherwise ``recall``.
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
        pooling: PoolingPart | None = None,
        embedding: Count | None = None,
        neck: Literal["batch", "layer"] | None = "batch",
        dropout: Fraction = 0.0,
        metric_feature: Literal["before", "after"] = "before",
        side_information: Positive | None = None,
        head: HeadPart = linear,
        loss: LossPart | None = cross_entropy,
        loss_scale: NonNegative = 1.0,
        metric_losses: list[MetricLossPart] = [],  # noqa: B006 (never changed)
        memory: Memory | None = None,
        flip_test: bool = False,
        evaluator: EvaluatorPart | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        if loss is None and not metric_losses and memory is None:
            raise ValueError("loss and memory are null and metric_losses is empty: nothing is learned")
        net = backbone(dataset_info.channels)
        if pooling is not None and not net.map_channels:
            raise ValueError(f"pooling: {type(net).__name__} has no feature maps to pool; leave it null")
        pooled = net.map_channels if pooling is not None else net.out_channels
        width = embedding or pooled
        super().__init__(dataset_info, net, mean, std, Settings(metric_losses, evaluator, flip_test))
        self.whole_batches |= memory is not None
        self.compares_classes |= memory is not None
        self.backbone = net
        self.pooling = None if pooling is None else pooling(net.map_channels)
        self.embedding = reduced(pooled, embedding)
        self.side = side_embedding(net, dataset_info, side_information)
        self.neck = make_neck(neck, width)
        self.dropout = nn.Dropout(dropout)
        self.head = None if loss is None else head(width, len(dataset_info.classes))
        self.loss, self.loss_scale, self.metric_feature = loss, loss_scale, metric_feature
        self.memory = None if memory is None else QueueMemory(memory, width)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Losses by their names; ``top1`` among the training identities, without margins."""
        labels = identities(batch)
        before = self._before_neck(batch)
        after = self.neck(before)
        said = {}
        if self.head is not None and self.loss is not None:
            logits = self.head(self.dropout(after))
            loss = self.loss(self.head.with_margin(logits, labels), labels)
            said = {f"{name_of(self.loss)}_loss": self.loss_scale * loss, "top1": share_right(logits, labels)}
        if not self.whole_batches:
            return said
        features = before if self.metric_feature == "before" else after
        everybody, labels = gather_batch(features, labels, batch["id"])
        said |= self.compared([everybody], labels)
        if self.memory is not None:
            said["memory_loss"] = self.memory(everybody, labels)
        return said

    def seen(self, batch: Batch) -> dict[str, Tensor]:
        """``embedding``, the feature behind the neck (B x D), and ``logits`` (B x K), if there is a classifier."""
        feature = self.neck(self._before_neck(batch))
        return {"embedding": feature} if self.head is None else {"embedding": feature, "logits": self.head(feature)}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """The one that the config names.

        Raises:
            ValueError: the set's images have another number of channels, or are from cameras that nobody has seen.
        """
        if self.side is not None:
            for what in ("cameras", "views"):
                own, theirs = getattr(self.dataset_info, what), getattr(dataset_info, what)
                if theirs > own:
                    raise ValueError(
                        f"its images tell {theirs} {what}, those of training {own}, and side_information has learned "
                        "these only"
                    )
        return super().evaluators(dataset_info)

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """What puts the features of each step into the queue, if there is one."""
        return [] if self.memory is None else [Remember(self.memory)]

    def _before_neck(self, batch: Batch) -> Tensor:
        given = [self.normalize(batch["image"])]
        if self.side is not None:
            given.append(self.side(batch))
        if self.pooling is None:
            features = self.backbone(*given)
        else:
            features = self.pooling(self.backbone.maps(*given)).flatten(1)
        found: Tensor = self.embedding(features)
        return found


def make_neck(kind: Literal["batch", "layer"] | None, width: int) -> nn.Module:
    """What stands between feature and classifier."""
    if kind == "batch":
        return BNNeck(width)
    return nn.LayerNorm(width, elementwise_affine=False) if kind == "layer" else nn.Identity()


class SideEmbedding(nn.Module):
    """A learned vector for each camera and view (He et al. 2021, TransReID, section 3.3).

    An image whose camera nobody tells gets the mean of all cameras, one whose view nobody tells that of all views.

    Args:
        cameras, views: how many there are; 0 and 1 are the same.
        width: of the vectors.
        factor: multiplies them.
    """

    def __init__(self, cameras: int, views: int, width: int, factor: float) -> None:
        super().__init__()
        self.cameras, self.views, self.factor = max(1, cameras), max(1, views), factor
        self.table = nn.Parameter(torch.empty(self.cameras * self.views, width))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, batch: Batch) -> Tensor:
        """B x width, from ``batch["camera"]`` and ``batch["view"]`` (int64, B)."""
        count = len(batch["image"])
        table = self.table.view(self.cameras, self.views, -1)
        of_camera = table[batch["camera"]] if "camera" in batch else table.mean(0).expand(count, -1, -1)
        if "view" not in batch:
            return self.factor * of_camera.mean(1)
        found: Tensor = of_camera[torch.arange(count, device=table.device), batch["view"]]
        return self.factor * found


def side_embedding(backbone: nn.Module, dataset_info: DatasetInfo, factor: float | None) -> SideEmbedding | None:
    """The vectors that are added to the tokens of ``backbone``.

    Raises:
        ValueError: the backbone has no tokens, or the data tells neither cameras nor views.
    """
    if factor is None:
        return None
    width = int(getattr(backbone, "token_channels", 0))
    if not width:
        raise ValueError(f"side_information is added to tokens, which {type(backbone).__name__} does not have")
    if max(dataset_info.cameras, dataset_info.views) < 2:
        raise ValueError("side_information: the training data tells neither cameras nor views")
    return SideEmbedding(dataset_info.cameras, dataset_info.views, width, factor)
