"""The base classes of tasks that predict from the feature maps of padded images, and of their export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import MinLen
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    DatasetInfo,
    ExportModule,
    FeatureKind,
    Fraction,
    Positive,
    Predictions,
    Sample,
    Sizes,
    Task,
)
from opabinia.models import norms
from opabinia.models.backbones.module import build_backbone
from opabinia.models.layers import build_normalization


@register.section(name="test_time_augmentation")
@dataclass(frozen=True, kw_only=True)
class TestTimeAugmentation:
    """Views of each image whose predictions are merged: detections by suppression (detectron2's
    GeneralizedRCNNWithTTA), probabilities of pixels by their mean.

    Args:
        scales: sides of the views, relative to the image as the transforms give it. detectron2's shorter sides of 400,
            500 ... 1200 are 0.5, 0.625 ... 1.5 of 800.
        flip: add the mirrored image of each view.
        iou: of boxes of one class that overlap by more than this only the best is kept; not used for pixels.
    """

    __test__ = False  # pytest would collect it by its name

    scales: Annotated[list[Positive], MinLen(1)]
    flip: bool = True
    iou: Fraction = 0.5


class DensePrediction(Task):
    """Read feature maps of several strides from a backbone, whose first stages and norms may be frozen.

    Args:
        dataset_info: of the training data.
        backbone: maps images to feature maps of several strides.
        freeze_stages: number of frozen stages of the backbone, counted from the stem.
        freeze_norms: batch norms of the backbone keep their statistics and weights; ``statistics``: only these.
        freeze_random: accept frozen stages or norms of a backbone with random weights.
        mean, std: of images in 0..1; see :func:`opabinia.models.layers.build_normalization`.

    Attributes:
        levels: of the backbone's feature maps, from fine to coarse.
    """

    reads: tuple[FeatureKind, ...] = ("pyramid",)

    def __init__(
        self,
        dataset_info: DatasetInfo,
        backbone: BackbonePart,
        freeze_stages: int,
        freeze_norms: bool | Literal["statistics"],
        freeze_random: bool,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
    ) -> None:
        super().__init__()
        self.dataset_info = dataset_info
        net = build_backbone(backbone, dataset_info.channels)
        self.normalize = build_normalization(net.preprocessing, dataset_info.channels, mean, std)
        self.levels = net.enable_multi_scale()
        if freeze_norms:
            norms.freeze_batch_norms(net, trained_weights=freeze_norms == "statistics")
        if freeze_stages:
            net.freeze_stages(freeze_stages)
        if (freeze_stages or freeze_norms) and net.preprocessing is None and not freeze_random:
            self.needs_weights = (
                "freeze_stages and freeze_norms would freeze random weights: load weights with init.weights or "
                "backbone.pretrained, set both to 0 and false, or set freeze_random: true"
            )
        self.backbone = net

    def feature_maps(self, images: Tensor, sizes: Sizes | Tensor) -> list[Tensor]:
        """Return the backbone's feature maps of a padded batch; padding is 0 after normalization, as in detectron2.

        Args:
            images: B x C x H x W, such as views of those of a batch.
            sizes: height and width of each image in it.
        """
        return self.backbone.pyramid_features(self.normalize(images, sizes))

    def predict(self, batch: Batch) -> Predictions:
        """See :meth:`opabinia.contracts.Task.predict`; features of the whole images are computed if they are read."""
        return self.predictions(self.extract(batch) if self.reads_whole_images(batch) else {}, batch)

    def reads_whole_images(self, batch: Batch) -> bool:
        """Return whether ``predictions`` reads features of the batch, not only of views that it makes of its images."""
        return True

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Return ``embedding``: the mean over the backbone's coarsest feature maps (B x M), without padding."""
        sizes, shape = batch["image_sizes"], batch["image"].shape[-2:]
        coarsest = self.extract(batch)["pyramid"][-1]
        rows, columns = coarsest.shape[-2:]
        areas = [(ceil(height * rows / shape[0]), ceil(width * columns / shape[1])) for height, width in sizes]
        means = [maps[:, :height, :width].mean((1, 2)) for maps, (height, width) in zip(coarsest, areas, strict=True)]
        return {"embedding": torch.stack(means)}


def mirror(images: Tensor, sizes: Sizes) -> Tensor:
    """Mirror each image of a padded batch (B x C x H x W) within its own width; it stays at the left."""
    mirrored = images.clone()
    for image, (_, width) in zip(mirrored, sizes, strict=True):
        image[..., :width] = image[..., :width].flip(-1)
    return mirrored


class PaddedExport(ExportModule):
    """A function of images padded to one size: ``image``, and ``image_sizes`` (int64, B x 2), height and width of the
    image within the padded input; the rest, to the right and at the bottom, is padding.

    Args:
        task: in evaluation mode, on the CPU.
    """

    def forward(self, image: Tensor, image_sizes: Tensor) -> Predictions:  # type: ignore[override]
        """Return predictions by name."""
        return self.outputs({"pyramid": self.task.feature_maps(image, image_sizes)}, image, image_sizes)

    def inputs(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Return images padded to the largest height and width among them, rounded up as the task needs it."""
        return padded_inputs(samples, self.task.size_multiple or 1)


def padded_inputs(samples: Sequence[Sample], multiple: int) -> dict[str, Tensor]:
    """Return ``image``, padded to the largest height and width among the images, rounded up to a multiple, and
    ``image_sizes``; see :class:`PaddedExport`."""
    images = [sample["image"].as_subclass(Tensor) for sample in samples]
    sizes = torch.tensor([image.shape[-2:] for image in images])
    height, width = (ceil(side / multiple) * multiple for side in sizes.amax(0).tolist())
    padded = [F.pad(image, (0, width - image.shape[-1], 0, height - image.shape[-2])) for image in images]
    return {"image": torch.stack(padded), "image_sizes": sizes}
