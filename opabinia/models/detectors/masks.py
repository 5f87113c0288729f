"""The mask head of R-CNNs: instance masks within boxes (He et al. 2017, section 3)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import roi_align

from opabinia.config import register
from opabinia.contracts import ClassRows, Count, Detections, Level, Target
from opabinia.models.detectors.regions import PoolingOptions, RegionPool, Regions, concat_regions, foreground_regions
from opabinia.models.losses.masks import masks_at_once, region_mask_losses
from opabinia.models.necks import Norm, norm_factory


@register.section(name="region_masks")
@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """Options of the mask head. Defaults are those of detectron2's R-CNNs with a feature pyramid, and the paper's.

    Args:
        resolution: side of the square that a region is pooled to; masks have twice as many pixels.
        sampling_ratio: see :class:`PoolingOptions`; null: as for the boxes.
        num_convs: convolutions before the one that doubles the resolution.
        channels: number of channels of each.
        norm: after each.
        class_agnostic: one mask per region instead of one per class.
        soft_targets: the target of a pixel that the object covers in part is that part (torchvision), not 0 or 1.
    """

    resolution: Count = 14
    sampling_ratio: Annotated[int, Ge(0)] | None = None
    num_convs: Annotated[int, Ge(0)] = 4
    channels: Count = 256
    norm: Norm = "none"
    class_agnostic: bool = False
    soft_targets: bool = False


class Masks(nn.Module):
    """Base class of heads that predict the masks of detections."""

    @abstractmethod
    def probabilities(self, maps: Sequence[Tensor], boxes: Sequence[Tensor] | Tensor, labels: Tensor) -> Tensor:
        """Return the probability of each pixel to belong to the object (R x S x S).

        Args:
            maps: feature maps of the neck.
            boxes: see :meth:`RegionPool.forward`.
            labels: labels of all R boxes.
        """

    def describe(self, maps: Sequence[Tensor], detections: Sequence[Detections]) -> list[Detections]:
        """Add masks (D x S x S) to the detections of each image."""
        labels = torch.cat([image.labels for image in detections])
        boxes = [image.boxes for image in detections]
        masks = torch.split(self.probabilities(maps, boxes, labels), list(map(len, boxes)))
        return [image._replace(masks=mask) for image, mask in zip(detections, masks, strict=True)]

    def describe_batch(self, maps: Sequence[Tensor], shape: tuple[int, int], detections: Detections) -> Detections:
        """Add masks (B x D x S x S) to those of B images in a batch of height and width ``shape``; padding has 0."""
        labels = detections.labels
        masks = self.probabilities(maps, detections.boxes, labels.clamp(min=0).flatten())
        return detections._replace(masks=masks.view(*labels.shape, *masks.shape[1:]) * (labels >= 0)[..., None, None])


class MaskHead(Masks):
    """One mask for each class, of which that of the predicted class is used, or one for all.

    Its weights have torchvision's names (``layers.0.0``, ``predictor.conv5_mask``, ``predictor.mask_fcn_logits``), but
    there is no mask of the background: the first row of torchvision's last layer is dropped. detectron2's
    ``mask_fcn1`` ..., ``deconv`` and ``predictor`` have the same shapes and order.

    Args:
        levels: feature levels of the neck.
        classes: K.
        options: see :class:`MaskOptions`.
        pooling: see :class:`PoolingOptions`.

    Raises:
        ValueError: the neck has fewer levels than are pooled from.
    """

    def __init__(self, levels: Sequence[Level], classes: int, options: MaskOptions, pooling: PoolingOptions) -> None:
        super().__init__()
        self.options, self.classes = options, classes
        self.pool = RegionPool(levels, options.resolution, pooling.with_sampling_ratio(options.sampling_ratio))
        norm = norm_factory(options.norm, options.channels)
        width, masks = self.pool.out_channels, 1 if options.class_agnostic else classes
        self.layers = MaskRCNNHeads(width, [options.channels] * options.num_convs, 1, norm)
        self.predictor = MaskRCNNPredictor(options.channels if options.num_convs else width, options.channels, masks)
        nn.init.normal_(self.predictor.mask_fcn_logits.weight, std=0.001)
        self.class_layers = {} if options.class_agnostic else {"predictor.mask_fcn_logits": ClassRows()}

    def _logits(self, maps: Sequence[Tensor], boxes: Sequence[Tensor] | Tensor, labels: Tensor) -> Tensor:
        """Compute the masks of the given classes (R x S x S)."""
        logits: Tensor = self.predictor(self.layers(self.pool(maps, boxes))).float()
        if self.options.class_agnostic:
            return logits[:, 0]
        return logits[torch.arange(labels.shape[0], device=labels.device), labels]

    def losses(
        self, maps: Sequence[Tensor], regions: Sequence[Sequence[Regions]], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """See :func:`~opabinia.models.losses.masks.region_mask_losses`. Images whose masks are unknown have no part.

        Args:
            maps: feature maps of the neck.
            regions: regions of each image, by stages of the box head; the first is used (detectron2).
            targets: one per image.
        """
        foreground = [
            image if target.masks is None or len(target.masks) else image.at(slice(0))
            for image, target in zip(foreground_regions(regions[0], self.classes), targets, strict=True)
        ]
        boxes = [image.boxes for image in foreground]
        logits = self._logits(maps, boxes, concat_regions(foreground).labels)
        masks = torch.cat(
            [self._target_masks(*image, logits.shape[-1]) for image in zip(foreground, targets, strict=True)]
        )
        return region_mask_losses(logits, masks)

    def _target_masks(self, regions: Regions, target: Target, side: int) -> Tensor:
        """Crop the ground-truth masks to the regions of one image (R x S x S), 0 to 1."""
        if target.masks is None:
            raise ValueError("an image without masks came to a detector that learns them: masks: true in the source")
        covered = regions.boxes.new_zeros(len(regions.boxes), side, side)
        if not len(regions.boxes):
            return covered
        count = masks_at_once(*target.masks.size)
        for first in range(0, len(target.masks), count):
            masks = target.masks.dense(slice(first, first + count))[:, None].to(regions.boxes)
            index = regions.matched - first
            present = (index >= 0) & (index < len(masks))
            # Of the other regions, whose objects come earlier or later, next to nothing is computed: they are empty.
            rois = torch.cat([index[:, None].to(regions.boxes), regions.boxes], dim=1).where(present[:, None], 0)
            values = roi_align(masks, rois, side, 1.0, 0, aligned=self.pool.options.aligned)[:, 0]
            covered = values.where(present[:, None, None], covered)
        return covered if self.options.soft_targets else (covered >= 0.5).to(covered)

    def probabilities(self, maps: Sequence[Tensor], boxes: Sequence[Tensor] | Tensor, labels: Tensor) -> Tensor:
        """Return masks, see :meth:`Masks.probabilities`."""
        return self._logits(maps, boxes, labels).sigmoid()
