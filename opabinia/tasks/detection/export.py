"""Export of detectors: a function of tensors with static shapes, and the comparison of detections."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import Detections, Detector, Features, Predictions
from opabinia.tasks.dense_base import BatchDetector, DensePrediction, PaddedExport
from opabinia.tasks.detection.score_calibration import ScoreMaps

MARGIN = 1e-3
"""Largest difference of matched detections."""
UNMATCHED_SHARE = 0.05
"""Share of detections that may have no counterpart: where two overlap and their scores are equal but for rounding,
either may suppress the other, and with it what the other one would have suppressed."""


class DetectionExport(PaddedExport):
    """Detections in images of one size: ``boxes`` (B x D x 4: left, top, right, bottom, in pixels of the image;
    oriented ones B x D x 5),
    ``scores`` (B x D) and ``labels`` (int64, B x D; -1 pads images with fewer detections), best first; with instance
    masks ``masks`` (B x D x S x S: probabilities, of squares that cover the boxes), with keypoints ``keypoints``
    (B x D x P x 3: x, y and score).

    Args:
        task: in evaluation mode, on the CPU.
        detector: its part.
    """

    refused: ClassVar = {
        "test_time_augmentation": "an exported graph sees an image in one size",
        "tiles": "an exported graph sees one tile",
        "class_agnostic_nms": "an exported graph suppresses boxes of the same class only",
    }
    output_names = Detections._fields

    def __init__(self, task: DensePrediction, detector: Detector) -> None:
        super().__init__(task)
        self.detector = detector

    def outputs(self, features: Features, image: Tensor, image_sizes: Tensor | None = None) -> Predictions:
        """Return detections by the names above."""
        detector = self.detector
        assert isinstance(detector, BatchDetector) and image_sizes is not None, "check_static() comes first"
        maps = detector.pyramid(features["pyramid"])
        detections = detector.detect_batch(maps, (image.shape[-2], image.shape[-1]), image_sizes)
        padded = pad_detections(detections, detector.max_detections)
        if isinstance(score_maps := self.task.score_maps, ScoreMaps):
            padded = padded._replace(scores=score_maps(padded.scores, padded.labels))
            padded = sort_detections(padded)
        return {name: values for name, values in padded._asdict().items() if values is not None}

    def difference(self, expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> float:
        """See :func:`detection_difference`."""
        return detection_difference(expected, actual, getattr(self.detector, "score_threshold", 0.0))


def sort_detections(detections: Detections) -> Detections:
    """Return the detections of each image (B x D ...) in the order of their scores, best first."""
    order = detections.scores.argsort(1, descending=True)
    columns: list[Any] = list(detections)
    for index, values in enumerate(detections):
        if values is not None:
            columns[index] = values.gather(1, order.view(*order.shape, *[1] * (values.ndim - 2)).expand_as(values))
    return Detections(*columns)


def pad_detections(detections: Detections, count: int) -> Detections:
    """Pad the detections of each image (B x D ...) to ``count`` with label -1."""
    missing = count - detections.labels.shape[1]
    columns: list[Any] = [
        None if values is None else F.pad(values, (*[0] * 2 * (values.ndim - 2), 0, missing), value=fill)
        for values, fill in zip(detections, (0, 0, -1, 0, 0), strict=True)
    ]
    return Detections(*columns) if missing else detections


def detection_difference(expected: Mapping[str, Tensor], actual: Mapping[str, Tensor], threshold: float) -> float:
    """Return the largest difference of matched detections: of scores and masks, or of boxes and keypoints relative to
    the largest coordinate.

    Each detection is matched with the nearest one of its class on the other side, wherever that stands in the list, if
    the difference is below :data:`MARGIN`. Few unmatched ones (:data:`UNMATCHED_SHARE`) are ignored, with more the
    difference is infinite; those with scores within the margin of the threshold do not count.

    Args:
        expected, actual: see :class:`DetectionExport`.
        threshold: of scores.
    """
    if any(expected[name].shape != actual[name].shape for name in expected):
        return inf
    scale = max(1.0, float(expected["boxes"].abs().max()))
    pairs = [(_of_image(expected, index), _of_image(actual, index)) for index in range(len(expected["scores"]))]
    pairs += [(second, first) for first, second in pairs]
    distances = torch.cat([_nearest_distances(first, second, scale) for first, second in pairs])
    scores = torch.cat([first.scores for first, _ in pairs])
    matched = distances <= MARGIN
    unmatched = ~matched & (scores > threshold + MARGIN)
    if unmatched.sum() > UNMATCHED_SHARE * len(distances):
        return inf
    return float(distances[matched].max()) if matched.any() else 0.0


def _of_image(predictions: Mapping[str, Tensor], index: int) -> Detections:
    valid = predictions["labels"][index] >= 0
    return Detections(**{name: values[index][valid] for name, values in predictions.items()})


def _nearest_distances(detections: Detections, others: Detections, scale: float) -> Tensor:
    """Return the distance of each of N detections to the nearest of its class among ``others`` (N); inf without one."""
    distances = torch.cdist(_vectors(detections, scale), _vectors(others, scale), p=inf)
    distances = distances.masked_fill(detections.labels[:, None] != others.labels[None], inf)
    return torch.cat([distances, distances.new_full((len(distances), 1), inf)], 1).amin(1)


def _vectors(detections: Detections, scale: float) -> Tensor:
    """Return all numbers of each detection but its label in a row, lengths divided by ``scale``."""
    columns = [detections.boxes / scale, detections.scores[:, None]]
    if detections.masks is not None:
        columns.append(detections.masks.flatten(1))
    if detections.keypoints is not None:
        columns += [(detections.keypoints[..., :2] / scale).flatten(1), detections.keypoints[..., 2]]
    return torch.cat(columns, dim=1)
