"""Export of detectors: non-maximum suppression with static shapes, by the same rule as in
:mod:`opabinia.models.detectors.dense`, and none for detectors with queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from opabinia.contracts import Backbone, Detections, Detector, ExportModule, Predictions, Sample, Task
from opabinia.models.detectors.dense import Candidates

UNMATCHED_SHARE = 0.05
"""Share of detections that may have no counterpart: where two overlap and their scores are equal but for rounding,
either may suppress the other, and with it what the other one would have suppressed."""


@runtime_checkable
class DenseDetector(Protocol):
    """A detector with the same number of candidates in every image.

    Attributes:
        score_threshold: candidates with a score of no more than this are dropped.
        nms_threshold: IoU above which the lower-scoring of two boxes of one class is suppressed.
        max_detections: maximum number of detections per image.
    """

    score_threshold: float
    nms_threshold: float
    max_detections: int

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]: ...

    def candidates(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> list[Candidates]: ...


@runtime_checkable
class BatchDetector(Protocol):
    """A detector with the same number of detections in every image, without suppression, such as those with queries.

    Attributes:
        max_detections: maximum number of detections per image.
    """

    max_detections: int

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]: ...

    def detect_batch(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor) -> Detections: ...


class DetectionExport(ExportModule):
    """Detections in images of one size: ``boxes`` (B x D x 4: left, top, right, bottom, in pixels of the image),
    ``scores`` (B x D) and ``labels`` (int64, B x D; -1 pads images with fewer detections), best first.

    Inputs are ``image`` and ``image_sizes`` (int64, B x 2): height and width of the image within the padded input; the
    rest, to the right and at the bottom, is padding.

    Args:
        task: in evaluation mode, on the CPU.
        normalize, backbone, detector: its parts.
    """

    def __init__(self, task: Task, normalize: nn.Module, backbone: Backbone, detector: Detector) -> None:
        super().__init__(task)
        self.normalize, self.backbone, self.detector = normalize, backbone, detector

    def check_static(self) -> None:
        if self.task.test_time_augmentation is not None:
            raise ValueError(
                "task.test_time_augmentation: an exported graph sees an image in one size; export with "
                "task.test_time_augmentation=null"
            )
        if not isinstance(self.detector, DenseDetector | BatchDetector):
            raise ValueError(
                f"task.detector: {type(self.detector).__name__} works image by image, so its shapes are not static; "
                "fcos, retinanet and the detectors with queries (d_fine, rt_detr ...) can be exported, and every "
                "detector in the Hugging Face layout (--format huggingface)"
            )

    def forward(self, image: Tensor, image_sizes: Tensor) -> Predictions:  # type: ignore[override]
        """Return ``boxes``, ``scores`` and ``labels``."""
        height, width = image.shape[-2:]
        rows = torch.arange(height).view(1, -1, 1) < image_sizes[:, :1, None]
        columns = torch.arange(width).view(1, 1, -1) < image_sizes[:, 1:, None]
        images = self.normalize(image) * (rows & columns).unsqueeze(1)
        detector = self.detector
        maps = detector.pyramid(self.backbone.pyramid_features(images))
        if isinstance(detector, BatchDetector):
            detections = pad_detections(
                detector.detect_batch(maps, (height, width), image_sizes), detector.max_detections
            )
        else:
            assert isinstance(detector, DenseDetector), "check_static() comes first"
            detections = suppress_static(
                detector.candidates(maps, (height, width)),
                image_sizes,
                detector.score_threshold,
                detector.nms_threshold,
                detector.max_detections,
            )
        return {"boxes": detections.boxes, "scores": detections.scores, "labels": detections.labels}

    def inputs(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Return images padded to the largest height and width among them, rounded up as the detector needs it."""
        images = [sample["image"].as_subclass(Tensor) for sample in samples]
        sizes = torch.tensor([image.shape[-2:] for image in images])
        multiple = self.task.size_multiple or 1
        height, width = (ceil(side / multiple) * multiple for side in sizes.amax(0).tolist())
        padded = [F.pad(image, (0, width - image.shape[-1], 0, height - image.shape[-2])) for image in images]
        return {"image": torch.stack(padded), "image_sizes": sizes}

    @torch.no_grad()
    def expected(self, inputs: Mapping[str, Tensor]) -> Predictions:
        sizes = [(int(height), int(width)) for height, width in inputs["image_sizes"].tolist()]
        predictions = self.task.predict({"image": inputs["image"], "image_sizes": sizes, "original_size": sizes})
        return {name: predictions[name] for name in ("boxes", "scores", "labels")}

    def difference(self, expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> float:
        """See :func:`detection_difference`."""
        threshold = self.detector.score_threshold if isinstance(self.detector, DenseDetector) else 0.0
        return detection_difference(expected, actual, threshold)


def pad_detections(detections: Detections, count: int) -> Detections:
    """Pad the detections of each image (B x D ...) to ``count`` with label -1."""
    missing = count - detections.labels.shape[1]
    return Detections(
        F.pad(detections.boxes, (0, 0, 0, missing)),
        F.pad(detections.scores, (0, missing)),
        F.pad(detections.labels, (0, missing), value=-1),
    )


def suppress_static(
    levels: Sequence[Candidates], sizes: Tensor, threshold: float, nms: float, count: int
) -> Detections:
    """Suppress candidates; always ``count`` per image are returned, padded with label -1.

    ``count`` times the best remaining candidate is taken and those of its class that overlap with it are suppressed.
    This keeps what :func:`torchvision.ops.batched_nms` keeps first, without shapes that depend on the scores.

    Args:
        levels: candidates.
        sizes: height and width of each image (int64, B x 2).
        threshold, nms: see :class:`DenseDetector`.
        count: D.

    Returns:
        boxes B x D x 4, scores B x D, labels int64 B x D.
    """
    scores, labels, boxes = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
    ends = sizes.flip(1).repeat(1, 2).unsqueeze(1).to(boxes.dtype)
    boxes = boxes.clamp(min=0).minimum(ends)
    areas = (boxes[..., 2:] - boxes[..., :2]).prod(2)

    def take_best(remaining: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        index = remaining.argmax(1, keepdim=True)
        box = boxes.gather(1, index.unsqueeze(2).expand(-1, -1, 4))
        sides = torch.minimum(box[..., 2:], boxes[..., 2:]) - torch.maximum(box[..., :2], boxes[..., :2])
        intersections = sides.clamp(min=0).prod(2)
        overlaps = intersections / (areas.gather(1, index) + areas - intersections) > nms
        suppressed = overlaps & (labels == labels.gather(1, index))
        taken = torch.where(remaining.gather(1, index) < 0, -1, index)
        return remaining.masked_fill(suppressed, -1.0).scatter(1, index, -1.0), taken

    remaining = scores.masked_fill(scores <= threshold, -1.0)
    _, taken = scan(take_best, remaining, torch.zeros(count, 1))
    indices = taken.squeeze(2).t()
    valid, indices = indices >= 0, indices.clamp(min=0)
    return Detections(
        boxes.gather(1, indices.unsqueeze(2).expand(-1, -1, 4)) * valid.unsqueeze(2),
        scores.gather(1, indices) * valid,
        labels.gather(1, indices).masked_fill(~valid, -1),
    )


def detection_difference(
    expected: Mapping[str, Tensor], actual: Mapping[str, Tensor], threshold: float, margin: float = 1e-3
) -> float:
    """Return the largest difference of matched detections: of scores, or of boxes relative to the largest coordinate.

    Each detection is matched with the nearest one of its class on the other side that differs by less than ``margin``,
    wherever that stands in the list. Few unmatched detections (:data:`UNMATCHED_SHARE`) are ignored, with more the
    difference is infinite; those with scores within ``margin`` of the threshold do not count.

    Args:
        expected, actual: ``boxes`` (B x D x 4), ``scores`` (B x D) and ``labels`` (B x D; -1 is padding).
        threshold: of scores.
        margin: see above.
    """
    if any(expected[name].shape != actual[name].shape for name in expected):
        return inf
    scale = max(1.0, float(expected["boxes"].abs().max()))
    pairs = [(_of_image(expected, index), _of_image(actual, index)) for index in range(len(expected["scores"]))]
    pairs += [(second, first) for first, second in pairs]
    distances = torch.cat([_nearest_distances(first, second, scale) for first, second in pairs])
    scores = torch.cat([first.scores for first, _ in pairs])
    matched = distances <= margin
    unmatched = ~matched & (scores > threshold + margin)
    if unmatched.sum() > UNMATCHED_SHARE * len(distances):
        return inf
    return float(distances[matched].max()) if matched.any() else 0.0


def _of_image(predictions: Mapping[str, Tensor], index: int) -> Detections:
    valid = predictions["labels"][index] >= 0
    return Detections(*(predictions[name][index][valid] for name in ("boxes", "scores", "labels")))


def _nearest_distances(detections: Detections, others: Detections, scale: float) -> Tensor:
    """Return the distance of each of N detections to the nearest of its class among ``others`` (N); inf without one."""
    boxes = (detections.boxes[:, None] - others.boxes[None]).abs().amax(2) / scale
    scores = (detections.scores[:, None] - others.scores[None]).abs()
    distances = torch.maximum(boxes, scores).masked_fill(detections.labels[:, None] != others.labels[None], inf)
    return torch.cat([distances, distances.new_full((len(distances), 1), inf)], 1).amin(1)
