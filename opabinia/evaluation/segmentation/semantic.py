"""Semantic segmentation: intersection over union of classes and of their boundaries, from integer counts of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import IGNORE_LABEL, Batch, DatasetInfo, Evaluator, Fraction, Predictions, Resampling
from opabinia.evaluation.segmentation.maps import boundary_pixels, ground_truth_maps, worst_rows

Labels = NDArray[np.uint8]
Counts = NDArray[np.int64]


class SemanticState(NamedTuple):
    """Counts of one process.

    Attributes:
        cells: pixels by true and predicted class, (true, predicted, pixels) of the cells that are not empty.
        boundaries: boundary pixels of each class that are right, true, and predicted (3 x K).
        worst: the images with the lowest mIoU.
        images: id of each image with labels, and for each class the pixels that are right, true, and predicted
            (3 x K).
    """

    cells: list[list[int]]
    boundaries: list[list[int]]
    worst: list[dict[str, Any]]
    images: list[tuple[str, Counts]]


@register.evaluator
class Semantic(Evaluator):
    """Semantic segmentation: ``mIoU``, the mean over the classes of the intersection over union of all pixels of the
    dataset; ``fwIoU``, the mean weighted by the classes' pixels; ``mACC``, the mean over the classes of the share of
    their pixels that is right, and ``pACC``, that of all pixels. Equal to detectron2's numbers, divided by 100.

    Means are over the classes that have pixels in the ground truth. Pixels without a label are not evaluated. A pixel
    without a predicted class (255) is an error.

    With ``boundary`` also ``boundary_mIoU``, the mean of the classes' Boundary IoU (Cheng et al. 2021, section 4): the
    IoU of the pixels of true and predicted class that lie within a small distance of the class's outline, including the
    image's border. The prediction is cut where the ground truth has no label. detectron2's ``BoundaryIoU``, which
    compares differences of class numbers, is another number.

    The tables (``details``): pixels, IoU, accuracy, precision and Boundary IoU of each class, the confusion matrix as
    triples (true class, predicted class, pixels), and the hundred images with the lowest mIoU over their own classes.

    Args:
        dataset_info: facts about the data.
        boundary: compute the Boundary IoU, too.
        boundary_width: distance to the outline up to which pixels count, as share of the image's diagonal.
    """

    def __init__(
        self, dataset_info: DatasetInfo, /, *, boundary: bool = False, boundary_width: Fraction = 0.02
    ) -> None:
        self.better = dict.fromkeys(("mIoU", "fwIoU", "mACC", "pACC"), "max")
        if boundary:
            self.better["boundary_mIoU"] = "max"
        self._classes, self._boundary, self._width = dataset_info.classes, boundary, boundary_width
        size = len(self._classes) + 1  # the last one: no class
        self._matrix, self._boundaries = np.zeros((size, size), np.int64), np.zeros((3, size - 1), np.int64)
        self._worst: list[dict[str, Any]] = []
        self._images: list[tuple[str, Counts]] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch: ``segmentation`` and ``image_size`` of the predictions (see
        :data:`opabinia.contracts.Predictions`), ``ground_truth_map`` and ``id`` of the batch.

        Raises:
            DataMismatch: the ground truth has another size than the image, or a label that is no class.
        """
        count = len(self._classes)
        for row, name, ground_truth, area in ground_truth_maps(predictions, batch, count):
            true = ground_truth.labels
            predicted = predictions["segmentation"][row][area].cpu().numpy()
            matrix = count_pairs(true, predicted, count)
            self._matrix += matrix
            if self._boundary:
                cut = np.where(true == IGNORE_LABEL, np.uint8(IGNORE_LABEL), predicted)
                width = max(1, round(self._width * hypot(*true.shape)))
                self._boundaries += count_boundaries(true, cut, count, width)
            scores, _ = _scores(matrix)
            if scores:
                image = {"id": name, "image_id": ground_truth.image_id, "mIoU": scores["mIoU"], "pACC": scores["pACC"]}
                self._worst.append(image)
                self._images.append((name, _class_counts(matrix)))
        self._worst = worst_rows([self._worst], "mIoU")

    def state(self) -> SemanticState:
        """Return the counts of this process."""
        cells = [[*cell, int(self._matrix[tuple(cell)])] for cell in np.argwhere(self._matrix).tolist()]
        return SemanticState(cells, self._boundaries.tolist(), self._worst, self._images)

    def compute(self, states: Sequence[SemanticState]) -> dict[str, float]:
        """Return the scores; none if no pixel has a label."""
        scores, present = _scores(self._total(states))
        if scores and self._boundary:
            scores["boundary_mIoU"] = float(_boundary_iou(states)[present].mean())
        return scores

    def details(self, states: Sequence[SemanticState]) -> dict[str, Any]:
        """Return the tables; null for a class without pixels in the ground truth."""
        matrix = self._total(states)
        iou, accuracy, precision, pixels = _per_class(matrix)
        columns = {"IoU": iou, "accuracy": accuracy, "precision": precision}
        if self._boundary:
            columns["boundary_IoU"] = _boundary_iou(states)
        per_class = [
            {"class": name, "pixels": int(pixels[label])}
            | {key: float(values[label]) if pixels[label] else None for key, values in columns.items()}
            for label, name in enumerate(self._classes)
        ]
        cells = [[*cell, int(matrix[tuple(cell)])] for cell in np.argwhere(matrix).tolist()]
        cells.sort(key=lambda cell: (cell[0] == cell[1], -cell[2], cell))
        worst = worst_rows([state.worst for state in states], "mIoU")
        return {"per_class": per_class, "confusion": cells, "worst": worst}

    def resamplings(self, states: Sequence[SemanticState]) -> list[Resampling]:
        """Return the mIoU."""
        images = sorted((image for state in states for image in state.images), key=lambda image: image[0])
        table = np.stack([counts.ravel() for _, counts in images]).astype(np.float64)

        def scores(weights: NDArray[np.float64]) -> NDArray[np.float64]:
            right, pixels, predicted = np.split(weights @ table, 3, axis=1)
            iou = right / (pixels + predicted - right).clip(1)
            means: NDArray[np.float64] = (iou * (pixels > 0)).sum(1) / (pixels > 0).sum(1)
            return means

        return [Resampling("mIoU", "images", len(images), scores, table.shape[1])]

    def _total(self, states: Sequence[SemanticState]) -> Counts:
        matrix = np.zeros_like(self._matrix)
        for state in states:
            for true, predicted, pixels in state.cells:
                matrix[true, predicted] += pixels
        return matrix


def count_pairs(true: Labels, predicted: Labels, classes: int) -> Counts:
    """Return the number of pixels of each true and predicted class (K + 1 x K + 1). Pixels with the true label 255 do
    not count; those with the predicted label 255 are in the last column."""
    size, labeled = classes + 1, true != IGNORE_LABEL
    pairs = true[labeled].astype(np.int64) * size + np.minimum(predicted[labeled], classes)
    return np.bincount(pairs, minlength=size * size).reshape(size, size)


def count_boundaries(true: Labels, predicted: Labels, classes: int, width: int) -> Counts:
    """Return the number of boundary pixels of each class: those that are right, true, and predicted (3 x K)."""
    masks = [boundary_pixels(labels, width) & (labels != IGNORE_LABEL) for labels in (true, predicted)]
    kinds = true[masks[0] & masks[1] & (true == predicted)], true[masks[0]], predicted[masks[1]]
    return np.stack([np.bincount(labels, minlength=classes) for labels in kinds])


def _class_counts(matrix: Counts) -> Counts:
    """Return for each class the pixels that are right, true, and predicted (3 x K)."""
    return np.stack([matrix.diagonal()[:-1], matrix.sum(1)[:-1], matrix.sum(0)[:-1]])


def _per_class(matrix: Counts) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], Counts]:
    """Return IoU, accuracy and precision (0 instead of a division by 0) and the pixels of each class in the ground
    truth."""
    right, pixels, predicted = _class_counts(matrix)
    union = pixels + predicted - right
    return right / union.clip(1), right / pixels.clip(1), right / predicted.clip(1), pixels


def _scores(matrix: Counts) -> tuple[dict[str, float], NDArray[np.bool_]]:
    """Return the scores, and which classes have pixels in the ground truth. Without any there are no scores."""
    iou, accuracy, _, pixels = _per_class(matrix)
    present = pixels > 0
    if not present.any():
        return {}, present
    total = int(pixels.sum())
    means = {"mIoU": iou[present].mean(), "fwIoU": (iou * pixels).sum() / total, "mACC": accuracy[present].mean()}
    means["pACC"] = matrix.diagonal()[:-1].sum() / total
    return {name: float(value) for name, value in means.items()}, present


def _boundary_iou(states: Sequence[SemanticState]) -> NDArray[np.float64]:
    right, true, predicted = np.sum([state.boundaries for state in states], axis=0)
    iou: NDArray[np.float64] = right / (true + predicted - right).clip(1)
    return iou
