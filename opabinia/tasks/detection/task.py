"""Object detection: things in their boxes, with masks and keypoints where the detector and the data know them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Count,
    DatasetInfo,
    Detections,
    DetectorPart,
    Evaluator,
    EvaluatorPart,
    Predictions,
    Sizes,
    Target,
    Task,
)
from opabinia.evaluation.detection.coco import Coco
from opabinia.evaluation.detection.mean_losses import MeanLosses
from opabinia.models import norms
from opabinia.models.layers import normalize_as
from opabinia.tasks.detection.test_time_augmentation import Views, seen_often


@register.task(name="detection")
class Detection(Task):
    """Backbone and detector, which brings its neck and its losses.

    Evaluated by COCO's average precision of boxes, and of masks and keypoints where both sides have them.

    Args:
        backbone: images to feature maps of several sizes.
        detector: what finds things in them: ``fcos``, ``retinanet``, ``faster_rcnn``, ``mask_rcnn`` ...
        freeze_stages: so many stages of the backbone learn nothing, the stem being the first (detectron2's FREEZE_AT,
            there 2); for pretrained backbones.
        freeze_norms: batch norms of the backbone keep their statistics and weights; for pretrained backbones.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.
        size_multiple: sides of a padded batch are multiples of it; null takes what the detector needs.
        validation_loss: compute the losses on validation data, too (``val/loss``).
        views: predict from several sizes and mirror images; null from the image as it comes.
        evaluator: null takes ``coco``.

    Raises:
        ValueError: the training data has no boxes, or no classes.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        detector: DetectorPart,
        freeze_stages: int = 0,
        freeze_norms: bool = False,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        size_multiple: Count | None = None,
        validation_loss: bool = True,
        views: Views | None = None,
        evaluator: EvaluatorPart | None = None,
    ) -> None:
        super().__init__()
        if not dataset_info.boxes or not dataset_info.classes:
            lacks = "boxes: take a source of them, such as coco" if not dataset_info.boxes else "no class of things"
            raise ValueError(f"detection learns where things are; the training data has {lacks}")
        self.dataset_info = dataset_info
        net = backbone(dataset_info.channels)
        self.normalize = normalize_as(net.preprocessing, dataset_info.channels, mean, std)
        levels = net.use_levels()
        if freeze_norms:
            norms.freeze(net)
        if freeze_stages:
            net.freeze_stages(freeze_stages)
        self.backbone = net
        self.detector = detector(levels, dataset_info)
        self.size_multiple = self._multiple = size_multiple or self.detector.size_multiple
        self._validation_loss, self._views, self._evaluator = validation_loss, views, evaluator

    @property
    def predicts_views(self) -> bool:
        """Whether it predicts from several sizes of an image."""
        return self._views is not None

    def _levels(self, images: Tensor, sizes: Sizes) -> list[Tensor]:
        """The backbone's maps of a padded batch, whose padding is the mean colour: 0 after normalisation, as in
        detectron2."""
        normalised = self.normalize(images)
        if any(size != tuple(images.shape[-2:]) for size in sizes):
            normalised = normalised * inside(images, sizes)
        return self.backbone.levels(normalised)

    def _maps(self, images: Tensor, sizes: Sizes) -> list[Tensor]:
        """What the detector looks at."""
        return self.detector.pyramid(self._levels(images, sizes))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """The detector's losses under their own names, and what it tells beside them."""
        images, sizes = batch["image"], batch["image_sizes"]
        return self.detector.losses(self._maps(images, sizes), _shape(images), sizes, targets(batch))

    def predict(self, batch: Batch) -> Predictions:
        """Things in the pixels of the pictures as they were read (see :data:`opabinia.contracts.Predictions`), and
        ``losses/...`` where the batch has boxes."""
        images, sizes = batch["image"], batch["image_sizes"]
        loses = self._validation_loss and "boxes" in batch
        maps = self._maps(images, sizes) if loses or self._views is None else []  # views have maps of their own
        if self._views is not None:
            found = seen_often(self.detector, self._maps, images, sizes, self._views, self._multiple)
        else:
            found = self.detector.detect(maps, _shape(images), sizes)
            found = self.detector.describe(maps, _shape(images), sizes, found)
        in_pictures = map(scaled, found, sizes, batch["original_size"])
        rows = stacked(list(in_pictures), self.detector.most)
        return rows | (self._losses(maps, batch) if loses else {})

    def _losses(self, maps: Sequence[Tensor], batch: Batch) -> dict[str, Tensor]:
        images, sizes = batch["image"], batch["image_sizes"]
        # Two-stage detectors draw which proposals they learn from: the same ones whenever this batch comes.
        devices = [images.device] if images.is_cuda else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(0)
            said = self.detector.losses(maps, _shape(images), sizes, targets(batch))
        losses = {name: value for name, value in said.items() if "loss" in name}
        losses["loss"] = torch.stack(list(losses.values())).sum()
        return {f"losses/{name}": value.expand(len(sizes)) for name, value in losses.items()}

    def readable(self, prediction: Mapping[str, Tensor]) -> dict[str, Any]:
        """``things``: each with ``class``, ``score``, its ``box`` (left, top, right, bottom) and, where there are
        some, ``keypoints`` (x, y and score by name)."""
        found = []
        for number in range(int((prediction["labels"] >= 0).sum())):
            one = {
                "class": self.dataset_info.classes[int(prediction["labels"][number])],
                "score": round(float(prediction["scores"][number]), 4),
                "box": [round(value, 2) for value in prediction["boxes"][number].tolist()],
            }
            if "keypoints" in prediction:
                points = prediction["keypoints"][number].tolist()
                one["keypoints"] = {
                    name: [round(value, 2) for value in point]
                    for name, point in zip(self.dataset_info.keypoints, points, strict=True)
                }
            found.append(one)
        return {"things": found}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """``embedding``: the mean over the backbone's coarsest maps (B x M), where they show images and not padding."""
        sizes, shape = batch["image_sizes"], _shape(batch["image"])
        coarsest = self._levels(batch["image"], sizes)[-1]
        height, width = _shape(coarsest)
        seen = [(ceil(high * height / shape[0]), ceil(wide * width / shape[1])) for high, wide in sizes]
        means = [one[:, :rows, :columns].mean((1, 2)) for one, (rows, columns) in zip(coarsest, seen, strict=True)]
        return {"embedding": torch.stack(means)}

    def explain(self, batch: Batch) -> Tensor:
        """Refuses: what is found says itself where it is.

        Raises:
            ValueError: always.
        """
        raise ValueError("a detector's boxes say where its predictions come from; there is nothing else to explain")

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """The one that the config names, or COCO's; and the losses.

        Raises:
            ValueError: the set has no boxes, other classes, keypoints or channels than the training data.
        """
        if dataset_info.channels != self.dataset_info.channels:
            raise ValueError(
                f"its images have {dataset_info.channels} channels, those of training {self.dataset_info.channels}"
            )
        if not dataset_info.boxes:
            raise ValueError("it has no boxes to compare with")
        if dataset_info.classes != self.dataset_info.classes:
            missing = [name for name in self.dataset_info.classes if name not in dataset_info.classes]
            new = [name for name in dataset_info.classes if name not in self.dataset_info.classes]
            raise ValueError(
                f"its classes are not those of the training data (missing: {', '.join(missing) or 'none'}; "
                f"new: {', '.join(new) or 'none'}; the order counts)"
            )
        if self.detector.keypoints and dataset_info.keypoints not in ((), self.dataset_info.keypoints):
            raise ValueError(
                f"its keypoints are {listed(dataset_info.keypoints)}, those of training {listed(self.dataset_info.keypoints)}"
            )
        known = replace(
            dataset_info,
            masks=dataset_info.masks and self.detector.masks,
            keypoints=dataset_info.keypoints if self.detector.keypoints else (),
        )
        found = [(self._evaluator or Coco)(known)]
        return [*found, MeanLosses()] if self._validation_loss else found


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def targets(batch: Batch) -> list[Target]:
    """What is to be found in each image of a batch."""
    absent = [None] * len(batch["boxes"])
    points: Sequence[Tensor | None] = absent
    if "keypoints" in batch:
        pairs = zip(batch["keypoints"], batch["visible"], strict=True)
        points = [torch.cat([where, seen.to(where.dtype).unsqueeze(-1)], -1) for where, seen in pairs]
    columns = batch["boxes"], batch["labels"], batch.get("masks", absent), points
    return [Target(*row) for row in zip(*columns, strict=True)]


def inside(images: Tensor, sizes: Sizes) -> Tensor:
    """Which pixels of a padded batch (B x C x H x W) belong to images (bool, B x 1 x H x W)."""
    ends = torch.tensor(sizes).to(images.device, non_blocking=True)
    height, width = (torch.arange(side, device=images.device) for side in images.shape[-2:])
    return ((height < ends[:, :1])[:, :, None] & (width < ends[:, 1:])[:, None, :]).unsqueeze(1)


def scaled(found: Detections, size: tuple[int, int], picture: tuple[int, int]) -> Detections:
    """Detections in an image of this size (height, width), in the pixels of the picture that it was resized from."""
    (height, width), (full_height, full_width) = size, picture
    factors = found.boxes.new_tensor([full_width / width, full_height / height])
    ends = found.boxes.new_tensor([full_width, full_height])
    boxes = (found.boxes.view(-1, 2, 2) * factors).clamp(min=0).minimum(ends).view(-1, 4)
    points = found.keypoints
    if points is not None:
        points = torch.cat([points[..., :2] * factors, points[..., 2:]], -1)
    return found._replace(boxes=boxes, keypoints=points)


def stacked(found: Sequence[Detections], most: int) -> dict[str, Tensor]:
    """Detections of B images as tensors with a row for each image, filled up to ``most`` things with label -1."""
    rows = {
        name: torch.stack([_filled(one, most, -1 if name == "labels" else 0) for one in values])
        for name, values in zip(Detections._fields, zip(*found, strict=True), strict=True)
        if values[0] is not None
    }
    return rows


def _filled(values: Tensor, most: int, value: int) -> Tensor:
    rest = values.new_full((most - len(values), *values.shape[1:]), value)
    return torch.cat([values, rest])


def _shape(images: Tensor) -> tuple[int, int]:
    return (images.shape[-2], images.shape[-1])
