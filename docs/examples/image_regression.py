"""Image regression as a plug-in: predict by how many degrees a handwritten digit is rotated.

    cd docs/examples
    opabinia train image_regression.yaml
    opabinia eval RUN; opabinia predict RUN IMAGES/; opabinia report RUN; opabinia export RUN

A task defines what a batch means; ``image_regression.yaml`` names this module under ``plugins``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms.v2.functional import InterpolationMode, rotate

from opabinia import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    DatasetInfo,
    Evaluator,
    Positive,
    Predictions,
    Sample,
    Source,
    SourceInfo,
    Task,
)
from opabinia.data.sources import Digits
from opabinia.models.layers import build_normalization


@register.source
class RotatedDigits(Source):
    """Handwritten digits, 32 x 32, each rotated by a fixed angle.

    Args:
        split: train or val.
        max_angle: angles are between minus and plus this many degrees.
    """

    info = SourceInfo(channels=1)

    def __init__(self, *, split: Literal["train", "val"] = "train", max_angle: Positive = 60.0) -> None:
        self._digits, self._max_angle = Digits(split=split), max_angle

    def __len__(self) -> int:
        return len(self._digits)

    def __getitem__(self, index: int) -> Sample:
        sample = self._digits[index]
        image = F.interpolate(sample["image"][None].float(), 32, mode="bilinear").byte()[0]
        angle = self._max_angle * ((index * 0.618034) % 1 * 2 - 1)  # evenly spread, the same in every epoch
        rotated = rotate(image, angle, InterpolationMode.BILINEAR)
        return {"image": tv_tensors.Image(rotated), "value": angle, "id": sample["id"]}


@register.task
class ImageRegression(Task):
    """Predict one number per image, trained with the squared error.

    Args:
        backbone: maps images to vectors.
        scale: targets are divided by it for training, so that they are about 1 in size.
    """

    def __init__(self, dataset_info: DatasetInfo, /, *, backbone: BackbonePart, scale: Positive = 1.0) -> None:
        super().__init__()
        self.backbone = backbone(dataset_info.channels)
        self.normalize = build_normalization(self.backbone.preprocessing, dataset_info.channels)
        self.head = nn.Linear(self.backbone.out_channels, 1)
        self._scale = scale

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        error = self.predict(batch)["value"] - batch["value"]
        return {"loss": (error / self._scale).square().mean(), "mae": error.abs().mean()}

    def predict(self, batch: Batch) -> Predictions:
        return {"value": self.head(self.features(batch)["embedding"]).squeeze(1) * self._scale}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        return {"embedding": self.backbone(self.normalize(batch["image"]))}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        return [MeanAbsoluteError()]


class MeanAbsoluteError(Evaluator):
    """The mean absolute error, over all processes."""

    def __init__(self) -> None:
        self.better = {"mae": "min"}
        self._errors: list[float] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        self._errors += (predictions["value"] - batch["value"]).abs().tolist()

    def state(self) -> list[float]:
        return self._errors

    def compute(self, states: Sequence[list[float]]) -> dict[str, float]:
        errors = [error for state in states for error in state]
        return {"mae": sum(errors) / len(errors)} if errors else {}
