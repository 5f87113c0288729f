"""Video classification (action recognition): a video is classified by its clips."""

from __future__ import annotations

from functools import partial
from typing import Literal

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    DataMismatch,
    DatasetInfo,
    Evaluator,
    Features,
    Fraction,
    LossPart,
    Predictions,
)
from opabinia.evaluation.classification.video import PerVideo
from opabinia.tasks.classification_base import ClassificationBase, logits_from


@register.task(name="video")
class Video(ClassificationBase):
    """Video classification: backbone, linear head and loss of clips, single-label or multi-label.

    A video may be seen in several views, clips over time and crops in space (the source ``video_views``); their
    probabilities are merged before any metric is computed, with the same result on any number of processes.

    Args:
        backbone: maps clips to vectors, such as ``resnet3d`` or ``slowfast``; a backbone of images sees frames one by
            one: ``{name: tsn, backbone: ...}``.
        loss: of logits (B x K) and labels (B), or targets (B x K) after mixup or cutmix; null takes cross entropy, for
            multi-label data binary cross entropy.
        dropout: of the vectors before the head (Feichtenhofer et al. 2019, section 4: 0.5).
        merge: probabilities of a video are the mean over its views, or the maximum of each class.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.

    Raises:
        ValueError: the backbone takes images.
    """

    reads = ()
    takes_video = True
    next_commands = ("eval", "predict videos", "report", "export", "extract")

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        loss: LossPart | None = None,
        dropout: Fraction = 0.5,
        merge: Literal["mean", "max"] = "mean",
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone=backbone, loss=loss, dropout=dropout, mean=mean, std=std)
        if not self.backbone.clips:
            raise ValueError(
                "backbone: video learns from clips, and this backbone takes images; to see frames one by one give "
                "{name: tsn, backbone: ...}"
            )
        self.merge = merge

    def extract(self, batch: Batch) -> Features:
        """Return the backbone's vectors (B x D) of ``image`` (B x T x C x H x W).

        Raises:
            DataMismatch: the batch has no clips.
        """
        clips = batch.get("image")
        if clips is None or clips.ndim != 5:
            raise DataMismatch(
                "video learns from clips (B x T x C x H x W), and batches have none; put clip first among the "
                "transforms of videos"
            )
        frames = self.normalize(clips.flatten(0, 1))
        return {"vectors": self.backbone(frames.unflatten(0, clips.shape[:2]).transpose(1, 2))}

    def predict(self, batch: Batch) -> Predictions:
        """Return ``logits`` and ``probabilities`` (B x K).

        Probabilities of several views (B x V x T x C x H x W) are merged; then ``views`` (B x V x K) are those of each.
        """
        clips = batch["image"]
        if clips.ndim != 6:
            return super().predict(batch)
        views = super().predict({**batch, "image": clips.flatten(0, 1)})["probabilities"].view(*clips.shape[:2], -1)
        merged = views.mean(1) if self.merge == "mean" else views.amax(1)
        logits = logits_from(merged, multi_label=self.dataset_info.multi_label)
        return {"logits": logits, "probabilities": merged, "views": views}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Return ``embedding``, the input of the head (B x D); of several views their mean."""
        clips = batch["image"]
        if clips.ndim != 6:
            return super().features(batch)
        views = super().features({**batch, "image": clips.flatten(0, 1)})["embedding"]
        return {"embedding": views.view(*clips.shape[:2], -1).mean(1)}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return evaluators of videos by all of their views. The first score is the headline."""
        to_logits = partial(logits_from, multi_label=self.dataset_info.multi_label)
        return [PerVideo(super().evaluators(dataset_info), to_logits, self.merge)]
