"""Panoptic quality by panopticapi's rules, from integer sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Batch, DataMismatch, DatasetInfo, Evaluator, Fraction, Predictions, Resampling
from opabinia.evaluation.segmentation.maps import boundary_pixels, ground_truth_maps, worst_rows

Ints = NDArray[np.int64]

_UNIT = 2**40
"""IoUs are summed as integers of this unit: sums of floats would depend on the order of the images."""


class SegmentMap(NamedTuple):
    """The segments of an image: the number of each pixel's segment, from 1 (0: none), and their classes (S)."""

    segments: NDArray[np.int32]
    labels: Ints


class PanopticState(NamedTuple):
    """Sums of one process: of each class the IoUs of matched segments in units of 2^-40, and the numbers of matched,
    false and missed segments (K x 4; with those by Boundary IoU K x 8); the images with the lowest quality; and of each
    image its id and its own sums (K x 4)."""

    sums: list[list[int]]
    worst: list[dict[str, Any]]
    images: list[tuple[str, Ints]]


@register.evaluator
class Panoptic(Evaluator):
    """Panoptic quality (Kirillov et al. 2019, section 4), equal to panopticapi's numbers: ``PQ``, the product of ``SQ``
    (mean IoU of matched segments) and ``RQ`` (F1 of the matching) of each class, mean over classes; ``SQ`` and ``RQ``,
    their own means. Classes with countable objects have ``PQ_th``, ``SQ_th`` and ``RQ_th``, the others ``PQ_st``,
    ``SQ_st`` and ``RQ_st``, if the data knows which is which.

    A predicted and a true segment of the same class match if their IoU is above 0.5; pixels that belong to no true
    segment are removed from their union. Crowds match nothing; a false segment is ignored if more than half of it
    belongs to no true segment or to the crowd of its class (the last one, if the image has several). Means are over
    the classes with a true or a false segment.

    With ``boundary`` also ``boundary_PQ``, ``boundary_SQ`` ... (Cheng et al. 2021, section 6): the IoU of a true and a
    predicted segment is then the smaller one of that of their pixels and of their Boundary IoU (:class:`Semantic`).

    The tables (``details``): PQ, SQ, RQ and the number of matched, missed and false segments of each class, and the
    hundred images with the lowest quality over all their segments.

    Args:
        dataset_info: facts about the data.
        boundary: compute Boundary PQ, too.
        boundary_width: distance to the outline up to which pixels count, as share of the image's diagonal.
    """

    def __init__(
        self, dataset_info: DatasetInfo, /, *, boundary: bool = False, boundary_width: Fraction = 0.02
    ) -> None:
        self._classes, self._width = dataset_info.classes, boundary_width
        self._kinds = {"": 0, "boundary_": 4} if boundary else {"": 0}  # their first columns in the sums
        countable = np.isin(np.arange(len(self._classes)), dataset_info.thing_labels)
        self._groups = {"": np.ones_like(countable)}
        if dataset_info.thing_labels:
            self._groups |= {"_th": countable, "_st": ~countable}
        names = [f"{kind}{name}" for kind in self._kinds for name in ("PQ", "SQ", "RQ")]
        self.better = {f"{name}{group}": "max" for group in self._groups for name in names}
        # Python's integers: those of 64 bits would end at 8 million segments.
        self._sums = np.zeros((len(self._classes), 4 * len(self._kinds)), dtype=object)
        self._worst: list[dict[str, Any]] = []
        self._images: list[tuple[str, Ints]] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch: ``segments``, ``segment_labels`` and ``image_size`` of the predictions (see
        :data:`opabinia.contracts.Predictions`), ``ground_truth_map`` and ``id`` of the batch.

        Raises:
            DataMismatch: the ground truth has no segments, another size than the image, or a label that is no class.
        """
        for row, name, ground_truth, area in ground_truth_maps(predictions, batch, len(self._classes)):
            segments, labels = (predictions[key][row].cpu().numpy() for key in ("segments", "segment_labels"))
            true, true_labels, crowd = ground_truth.segments, ground_truth.segment_labels, ground_truth.crowd
            if true is None or true_labels is None or crowd is None:
                raise DataMismatch(f"{name} has a segmentation map without segments: panoptic data is needed")
            predicted = SegmentMap(segments[area], labels[labels >= 0])
            widths = (None, max(1, round(self._width * hypot(*true.shape))))[: len(self._kinds)]
            compared = SegmentMap(true, true_labels), crowd, predicted, len(self._classes)
            sums = np.hstack([match_segments(*compared, width) for width in widths])
            self._sums += sums
            self._images.append((name, sums[:, :4].copy()))
            iou, matched, false, missed = sums[:, :4].sum(0).tolist()
            if matched + false + missed:
                quality = iou / _UNIT / (matched + (false + missed) / 2)
                image = {"id": name, "image_id": ground_truth.image_id, "PQ": quality}
                self._worst.append(image | {"matched": matched, "missed": missed, "false": false})
        self._worst = worst_rows([self._worst], "PQ")

    def state(self) -> PanopticState:
        """Return the sums of this process."""
        return PanopticState(self._sums.tolist(), self._worst, self._images)

    def compute(self, states: Sequence[PanopticState]) -> dict[str, float]:
        """Return the scores; those of no segments are omitted."""
        scores: dict[str, float] = {}
        for kind, first in self._kinds.items():
            quality, counts = _per_class(states, first)
            for group, members in self._groups.items():
                if (rows := members & counts.any(1)).any():
                    means = quality[rows].mean(0).tolist()
                    scores |= dict(zip((f"{kind}{name}{group}" for name in ("PQ", "SQ", "RQ")), means, strict=True))
        return scores

    def details(self, states: Sequence[PanopticState]) -> dict[str, Any]:
        """Return the tables; null for a class without segments."""
        rows = zip(self._classes, *_per_class(states), strict=True)
        per_class = [
            {"class": name}
            | dict(zip(("PQ", "SQ", "RQ"), quality.tolist() if counts.any() else (None,) * 3, strict=True))
            | dict(zip(("matched", "false", "missed"), counts.tolist(), strict=True))
            for name, quality, counts in rows
        ]
        if len(self._kinds) > 1:
            for row, quality in zip(per_class, _per_class(states, 4)[0].tolist(), strict=True):
                row["boundary_PQ"] = None if row["PQ"] is None else quality[0]
        return {"per_class": per_class, "worst": worst_rows([state.worst for state in states], "PQ")}

    def resamplings(self, states: Sequence[PanopticState]) -> list[Resampling]:
        """Return ``PQ``."""
        images = sorted((image for state in states for image in state.images), key=lambda image: image[0])
        table = np.stack([sums.T.ravel() for _, sums in images]) / np.repeat([_UNIT, 1, 1, 1], len(self._classes))

        def scores(weights: NDArray[np.float64]) -> NDArray[np.float64]:
            iou, matched, false, missed = np.split(weights @ table, 4, axis=1)
            segments = matched + (false + missed) / 2
            present = segments > 0
            means = (iou / segments.clip(0.5)).sum(1) / np.maximum(1, present.sum(1))
            return np.where(present.any(1), means, np.nan)

        return [Resampling("PQ", "images", len(images), scores, table.shape[1])]


def match_segments(
    true: SegmentMap, crowd: NDArray[np.bool_], predicted: SegmentMap, classes: int, boundary_width: int | None = None
) -> Ints:
    """Match the segments of an image; see :class:`Panoptic`.

    Args:
        true: the ground truth.
        crowd: whether a true segment stands for several objects.
        predicted: the prediction; segments without pixels are ignored.
        classes: number of classes K.
        boundary_width: width of the boundaries in pixels; None compares whole segments.

    Returns:
        Of each class the sum of the IoUs of matched segments in units of 2^-40, and the numbers of matched, false and
        missed segments (K x 4).
    """
    size = len(true.labels), len(predicted.labels)
    common, unlabeled, areas, iou = _overlaps(true.segments, predicted.segments, *size)
    if boundary_width is not None:
        outlines = [
            np.where((segments == 0) | boundary_pixels(segments, boundary_width), segments, count + 1)
            for segments, count in zip((true.segments, predicted.segments), size, strict=True)
        ]
        iou = np.minimum(iou, _overlaps(outlines[0], outlines[1], *size)[-1])
    matched = (iou > 0.5) & (true.labels[:, None] == predicted.labels) & ~crowd[:, None]
    ignored = unlabeled.copy()
    for label in np.unique(true.labels[crowd]):
        last = np.flatnonzero(crowd & (true.labels == label))[-1]
        ignored += np.where(predicted.labels == label, common[last], 0)
    false = (areas > 0) & ~matched.any(0) & (2 * ignored <= areas)
    sums = np.zeros((classes, 4), np.int64)
    np.add.at(sums[:, 0], true.labels[matched.any(1)], np.rint(iou[matched] * _UNIT).astype(np.int64))
    kinds = true.labels[matched.any(1)], predicted.labels[false], true.labels[~matched.any(1) & ~crowd]
    sums[:, 1:] = np.stack([np.bincount(labels, minlength=classes) for labels in kinds], 1)
    return sums


def _overlaps(true: NDArray[Any], predicted: NDArray[Any], rows: int, columns: int) -> tuple[Ints, Ints, Ints, Any]:
    """Return the common pixels of true and predicted segments (rows x columns), the pixels of predicted ones without a
    true one and in all (columns), and the IoUs. Numbers above ``rows`` and ``columns`` belong to no segment."""
    pairs = true.astype(np.int64) * (columns + 2) + predicted
    common = np.bincount(pairs.ravel(), minlength=(rows + 2) * (columns + 2)).reshape(rows + 2, columns + 2)
    unlabeled, areas, true_areas = common[0, 1:-1], common.sum(0)[1:-1], common.sum(1)[1:-1]
    common = common[1:-1, 1:-1]
    return common, unlabeled, areas, common / (true_areas[:, None] + areas - common - unlabeled).clip(1)


def _per_class(states: Sequence[PanopticState], first: int = 0) -> tuple[NDArray[np.float64], Ints]:
    """Return PQ, SQ and RQ (K x 3; 0 without segments), and the numbers of matched, false and missed segments (K x 3)
    of each class, from the sums that begin with column ``first``."""
    sums = np.sum([np.array(state.sums, dtype=object)[:, first : first + 4] for state in states], axis=0)
    iou, counts = sums[:, 0].astype(np.float64) / _UNIT, sums[:, 1:].astype(np.int64)
    matched = counts[:, 0].clip(1)
    segments = (counts @ [1, 0.5, 0.5]).clip(0.5)
    quality = np.stack([iou / segments, iou / matched, counts[:, 0] / segments], 1)
    return quality, counts
