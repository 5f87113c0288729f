"""The mask head of R-CNNs: which pixels of a box belong to the thing (He et al. 2017, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import roi_align

from opabinia.config import register
from opabinia.contracts import Count, Detections, Level, Target
from opabinia.models.detectors.boxes import joined
from opabinia.models.detectors.regions import Pooling, RegionPool, Regions, things_in
from opabinia.models.necks import Norm, norm_of


@register.section(name="region_masks")
@dataclass(frozen=True, kw_only=True)
class Masks:
    """How masks are found. Defaults are those of detectron2's R-CNNs with a feature pyramid, and the paper's.

    Args:
        resolution: side of the square that a region is pooled to; masks have twice as many pixels.
        convolutions: before the one that doubles the resolution.
        channels: of each.
        norm: behind each.
        soft: a pixel that the thing covers in part is learned as that part (torchvision), not as 0 or 1.
    """

    resolution: Count = 14
    convolutions: Count = 4
    channels: Count = 256
    norm: Norm = "none"
    soft: bool = False


class MaskHead(nn.Module):
    """One mask for each class, of which the one of the predicted class counts.

    Its weights have torchvision's names (``layers.0.0``, ``predictor.conv5_mask``, ``predictor.mask_fcn_logits``), but
    there is no mask of the background: of torchvision's last layer the first row is dropped. detectron2's
    ``mask_fcn1`` ..., ``deconv`` and ``predictor`` have the same shapes and order.

    Args:
        levels: what the neck gives.
        classes: K.
        how: see :class:`Masks`.
        pooling: see :class:`Pooling`.

    Raises:
        ValueError: the neck gives fewer maps than are to be looked at.
    """

    def __init__(self, levels: Sequence[Level], classes: int, how: Masks, pooling: Pooling) -> None:
        super().__init__()
        self.how, self.classes = how, classes
        self.pool = RegionPool(levels, how.resolution, pooling)
        norm = norm_of(how.norm, how.channels)
        self.layers = MaskRCNNHeads(levels[0].channels, [how.channels] * how.convolutions, 1, norm)
        self.predictor = MaskRCNNPredictor(how.channels, how.channels, classes)
        nn.init.normal_(self.predictor.mask_fcn_logits.weight, std=0.001)

    def _logits(self, maps: Sequence[Tensor], boxes: Sequence[Tensor], labels: Tensor) -> Tensor:
        """R x S x S: the masks of the classes that are asked for."""
        logits: Tensor = self.predictor(self.layers(self.pool(maps, boxes))).float()
        return logits[torch.arange(len(labels), device=labels.device), labels]

    def losses(
        self, maps: Sequence[Tensor], regions: Sequence[Regions], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """``loss_mask``, the mean over the pixels of all masks, and how many pixels were right, background taken for
        things, and things taken for background (0 where there are no such pixels)."""
        things = things_in(regions, self.classes)
        boxes = [one.boxes for one in things]
        logits = self._logits(maps, boxes, joined(things).labels)
        goals = torch.cat([self._goals(*one, logits.shape[-1]) for one in zip(things, targets, strict=True)])
        loss = F.binary_cross_entropy_with_logits(logits, goals, reduction="sum")
        inside, wrong = goals > 0.5, (logits > 0) != (goals > 0.5)
        missed, added = (wrong & inside).sum(), (wrong & ~inside).sum()
        count = max(goals.numel(), 1)
        return {
            "loss_mask": loss / count,
            "mask_rcnn/accuracy": 1 - (missed + added) / count,
            "mask_rcnn/false_positive": added / (~inside).sum().clamp(min=1),
            "mask_rcnn/false_negative": missed / inside.sum().clamp(min=1),
        }

    def _goals(self, regions: Regions, target: Target, side: int) -> Tensor:
        """The true masks within the regions of one image (N x S x S), 0 to 1."""
        if target.masks is None:
            raise ValueError("a picture without masks came to a detector that learns them: masks: true in the source")
        if not len(regions.boxes):
            return regions.boxes.new_zeros(0, side, side)
        places = torch.cat([regions.things[:, None].to(regions.boxes), regions.boxes], dim=1)
        masks = target.masks[:, None].to(places)
        covered: Tensor = roi_align(masks, places, side, 1.0, 0, aligned=self.pool.how.aligned)[:, 0]
        return covered if self.how.soft else (covered >= 0.5).to(covered)

    def describe(self, maps: Sequence[Tensor], found: Sequence[Detections]) -> list[Detections]:
        """Adds masks (D x S x S): the chance that a pixel belongs to the thing."""
        logits = self._logits(maps, [one.boxes for one in found], torch.cat([one.labels for one in found]))
        masks = torch.split(logits.sigmoid(), [len(one.boxes) for one in found])
        return [one._replace(masks=mask) for one, mask in zip(found, masks, strict=True)]
