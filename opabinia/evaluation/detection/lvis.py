"""LVIS' average precision: of very many classes, each picture being judged for some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, DatasetInfo, Fraction
from opabinia.evaluation.detection.base import Picture, Pictures, in_order
from opabinia.evaluation.detection.coco import PREFIXES, Tables, by_class, mean, names, scores, tables, told
from opabinia.evaluation.detection.coco_format import Kind, results_of, truth_of
from opabinia.evaluation.detection.detection_errors import mistakes

_RARITY = "rcf"


@register.evaluator
class Lvis(Pictures):
    """LVIS' average precision (Gupta et al. 2019, section 2.2) of boxes, and of masks (``mask_AP`` ...) where the data
    tells and the detector finds them.

    Names are those of ``coco``, with ``APr``, ``APc`` and ``APf`` of rare, common and frequent classes (in 1 to 10, to
    100, and in more pictures for training) and one ``AR300``. A picture is judged for classes that are in it or known
    not to be; what else is found there is left out. Where not all things of a class are told, those found beside them
    are neither right nor false.

    The tables (``details``): AP of each class, what is taken for what and the hundred pictures with most mistakes
    (:mod:`opabinia.evaluation.detection.detection_errors`), among the classes that a picture is judged for.

    Args:
        facts: of the data.
        max_detections: of so many things a picture, the best ones of all classes together.
        confidence: from which score on a thing counts as found where mistakes are counted.

    Raises:
        ValueError: the data does not tell how frequent its classes are.
    """

    def __init__(
        self, dataset_info: DatasetInfo, /, *, max_detections: Count = 300, confidence: Fraction = 0.25
    ) -> None:
        super().__init__(masks=dataset_info.masks)
        if len(dataset_info.frequencies) != len(dataset_info.classes):
            raise ValueError("lvis: the data does not tell which classes are rare, common or frequent; take `coco`")
        self._facts, self._most, self._confidence = dataset_info, max_detections, confidence
        self._kinds: tuple[Kind, ...] = ("bbox", "segm") if dataset_info.masks else ("bbox",)
        groups = [f"AP{group}" for group in _RARITY if group in dataset_info.frequencies]
        every = [PREFIXES[kind] + name for kind in self._kinds for name in groups]
        every += [name for kind in self._kinds for name in names(kind, [max_detections])]
        self.better = dict.fromkeys(["AP", *every], "max")
        self._last: tuple[Any, list[Picture], dict[Kind, Tables]] | None = None

    def _judged(self, states: Sequence[list[Picture]]) -> tuple[list[Picture], dict[Kind, Tables]]:
        """The pictures in order with what they are judged for, and the tables; kept for the next question."""
        if self._last is None or self._last[0] is not states:
            pictures = [judged_part(picture.best(self._most)) for picture in in_order(states)]
            found = {kind: self._tables(pictures, kind) for kind in self._kinds if pictures and told(pictures, kind)}
            self._last = states, pictures, found
        return self._last[1:]

    def _tables(self, pictures: Sequence[Picture], kind: Kind) -> Tables:
        ground_truth = truth_of(pictures, self._facts, kind)
        for image, picture in zip(ground_truth["images"], pictures, strict=True):
            image["neg_category_ids"] = list(picture.ground_truth.absent)
            image["not_exhaustive_category_ids"] = list(picture.ground_truth.not_exhaustive)
        for category, frequency in zip(ground_truth["categories"], self._facts.frequencies, strict=True):
            category["frequency"] = frequency
        return tables(ground_truth, results_of(pictures, kind), kind, [self._most], federated=True)

    def compute(self, states: Sequence[list[Picture]]) -> dict[str, float]:
        """The scores of each kind; those of which there is nothing to be found are left out."""
        _, judged = self._judged(states)
        result: dict[str, float] = {}
        for kind, found in judged.items():
            values: dict[str, float | None] = dict(scores(found, kind, [self._most]))
            rarity = np.array([self._facts.frequencies[number] for number in found.categories])
            for group in _RARITY:
                values[f"AP{group}"] = mean(found.precision[:, :, rarity == group, 0, -1])
            result |= {PREFIXES[kind] + name: value for name, value in values.items() if value is not None}
        return result

    def details(self, states: Sequence[list[Picture]]) -> dict[str, Any]:
        """The tables, in plain values; null for a class that is there nowhere."""
        pictures, judged = self._judged(states)
        if not pictures:
            return {}
        rows = by_class(pictures, self._facts.classes, judged)
        for row, frequency in zip(rows, self._facts.frequencies, strict=True):
            row["frequency"] = frequency
        return {"per_class": rows, **mistakes(pictures, len(self._facts.classes), self._confidence)}


def judged_part(picture: Picture) -> Picture:
    """The picture without what was found of classes that it is not judged for."""
    ground_truth = picture.ground_truth
    known = np.union1d(ground_truth.labels, np.array(ground_truth.absent, np.int64))
    return picture.only(np.isin(picture.labels, known))
