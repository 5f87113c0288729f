"""Semantic segmentation as a plug-in: source, decoder head and mean IoU. Every pixel gets the class of its digit.

    cd docs/examples
    opabinia train semantic_segmentation.yaml
    opabinia eval RUN; opabinia predict RUN IMAGES/; opabinia report RUN; opabinia export RUN

Maps are ``tv_tensors.Mask`` of H x W, so transforms change them together with their image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import tv_tensors

from opabinia import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    DatasetInfo,
    Evaluator,
    Predictions,
    Sample,
    Source,
    SourceInfo,
    Task,
)
from opabinia.data.sources import DigitScenes
from opabinia.models.layers import build_normalization

IGNORE = 255
"""Class number of pixels without a label; padding has it, too."""


@register.source
class DigitSegmentation(Source):
    """Scenes of handwritten digits, 128 x 128, with a segmentation map of background and ten digits.

    Args:
        split: train or val.
    """

    info = SourceInfo(channels=1, classes=("background", *"0123456789"))

    def __init__(self, *, split: Literal["train", "val"] = "train") -> None:
        self._scenes = DigitScenes(split=split, masks=True)

    def __len__(self) -> int:
        return len(self._scenes)

    def __getitem__(self, index: int) -> Sample:
        scene = self._scenes[index]
        mask = torch.zeros(scene["image"].shape[-2:], dtype=torch.uint8)
        for digit, pixels in zip(scene["labels"].tolist(), scene["masks"], strict=True):
            mask[pixels.bool()] = digit + 1
        return {"image": scene["image"], "mask": tv_tensors.Mask(mask), "id": scene["id"]}


@register.task
class SemanticSegmentation(Task):
    """Segment images with the feature maps of any backbone with several scales, trained with cross entropy.

    Args:
        backbone: maps images to feature maps of several strides.
        width: channels of the decoder.
    """

    def __init__(self, dataset_info: DatasetInfo, /, *, backbone: BackbonePart, width: int = 64) -> None:
        super().__init__()
        self.classes = dataset_info.classes
        self.backbone = backbone(dataset_info.channels)
        self.normalize = build_normalization(self.backbone.preprocessing, dataset_info.channels)
        levels = self.backbone.enable_multi_scale()
        self.laterals = nn.ModuleList(nn.Conv2d(level.channels, width, 1) for level in levels)
        self.head = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, len(self.classes), 1)
        )

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        logits, mask = self.predict(batch)["pixel_logits"], batch["mask"].long()
        accuracy = (logits.argmax(1) == mask)[mask != IGNORE].float().mean()
        return {"loss": F.cross_entropy(logits, mask, ignore_index=IGNORE), "accuracy": accuracy}

    def predict(self, batch: Batch) -> Predictions:
        maps = self.backbone.pyramid_features(self.normalize(batch["image"]))
        maps = [lateral(level) for lateral, level in zip(self.laterals, maps, strict=True)]
        fused = torch.stack([F.interpolate(level, size=maps[0].shape[-2:]) for level in maps]).sum(0)
        return {"pixel_logits": F.interpolate(self.head(fused), size=batch["image"].shape[-2:], mode="bilinear")}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        return [MeanIoU(len(self.classes))]


class MeanIoU(Evaluator):
    """Intersection over union, averaged over classes, and pixel accuracy; from a confusion matrix, so it is exact."""

    def __init__(self, classes: int) -> None:
        self.better = {"miou": "max", "accuracy": "max"}
        self._confusion = torch.zeros(classes, classes, dtype=torch.int64)

    def update(self, predictions: Predictions, batch: Batch) -> None:
        truth, predicted = batch["mask"].long(), predictions["pixel_logits"].argmax(1)
        pairs = (truth * len(self._confusion) + predicted)[truth != IGNORE]
        self._confusion += pairs.bincount(minlength=self._confusion.numel()).view_as(self._confusion)

    def state(self) -> list[list[int]]:
        return self._confusion.tolist()

    def compute(self, states: Sequence[list[list[int]]]) -> dict[str, float]:
        confusion = torch.tensor(states).sum(0).double()
        correct, union = confusion.diag(), confusion.sum(0) + confusion.sum(1) - confusion.diag()
        if not union.sum():
            return {}
        iou = correct[union > 0] / union[union > 0]
        return {"miou": float(iou.mean()), "accuracy": float(correct.sum() / confusion.sum())}
