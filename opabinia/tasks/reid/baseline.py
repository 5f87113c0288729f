"""The strong baseline of re-identification (Luo et al. 2019), as in FastReID."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Count,
    DatasetInfo,
    Evaluator,
    EvaluatorPart,
    Features,
    Fraction,
    HeadPart,
    Hook,
    LossPart,
    MetricLossPart,
    NonNegative,
    PoolingPart,
    Positive,
)
from opabinia.models.backbones.module import build_backbone
from opabinia.models.heads import LinearHead, sample_classes
from opabinia.models.layers import BNNeck
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.models.losses.metric import compares_samples
from opabinia.runtime.collectives import gather_batch, gather_rows
from opabinia.tasks.reid.base import Reidentification, accuracy, identity_labels, part_name, reduction_layer
from opabinia.tasks.reid.cross_batch_memory import CrossBatchMemory, QueueMemory
from opabinia.tasks.step_hooks import AfterStep


@register.task(name="reid")
class Baseline(Reidentification):
    """Re-identification: backbone, pooling, batch norm neck, identity classifier; metric losses before the neck.

    Evaluated by retrieval with the features after the neck: mAP, Rank-1, mINP.

    Args:
        backbone: maps images to feature maps, or to vectors.
        pooling: of feature maps to vectors; null takes the backbone's own (the class token of a vision transformer).
        embedding: width of a linear layer before the neck; null: no layer, the width is the backbone's.
        neck: layer between feature and classifier: a ``batch`` norm without shift (Luo et al. 2019, section 3.5), a
            ``layer`` norm without weights (Zhai and Wu 2019, section 3.2), or null for none.
        dropout: of features before the classifier.
        metric_feature: the feature that metric losses compare: ``before`` or ``after`` the neck; evaluation always uses
            the one after it. With ``embedding``, "before" is after that layer; FastReID's NECK_FEAT "before" is the
            pooled feature, before both.
        camera_embedding_scale: multiplies a learned vector for each camera and view that is added to the tokens of a
            vision transformer (side information embedding, He et al. 2021, TransReID, section 3.3: 3); null: none.
        head: the classifier.
        loss: of its logits (B x K) and the identities (B); null: metric losses only.
        loss_scale: multiplies the loss.
        sampled_classes: share of the identities that the classifier of a step has: those of the batch, and random
            others (An et al. 2021, Partial FC: 0.1 for a million identities); null: all. ``top1`` is among these.
        metric_losses: of features and identities; each has a ``scale``.
        cross_batch_memory: a queue of features of earlier batches to compare with; null: none.
        flip_test: evaluate the mean of the features of an image and of its mirror image.
        evaluator: of the features; null takes ``retrieval`` if the data has queries, otherwise ``recall``.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
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
        camera_embedding_scale: Positive | None = None,
        head: HeadPart = LinearHead,
        loss: LossPart | None = cross_entropy,
        loss_scale: NonNegative = 1.0,
        sampled_classes: Fraction | None = None,
        metric_losses: list[MetricLossPart] = [],  # noqa: B006 (never changed)
        cross_batch_memory: CrossBatchMemory | None = None,
        flip_test: bool = False,
        evaluator: EvaluatorPart | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        if loss is None and not metric_losses and cross_batch_memory is None:
            raise ValueError("loss and cross_batch_memory are null and metric_losses is empty: nothing is learned")
        net = build_backbone(backbone, dataset_info.channels)
        if pooling is not None and not net.map_channels:
            raise ValueError(f"pooling: {type(net).__name__} has no feature maps to pool; leave it null")
        pooled = net.map_channels if pooling is not None else net.out_channels
        width = embedding or pooled
        super().__init__(dataset_info, net, mean, std, metric_losses, evaluator, flip_test)
        self.gathers_logits = compares_samples(loss)
        self.requires_full_batch |= cross_batch_memory is not None or self.gathers_logits
        self.compares_samples_of_class |= cross_batch_memory is not None
        self.backbone = net
        self.pooling = None if pooling is None else pooling(net.map_channels)
        self.embedding = reduction_layer(pooled, embedding)
        self.side = camera_embedding(net, dataset_info, camera_embedding_scale)
        if self.side is None:
            self.reads = ("vectors",) if pooling is None else ("maps",)
        self.embedding_width, self.neck = width, make_neck(neck, width)
        self.dropout = nn.Dropout(dropout)
        self.head = None if loss is None else head(width, len(dataset_info.classes))
        if sampled_classes is not None and not isinstance(getattr(self.head, "weight", None), nn.Parameter):
            raise ValueError("sampled_classes: it needs a loss, and a head with one weight vector per class")
        self.sampled_classes = sampled_classes
        self.loss, self.loss_scale, self.metric_feature = loss, loss_scale, metric_feature
        self.memory = None if cross_batch_memory is None else QueueMemory(cross_batch_memory, width)

    def extract(self, batch: Batch) -> Features:
        """Return the backbone's vectors, or the feature maps that are pooled."""
        if self.side is None:
            return super().extract(batch)
        images, offset = self.normalize(batch["image"]), self.side(batch)
        if self.pooling is None:
            return {"vectors": self.backbone(images, offset)}
        return {"maps": self.backbone.feature_maps(images, offset)}

    def losses(self, features: Features, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return losses by name and ``top1``, the accuracy among the training identities without margins."""
        labels = identity_labels(batch)
        before = self._before_neck(features)
        after = self.neck(before)
        values = {}
        if self.head is not None and self.loss is not None:
            logits, targets = self._classify(self.dropout(after), labels, batch["id"], clock.step)
            if self.gathers_logits:
                logits, targets = gather_batch(logits, targets, batch["id"])
            loss = self.loss(self.head.with_margin(logits, targets), targets)
            values = {f"{part_name(self.loss)}_loss": self.loss_scale * loss, "top1": accuracy(logits, targets)}
        if not self.requires_full_batch:
            return values
        compared = before if self.metric_feature == "before" else after
        all_features, labels = gather_batch(compared, labels, batch["id"])
        values |= self.compute_metric_losses([all_features], labels)
        if self.memory is not None:
            values["memory_loss"] = self.memory(all_features, labels)
        return values

    def embed_and_classify(self, features: Features) -> dict[str, Tensor]:
        """Return ``embedding``, the feature after the neck (B x D), and ``logits`` (B x K) of a classifier."""
        feature = self.neck(self._before_neck(features))
        return {"embedding": feature} if self.head is None else {"embedding": feature, "logits": self.head(feature)}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return the configured evaluator, or the one that fits the dataset.

        Raises:
            ValueError: the images have another number of channels, or cameras or views that training did not have.
        """
        if self.side is not None:
            for kind in ("cameras", "views"):
                trained, evaluated = getattr(self.dataset_info, kind), getattr(dataset_info, kind)
                if evaluated > trained:
                    raise ValueError(
                        f"its images have {evaluated} {kind}, those of training {trained}; camera_embedding_scale "
                        "needs a learned vector for each"
                    )
        return super().evaluators(dataset_info)

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return the hook that enqueues the features of each step, if there is a cross-batch memory."""
        return [] if self.memory is None else [AfterStep(self.memory.update)]

    def _classify(self, features: Tensor, labels: Tensor, ids: Sequence[str], step: int) -> tuple[Tensor, Tensor]:
        """Return logits (B x S) of all or of the sampled classes, and the labels among these."""
        assert self.head is not None
        if self.sampled_classes is None:
            return self.head(features), labels
        weight = self.head.get_parameter("weight")
        chosen = sample_classes(gather_rows(labels, ids), len(weight), self.sampled_classes, step)
        logits: Tensor = functional_call(self.head, {"weight": weight[chosen]}, (features,))
        return logits, torch.searchsorted(chosen, labels)

    def _before_neck(self, features: Features) -> Tensor:
        vectors = features["vectors"] if self.pooling is None else self.pooling(features["maps"]).flatten(1)
        embedded: Tensor = self.embedding(vectors)
        return embedded


def make_neck(kind: Literal["batch", "layer"] | None, width: int) -> nn.Module:
    """Return the layer between feature and classifier."""
    if kind == "batch":
        return BNNeck(width)
    return nn.LayerNorm(width, elementwise_affine=False) if kind == "layer" else nn.Identity()


class CameraEmbedding(nn.Module):
    """A learned vector for each pair of camera and view (side information embedding of He et al. 2021, TransReID,
    section 3.3).

    Images of an unknown camera get the mean over all cameras, images of an unknown view the mean over all views.

    Args:
        cameras, views: their numbers; 0 is the same as 1.
        width: of the vectors.
        scale: multiplies them.
    """

    def __init__(self, cameras: int, views: int, width: int, scale: float) -> None:
        super().__init__()
        self.cameras, self.views, self.scale = max(1, cameras), max(1, views), scale
        self.table = nn.Parameter(torch.empty(self.cameras * self.views, width))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, batch: Batch) -> Tensor:
        """Return vectors (B x width) for ``batch["camera"]`` and ``batch["view"]`` (int64, B)."""
        count = len(batch["image"])
        table = self.table.view(self.cameras, self.views, -1)
        of_camera = table[batch["camera"]] if "camera" in batch else table.mean(0).expand(count, -1, -1)
        if "view" not in batch:
            return self.scale * of_camera.mean(1)
        vectors: Tensor = of_camera[torch.arange(count, device=table.device), batch["view"]]
        return self.scale * vectors


def camera_embedding(backbone: nn.Module, dataset_info: DatasetInfo, scale: float | None) -> CameraEmbedding | None:
    """Return the vectors that are added to the tokens of ``backbone``; None without a scale.

    Raises:
        ValueError: the backbone has no tokens, or the data has neither cameras nor views.
    """
    if scale is None:
        return None
    width = int(getattr(backbone, "token_channels", 0))
    if not width:
        raise ValueError(
            f"camera_embedding_scale: vectors are added to tokens, which {type(backbone).__name__} does not have"
        )
    if max(dataset_info.cameras, dataset_info.views) < 2:
        raise ValueError("camera_embedding_scale: the training data has neither cameras nor views")
    return CameraEmbedding(dataset_info.cameras, dataset_info.views, width, scale)
