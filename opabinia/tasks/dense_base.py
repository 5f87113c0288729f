"""The base classes of tasks that predict from the feature maps of padded images, and of their export."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from annotated_types import MinLen
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    DatasetInfo,
    Detections,
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


@runtime_checkable
class BatchDetector(Protocol):
    """A detector whose shapes are static apart from the number of images: ``detect_batch`` returns the same number of
    detections for every image, padded with label -1, with masks and keypoints.

    Attributes:
        max_detections: maximum number of detections per image.
    """

    max_detections: int

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]: ...

    def detect_batch(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor) -> Detections: ...


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


def validation_losses(compute: Callable[[], Mapping[str, Tensor]], images: Tensor) -> dict[str, Tensor]:
    """Return ``losses/...`` of an evaluation batch, each term and their sum, for every image.

    Args:
        compute: returns the losses. Detectors sample proposals, mask classifiers points: a fixed seed gives the same
            ones whenever this batch is evaluated.
        images: images of the batch (B x C x H x W).
    """
    with torch.random.fork_rng([images.device] if images.is_cuda else []):
        torch.manual_seed(0)
        values = compute()
    losses = {name: value for name, value in values.items() if "loss" in name}
    losses["loss"] = torch.stack(list(losses.values())).sum()
    return {f"losses/{name}": value.expand(len(images)) for name, value in losses.items()}


def mirror(images: Tensor, sizes: Sizes) -> Tensor:
    """Mirror each image of a padded batch (B x C x H x W) within its own width; it stays at the left."""
    mirrored = images.clone()
    for image, (_, width) in zip(mirrored, sizes, strict=True):
        image[..., :width] = image[..., :width].flip(-1)
    return mirrored


def window_starts(length: int, size: int, overlap: float) -> list[int]:
    """Return the starts of evenly spaced windows along a side of an image; the last one ends with the image."""
    stride = max(1, round(size * (1 - overlap)))
    return [*range(0, length - size, stride), max(0, length - size)]


def crop_windows(
    image: Tensor, image_size: tuple[int, int], size: tuple[int, int], overlap: float, batch_size: int, multiple: int
) -> Iterator[tuple[list[tuple[int, int]], Tensor, list[tuple[int, int]]]]:
    """Yield batches of overlapping windows that cover an image: the top and left of each, the crops (N x C x h x w),
    whose sides are padded to ``multiple``, and the height and width of each crop without padding.

    Args:
        image: an image of a padded batch (C x H x W).
        image_size: its height and width.
        size: height and width of the windows; those of a smaller image are smaller.
        overlap: overlap of neighboring windows, relative to their sides.
        batch_size: windows in a batch.
        multiple: see above.
    """
    height, width = map(min, image_size, size)
    rows, columns = (window_starts(side, limit, overlap) for side, limit in zip(image_size, size, strict=True))
    corners = [(top, left) for top in rows for left in columns]
    for start in range(0, len(corners), batch_size):
        batch = corners[start : start + batch_size]
        crops = torch.stack([image[:, top : top + height, left : left + width] for top, left in batch])
        yield batch, F.pad(crops, (0, -width % multiple, 0, -height % multiple)), [(height, width)] * len(batch)


class PaddedExport(ExportModule):
    """A function of images padded to one size: ``image``, and ``image_sizes`` (int64, B x 2), height and width of the
    image within the padded input; the rest, to the right and at the bottom, is padding.

    Args:
        task: in evaluation mode, on the CPU.

    Attributes:
        refused: options of the task that change its predictions and are no part of a graph, with the reason.
        output_names: names of the outputs.
    """

    refused: ClassVar[Mapping[str, str]] = {}
    output_names: ClassVar[Sequence[str]] = ()

    def check_static(self) -> None:
        for key, reason in self.refused.items():
            if getattr(self.task, key) is not None:
                raise ValueError(f"task.{key}: {reason}; export with task.{key}=null")
        detector = getattr(self.task, "detector", None)
        if detector is not None and not isinstance(detector, BatchDetector):
            raise ValueError(
                f"task.detector: {type(detector).__name__} has no detect_batch, so its shapes are not static; the "
                "detectors of Opabinia can be exported, and every one in the Hugging Face layout (--format huggingface)"
            )

    def forward(self, image: Tensor, image_sizes: Tensor) -> Predictions:  # type: ignore[override]
        """Return predictions by name."""
        return self.outputs({"pyramid": self.task.feature_maps(image, image_sizes)}, image, image_sizes)

    @torch.no_grad()
    def expected(self, inputs: Mapping[str, Tensor]) -> Predictions:
        sizes = [(int(height), int(width)) for height, width in inputs["image_sizes"].tolist()]
        predictions = self.task.predict({"image": inputs["image"], "image_sizes": sizes, "original_size": sizes})
        return {name: predictions[name] for name in self.output_names if name in predictions}

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
