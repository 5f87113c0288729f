"""The keypoint head of R-CNNs: keypoints of the object in a box (He et al. 2017, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.roi_heads import keypoints_to_heatmap

from opabinia.config import register
from opabinia.contracts import Count, Detections, Level, NonNegative, Positive, Target
from opabinia.models.detectors.regions import PoolingOptions, RegionPool, Regions
from opabinia.models.scan import scan
from opabinia.runtime.device import true_indices


@register.section(name="region_keypoints")
@dataclass(frozen=True, kw_only=True)
class KeypointOptions:
    """Options of the keypoint head. Defaults are those of detectron2's R-CNNs with a feature pyramid, and the paper's.

    Args:
        resolution: side of the square that a region is pooled to; heatmaps have four times that side.
        sampling_ratio: see :class:`PoolingOptions`; null: as for the boxes.
        num_convs: convolutions before the one that doubles the resolution.
        channels: number of channels of each.
        loss_weight: factor of the loss.
        keypoints_per_image: the loss is divided by the number of images times this number; null: by the number of
            visible keypoints.
    """

    resolution: Count = 14
    sampling_ratio: Annotated[int, Ge(0)] | None = None
    num_convs: Count = 8
    channels: Count = 512
    loss_weight: NonNegative = 1
    keypoints_per_image: Positive | None = None


class KeypointHead(nn.Module):
    """One heatmap for each keypoint, with a softmax over its positions.

    Its weights have torchvision's names (``layers.0``, ``layers.2`` ..., ``predictor.kps_score_lowres``). detectron2's
    ``conv_fcn1`` ... and ``score_lowres`` have the same shapes and order.

    Args:
        levels: feature levels of the neck.
        classes: K.
        points: P, keypoints of an object.
        options: see :class:`KeypointOptions`.
        pooling: see :class:`PoolingOptions`.

    Raises:
        ValueError: the neck has fewer levels than are pooled from.
    """

    def __init__(
        self, levels: Sequence[Level], classes: int, points: int, options: KeypointOptions, pooling: PoolingOptions
    ) -> None:
        super().__init__()
        self.classes, self.options = classes, options
        self.pool = RegionPool(levels, options.resolution, pooling.with_sampling_ratio(options.sampling_ratio))
        self.layers = KeypointRCNNHeads(self.pool.out_channels, [options.channels] * options.num_convs)
        self.predictor = KeypointRCNNPredictor(options.channels, points)

    def _logits(self, maps: Sequence[Tensor], boxes: Sequence[Tensor] | Tensor) -> Tensor:
        """Compute heatmaps (R x P x S x S, contiguous)."""
        logits: Tensor = self.predictor(self.layers(self.pool(maps, boxes))).float().contiguous()
        return logits

    def losses(
        self, maps: Sequence[Tensor], regions: Sequence[Sequence[Regions]], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """``loss_keypoint``, the mean over all keypoints that are visible and inside their region (see
        ``keypoints_per_image``), and the number of regions per image that have such keypoints; arguments as in
        :meth:`MaskHead.losses`."""
        keypoints = [target.keypoints for target in targets if target.keypoints is not None]
        if len(keypoints) < len(targets):
            raise ValueError("an image without keypoints came to a detector that learns them")
        rows = true_indices(
            [
                (image.labels < self.classes) & _contains_visible(image.boxes, known, image.matched)
                for image, known in zip(regions[0], keypoints, strict=True)
            ]
        )
        samples = [image.at(visible) for image, visible in zip(regions[0], rows, strict=True)]
        boxes = [image.boxes for image in samples]
        logits = self._logits(maps, boxes)
        cells = [
            keypoints_to_heatmap(known[image.matched], image.boxes, logits.shape[-1])
            for image, known in zip(samples, keypoints, strict=True)
        ]
        positions, valid = (torch.cat(parts).flatten() for parts in zip(*cells, strict=True))
        losses = F.cross_entropy(logits.flatten(2).flatten(0, 1), positions, reduction="none")
        divisor = self.options.keypoints_per_image
        loss = (losses * valid).sum() / (divisor * len(targets) if divisor else valid.sum().clamp(min=1))
        count = sum(map(len, boxes)) / len(boxes)
        return {
            "loss_keypoint": self.options.loss_weight * loss,
            "keypoint_head/num_fg_samples": loss.new_full((), count),
        }

    def describe(self, maps: Sequence[Tensor], detections: Sequence[Detections]) -> list[Detections]:
        """Add keypoints (D x P x 3). This waits for the device once, for the sizes of the boxes."""
        boxes = [image.boxes for image in detections]
        keypoints = heatmaps_to_keypoints(self._logits(maps, boxes), torch.cat(boxes))
        per_image = torch.split(keypoints, list(map(len, boxes)))
        return [image._replace(keypoints=points) for image, points in zip(detections, per_image, strict=True)]

    def describe_batch(self, maps: Sequence[Tensor], shape: tuple[int, int], detections: Detections) -> Detections:
        """Add keypoints (B x D x P x 3) to those of B images in a batch of height and width ``shape``; padding has
        0."""
        labels = detections.labels
        logits = self._logits(maps, detections.boxes)
        if torch.compiler.is_exporting():  # static shapes take heatmaps as large as the batch
            heatmaps = logits.view(*labels.shape, *logits.shape[1:])
            points = heatmaps_to_keypoints_batch(heatmaps, detections.boxes, shape)
        else:
            points = heatmaps_to_keypoints(logits, detections.boxes.flatten(0, 1)).view(
                *labels.shape, logits.shape[1], 3
            )
        return detections._replace(keypoints=points * (labels >= 0)[..., None, None])


def _contains_visible(boxes: Tensor, keypoints: Tensor, matched: Tensor) -> Tensor:
    """Return which boxes (N x 4) contain a visible keypoint of their object.

    Args:
        boxes: see above.
        keypoints: keypoints of all objects of the image (M x P x 3).
        matched: indices of the boxes' objects (int64, N); 0 if there are none.
    """
    keypoints = F.pad(keypoints, (0, 0, 0, 0, 0, 1))[matched]
    positions = keypoints[..., :2]
    inside = ((positions >= boxes[:, None, :2]) & (positions <= boxes[:, None, 2:])).all(dim=-1)
    return (inside & (keypoints[..., 2] > 0)).any(dim=1)


def heatmaps_to_keypoints(logits: Tensor, boxes: Tensor) -> Tensor:
    """Find the keypoints of R boxes: R x P x 3, x, y and score, in pixels.

    Each heatmap is resized to its box (bicubic); the keypoint is the center of the highest pixel. Its score is the
    probability there, normalized over the positions of the original heatmap, so that scores of small and large boxes
    are comparable (detectron2).

    Args:
        logits: R x P x S x S.
        boxes: R x 4.
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1)
    pixels = sides.ceil().nan_to_num(1)  # a NaN box gets a heatmap of one pixel, and NaN keypoints
    highest, positions = [], []
    for heatmap, (width, height) in zip(logits, pixels.long().tolist(), strict=True):
        resized = F.interpolate(heatmap[None], (height, width), mode="bicubic")[0]
        value, index = resized.flatten(1).max(dim=1)
        highest.append(value)
        positions.append(torch.stack([index % width, index // width], dim=1))
    if not highest:
        return logits.new_zeros(*logits.shape[:2], 3)
    points = (torch.stack(positions) + 0.5) * (sides / pixels)[:, None] + boxes[:, None, :2]
    scores = (torch.stack(highest) - logits.flatten(2).logsumexp(dim=2)).exp()
    return torch.cat([points, scores[..., None]], dim=2)


def heatmaps_to_keypoints_batch(logits: Tensor, boxes: Tensor, shape: tuple[int, int]) -> Tensor:
    """Find the keypoints of :func:`heatmaps_to_keypoints` with static shapes: B x D x P x 3.

    The D-th heatmaps of all images are resized at once, by matrices with as many rows as the batch is high and wide.

    Args:
        logits: B x D x P x S x S.
        boxes: within their images (B x D x 4).
        shape: height and width of the batch.
    """
    logits, boxes = logits.detach(), boxes.detach()  # a scan of tensors that require gradients cannot be traced
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1)
    pixels = sides.ceil()
    length, (height, width) = logits.shape[-1], shape

    def highest(carry: Tensor, row: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        heatmaps, (columns, rows) = row[0], row[1].unbind(1)
        down, across = (
            bicubic_matrices(count, length, most)[:, None] for count, most in ((rows, height), (columns, width))
        )
        resized = down @ heatmaps @ across.transpose(2, 3)
        y, x = (torch.arange(side, device=rows.device) for side in shape)
        inside = (y[:, None] < rows[:, None, None]) & (x < columns[:, None, None])
        value, index = resized.where(inside[:, None], -inf).flatten(2).max(dim=2)
        return carry.clone(), torch.stack([(index % width).float(), (index // width).float(), value], dim=-1)

    _, stacked = scan(highest, logits.new_zeros(1), (logits.transpose(0, 1), pixels.transpose(0, 1)))
    peaks = stacked.transpose(0, 1)
    points = (peaks[..., :2] + 0.5) * (sides / pixels)[:, :, None] + boxes[:, :, None, :2]
    scores = (peaks[..., 2] - logits.flatten(3).logsumexp(dim=3)).exp()
    return torch.cat([points, scores[..., None]], dim=3)


def bicubic_matrices(pixels: Tensor, length: int, most: int) -> Tensor:
    """Return matrices (B x ``most`` x ``length``) that resize columns of a length to B numbers of pixels, as
    :func:`torch.nn.functional.interpolate` does (cubic convolution with a = -0.75; Keys 1981, equation 4); further rows
    are to be ignored."""
    positions = (torch.arange(most, device=pixels.device) + 0.5) * (length / pixels[:, None]) - 0.5
    first = positions.floor() - 1
    matrices = pixels.new_zeros(())
    for offset in range(4):
        distance = (positions - first - offset).abs()
        near = (1.25 * distance - 2.25) * distance.square() + 1
        far = ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
        weights = torch.where(distance <= 1, near, far)
        sources = (first + offset).clamp(0, length - 1)
        matrices = matrices + weights[..., None] * (sources[..., None] == torch.arange(length, device=pixels.device))
    return matrices
