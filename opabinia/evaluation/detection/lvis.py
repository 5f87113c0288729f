"""LVIS' average precision: very many classes, of which each image is annotated for some (federated annotation)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, DatasetInfo, Fraction
from opabinia.evaluation.detection.base import ImageResult
from opabinia.evaluation.detection.coco import PREFIXES, CocoEvaluator, PrecisionRecall, mean_or_none
from opabinia.evaluation.detection.coco_format import Annotations, Kind

_FREQUENCIES = "rcf"


@register.evaluator
class Lvis(CocoEvaluator):
    """LVIS' average precision (Gupta et al. 2019, section 2.2) of boxes, and of masks (``mask_AP`` ...) if they are
    annotated and predicted.

    Names are those of ``coco``, with ``APr``, ``APc`` and ``APf`` of rare, common and frequent classes (in 1 to 10, to
    100, and in more training images) and one ``AR300``. Detections of classes that are neither annotated in an image
    nor known to be absent are ignored, and so are unmatched detections of classes that are not exhaustively annotated.

    The tables (``details``): AP of each class, the confusion table and the hundred images with most errors
    (:mod:`opabinia.evaluation.detection.detection_errors`), among the classes evaluated in an image.

    Args:
        dataset_info: facts about the data.
        max_detections: detections per image, the best of all classes together.
        confidence: minimum score of the detections in the error tables; null: that with the highest F1 of the set.

    Raises:
        ValueError: the data does not have the frequencies of its classes.
    """

    _federated = True

    def __init__(
        self, dataset_info: DatasetInfo, /, *, max_detections: Count = 300, confidence: Fraction | None = None
    ) -> None:
        if len(dataset_info.frequencies) != len(dataset_info.classes):
            raise ValueError("lvis: the data does not say which classes are rare, common or frequent; use `coco`")
        kinds: tuple[Kind, ...] = ("bbox", "segm") if dataset_info.masks else ("bbox",)
        super().__init__(dataset_info, confidence, {kind: [max_detections] for kind in kinds})
        groups = [f"AP{group}" for group in _FREQUENCIES if group in dataset_info.frequencies]
        by_frequency = [PREFIXES[kind] + name for kind in kinds for name in groups]
        self.better = dict.fromkeys(["AP", *by_frequency, *self.better], "max")

    def _prepare(self, images: list[ImageResult]) -> list[ImageResult]:
        return [evaluated_classes(image.best(self._max_detections["bbox"][0])) for image in images]

    def _ground_truth(self, images: Sequence[ImageResult], kind: Kind) -> dict[str, Annotations]:
        ground_truth = super()._ground_truth(images, kind)
        for entry, image in zip(ground_truth["images"], images, strict=True):
            entry["neg_category_ids"] = list(image.ground_truth.absent)
            entry["not_exhaustive_category_ids"] = list(image.ground_truth.not_exhaustive)
        for category, frequency in zip(ground_truth["categories"], self._dataset_info.frequencies, strict=True):
            category["frequency"] = frequency
        return ground_truth

    def _scores(self, tables: PrecisionRecall, kind: Kind) -> dict[str, float]:
        scores = super()._scores(tables, kind)
        frequencies = np.array([self._dataset_info.frequencies[category] for category in tables.categories])
        for group in _FREQUENCIES:
            mean = mean_or_none(tables.precision[:, :, frequencies == group, 0, -1])
            scores |= {} if mean is None else {f"AP{group}": mean}
        return scores

    def details(self, states: Sequence[list[ImageResult]]) -> dict[str, Any]:
        """Return the tables; null for a class without objects."""
        tables = super().details(states)
        for row, frequency in zip(tables.get("per_class", ()), self._dataset_info.frequencies, strict=False):
            row["frequency"] = frequency
        return tables


def evaluated_classes(image: ImageResult) -> ImageResult:
    """Return the image without detections of classes that are neither annotated in it nor known to be absent."""
    ground_truth = image.ground_truth
    classes = np.union1d(ground_truth.labels, np.array(ground_truth.absent, np.int64))
    return image.select(np.isin(image.labels, classes))
