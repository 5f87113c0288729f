"""Classification of films by their clips."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    DataMismatch,
    DatasetInfo,
    Evaluator,
    Fraction,
    LossPart,
    Predictions,
)
from opabinia.evaluation.classification.video import PerVideo
from opabinia.tasks.classification_base import Labelled, logits_of


@register.task(name="video")
class Video(Labelled):
    """Backbone, linear head and loss of clips: what happens in a film, one label or several.

    A film may be seen in several views, clips over time and crops in space (the source ``views_of_films``); its
    probabilities are merged before anything is counted, the same on any number of processes.

    Args:
        backbone: clips to one vector each, such as ``resnet3d`` or ``slowfast``; frames one by one, by a backbone of
            images: ``{name: tsn, backbone: ...}``.
        loss: of logits (B x K) and labels (B), or targets (B x K) after mixing; null takes cross entropy, for several
            labels a film binary cross entropy.
        dropout: on the vector before the head (Feichtenhofer et al. 2019, section 4: 0.5).
        merge: the probabilities of a film are the mean of its views', or the largest of each class.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.

    Raises:
        ValueError: the backbone takes images.
    """

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
        net = backbone(dataset_info.channels)
        if not net.clips:
            raise ValueError(
                "backbone: video learns from clips, and this one takes images; to look at frames one by one say "
                "{name: tsn, backbone: ...}"
            )
        super().__init__(dataset_info, net, loss, dropout, mean, std)
        self.merge = merge

    def embed(self, batch: Batch) -> Tensor:
        """The backbone's vectors (B x D) of ``image`` (B x T x C x H x W).

        Raises:
            Unfit: these are no clips.
        """
        clips = batch.get("image")
        if clips is None or clips.ndim != 5:
            raise DataMismatch(
                "video learns from clips (B x T x C x H x W), and batches have none; put clip first among the "
                "transforms of films"
            )
        frames = self.normalize(clips.flatten(0, 1))
        features: Tensor = self.backbone(frames.unflatten(0, clips.shape[:2]).transpose(1, 2))
        return features

    def predict(self, batch: Batch) -> Predictions:
        """As of any labelled samples.

        Of films with several views (B x V x T x C x H x W) merged over them, with those of each beside them: ``views``
        (probabilities, B x V x K).
        """
        clips = batch["image"]
        if clips.ndim != 6:
            return super().predict(batch)
        each = super().predict({**batch, "image": clips.flatten(0, 1)})["probabilities"].view(*clips.shape[:2], -1)
        merged = each.mean(1) if self.merge == "mean" else each.amax(1)
        logits = logits_of(merged, multi_label=self.dataset_info.multi_label)
        return {"logits": logits, "probabilities": merged, "views": each}

    def readable(self, prediction: Mapping[str, Tensor]) -> dict[str, Any]:
        """``top``: the five likeliest classes with their probabilities; of several ``views`` the likeliest of each."""
        found = super().readable(prediction)
        if "views" in prediction:
            values, numbers = prediction["views"].max(1)
            names = [self.dataset_info.classes[number] for number in numbers.tolist()]
            pairs = zip(names, values.tolist(), strict=True)
            found["views"] = [{"class": name, "probability": round(value, 6)} for name, value in pairs]
        return found

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """``embedding``: what the head sees (B x D), of several views their mean."""
        clips = batch["image"]
        if clips.ndim != 6:
            return super().features(batch)
        each = super().features({**batch, "image": clips.flatten(0, 1)})["embedding"]
        return {"embedding": each.view(*clips.shape[:2], -1).mean(1)}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Those of one label or of several, of films by all of their views. The first score is the headline."""
        to_logits = partial(logits_of, multi_label=self.dataset_info.multi_label)
        return [PerVideo(super().evaluators(dataset_info), to_logits, self.merge)]
