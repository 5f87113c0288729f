"""The keypoint head of R-CNNs: where in a box the points of a thing lie (He et al. 2017, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.roi_heads import keypointrcnn_loss

from opabinia.config import register
from opabinia.contracts import Count, Detections, Level, Target
from opabinia.models.detectors.regions import Pooling, RegionPool, Regions, things_in


@register.section(name="region_keypoints")
@dataclass(frozen=True, kw_only=True)
class Keypoints:
    """How keypoints are found. Defaults are those of detectron2's R-CNNs with a feature pyramid, and the paper's.

    Args:
        resolution: side of the square that a region is pooled to; maps of points have four times as many places.
        convolutions: before the one that doubles the resolution.
        channels: of each.
    """

    resolution: Count = 14
    convolutions: Count = 8
    channels: Count = 512


class KeypointHead(nn.Module):
    """One map for each point, over whose places the chance of the point is spread.

    Its weights have torchvision's names (``layers.0``, ``layers.2`` ..., ``predictor.kps_score_lowres``). detectron2's
    ``conv_fcn1`` ... and ``score_lowres`` have the same shapes and order.

    Args:
        levels: what the neck gives.
        classes: K.
        points: P, of a thing.
        how: see :class:`Keypoints`.
        pooling: see :class:`Pooling`.

    Raises:
        ValueError: the neck gives fewer maps than are to be looked at.
    """

    def __init__(self, levels: Sequence[Level], classes: int, points: int, how: Keypoints, pooling: Pooling) -> None:
        super().__init__()
        self.classes = classes
        self.pool = RegionPool(levels, how.resolution, pooling)
        self.layers = KeypointRCNNHeads(levels[0].channels, [how.channels] * how.convolutions)
        self.predictor = KeypointRCNNPredictor(how.channels, points)

    def _logits(self, maps: Sequence[Tensor], boxes: Sequence[Tensor]) -> Tensor:
        """R x P x S x S, with the channels first in memory: torchvision's loss takes them as one row."""
        logits: Tensor = self.predictor(self.layers(self.pool(maps, boxes))).float().contiguous()
        return logits

    def losses(
        self, maps: Sequence[Tensor], regions: Sequence[Regions], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """``loss_keypoint``, the mean over all points that are visible and inside their region, and how many regions
        of an image have such points."""
        points = [_known(target) for target in targets]
        things = [
            one.at(_shows(one.boxes, known[one.things]))
            for one, known in zip(things_in(regions, self.classes), points, strict=True)
        ]
        boxes = [one.boxes for one in things]
        logits = self._logits(maps, boxes)
        loss = keypointrcnn_loss(logits, boxes, points, [one.things for one in things])
        count = sum(map(len, boxes)) / len(boxes)
        return {"loss_keypoint": loss, "keypoint_head/num_fg_samples": loss.new_tensor(count)}

    def describe(self, maps: Sequence[Tensor], found: Sequence[Detections]) -> list[Detections]:
        """Adds keypoints (D x P x 3). It waits for the device once, for the sizes of the boxes."""
        boxes = [one.boxes for one in found]
        points = torch.split(peaks(self._logits(maps, boxes), torch.cat(boxes)), list(map(len, boxes)))
        return [one._replace(keypoints=these) for one, these in zip(found, points, strict=True)]


def _known(target: Target) -> Tensor:
    if target.keypoints is None:
        raise ValueError("a picture without keypoints came to a detector that learns them")
    return target.keypoints


def _shows(boxes: Tensor, points: Tensor) -> Tensor:
    """Whether a box (N x 4) has one of its visible points (N x P x 3) inside."""
    places = points[..., :2]
    inside = ((places >= boxes[:, None, :2]) & (places <= boxes[:, None, 2:])).all(dim=-1)
    return (inside & (points[..., 2] > 0)).any(dim=1)


def peaks(logits: Tensor, boxes: Tensor) -> Tensor:
    """Where the points of R boxes lie: R x P x 3, x, y and score, in pixels.

    Each map is brought to the size of its box (bicubic), and the middle of its highest pixel is the point. Its score is
    the chance there, measured by the sum over the places of the map as it was, so that scores of small and large boxes
    can be compared (detectron2).

    Args:
        logits: R x P x S x S.
        boxes: R x 4.
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1)
    pixels = sides.ceil().nan_to_num(1)  # a box that is no number has a map of one pixel, and no number as its points
    highest, places = [], []
    for one, (width, height) in zip(logits, pixels.long().tolist(), strict=True):
        value, place = F.interpolate(one[None], (height, width), mode="bicubic")[0].flatten(1).max(dim=1)
        highest.append(value)
        places.append(torch.stack([place % width, place // width], dim=1))
    if not highest:
        return logits.new_zeros(*logits.shape[:2], 3)
    points = (torch.stack(places) + 0.5) * (sides / pixels)[:, None] + boxes[:, None, :2]
    scores = (torch.stack(highest) - logits.flatten(2).logsumexp(dim=2)).exp()
    return torch.cat([points, scores[..., None]], dim=2)
