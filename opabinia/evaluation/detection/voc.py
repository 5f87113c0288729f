"""Pascal VOC's average precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import DatasetInfo, Fraction
from opabinia.evaluation.detection.base import Floats, Ints, Picture, Pictures, in_order
from opabinia.evaluation.detection.detection_errors import mistakes, overlaps

THRESHOLDS = np.arange(50, 100, 5) / 100


class Ranked(NamedTuple):
    """What was found in all pictures, and the thing of its class that it overlaps most.

    Attributes:
        labels: class numbers (D).
        scores: D.
        overlaps: intersection over union with that thing; 0 where its class is not in the picture.
        things: numbers of these things among those of all pictures; -1 where there is none.
    """

    labels: Ints
    scores: Floats
    overlaps: Floats
    things: Ints


@register.evaluator
class Voc(Pictures):
    """Pascal VOC's mean average precision of boxes, as its development kit counts it (Everingham et al. 2010, section
    4.2): ``AP50`` is VOC's own score, ``AP75`` that of a larger overlap, ``AP`` the mean over overlaps from 0.5 to 0.95
    (detectron2's three).

    Found is what overlaps *more* than the threshold with a thing of its class, the one that it overlaps most; of
    several, the one with the highest score, the others are false. Difficult things (``crowd`` in the truth) need not be
    found, and what is found there is neither right nor false. A class that is there nowhere is left out.

    VOC counts pixels, from 1 on and with the last one, and so adds 1 to widths and heights; boxes here begin at 0 and
    end behind their last pixel, which is the same width without adding. Scores and boxes are not rounded first, as
    detectron2 does when it writes VOC's files.

    The tables (``details``): AP of each class, what is taken for what and the hundred pictures with most mistakes
    (:mod:`opabinia.evaluation.detection.detection_errors`).

    Args:
        facts: of the data.
        year: whose rule: in 2007 the mean of the precisions at recalls 0, 0.1 ... 1, later (2012) the area under
            precision over recall, each precision being the best at this recall or a higher one.
        confidence: from which score on a thing counts as found where mistakes are counted.
    """

    def __init__(
        self, dataset_info: DatasetInfo, /, *, year: Literal[2007, 2012] = 2012, confidence: Fraction = 0.25
    ) -> None:
        super().__init__()
        self._facts, self._confidence = dataset_info, confidence
        self._average = eleven_points if year == 2007 else area
        self.better = {"AP50": "max", "AP75": "max", "AP": "max"}
        self._last: tuple[Any, list[Picture], Floats] | None = None

    def _judged(self, states: Sequence[list[Picture]]) -> tuple[list[Picture], Floats]:
        """The pictures in order, and AP of each class at each threshold (K x 10); kept for the next question."""
        if self._last is None or self._last[0] is not states:
            pictures = in_order(states)
            self._last = states, pictures, self._precisions(pictures)
        return self._last[1:]

    def _precisions(self, pictures: Sequence[Picture]) -> Floats:
        classes = range(len(self._facts.classes))
        result = np.full((len(classes), len(THRESHOLDS)), np.nan)
        if not pictures:
            return result
        found = ranked(pictures)
        labels = np.concatenate([picture.ground_truth.labels for picture in pictures])
        difficult = np.concatenate([picture.ground_truth.crowd for picture in pictures])
        for label in classes:
            things = int((~difficult[labels == label]).sum())
            rows = np.flatnonzero(found.labels == label)
            rows = rows[np.argsort(-found.scores[rows], kind="stable")]
            for column, threshold in enumerate(THRESHOLDS if things else ()):
                right = _right(found.overlaps[rows], found.things[rows], difficult, float(threshold))
                result[label, column] = self._average(right[right >= 0], things)
        return result

    def compute(self, states: Sequence[list[Picture]]) -> dict[str, float]:
        """The three scores; nothing when there is nothing to be found."""
        _, precisions = self._judged(states)
        there = precisions[~np.isnan(precisions[:, 0])]
        if not len(there):
            return {}
        return {"AP50": float(there[:, 0].mean()), "AP75": float(there[:, 5].mean()), "AP": float(there.mean())}

    def details(self, states: Sequence[list[Picture]]) -> dict[str, Any]:
        """The tables, in plain values; null for a class that is there nowhere."""
        pictures, precisions = self._judged(states)
        if not pictures:
            return {}
        labels = [picture.ground_truth.labels[~picture.ground_truth.crowd] for picture in pictures]
        things = np.bincount(np.concatenate(labels), minlength=len(self._facts.classes)).tolist()
        rows = zip(self._facts.classes, things, precisions, strict=True)
        table = [
            {
                "class": name,
                "things": count,
                "AP50": float(values[0]) if count else None,
                "AP75": float(values[5]) if count else None,
                "AP": float(values.mean()) if count else None,
            }
            for name, count, values in rows
        ]
        return {"per_class": table, **mistakes(pictures, len(self._facts.classes), self._confidence)}


def ranked(pictures: Sequence[Picture]) -> Ranked:
    """What was found in all pictures, one after the other."""
    parts = []
    before = 0
    for picture in pictures:
        ground_truth = picture.ground_truth
        share, thing = np.zeros(len(picture.labels)), np.full(len(picture.labels), -1)
        if len(ground_truth.labels) and len(picture.labels):
            corners = np.concatenate(
                [ground_truth.boxes[:, :2], ground_truth.boxes[:, :2] + ground_truth.boxes[:, 2:]], 1
            )
            shares = overlaps(picture.boxes.astype(np.float64), corners)
            shares[picture.labels[:, None] != ground_truth.labels] = -1
            share, place = shares.max(1), shares.argmax(1)
            thing = np.where(share >= 0, place + before, -1)
        parts.append(Ranked(picture.labels, picture.scores, share, thing))
        before += len(ground_truth.labels)
    return Ranked(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _right(shares: Floats, things: Ints, difficult: NDArray[np.bool_], threshold: float) -> Ints:
    """For each thing found, best first: 1 right, 0 false, -1 neither."""
    result = np.zeros(len(shares), np.int64)
    hits = np.flatnonzero(shares > threshold)
    _, firsts = np.unique(things[hits], return_index=True)
    result[hits[firsts]] = 1
    result[hits[difficult[things[hits]]]] = -1
    return result


def area(right: Ints, things: int) -> float:
    """Area under precision over recall, each precision being the best at this recall or a higher one.

    Args:
        right: 1 or 0 of what was found, best first.
        things: how many there are.

    Example: [1, 0, 1] of 2 things: precisions 1, 1/2, 2/3, so (1 + 2/3) / 2 = 0.8333.
    """
    precision = _precision(right)
    return float((precision * right).sum() / things)


def voc_ap(targets: NDArray[Any], scores: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """Average precision of a class over whole images: :func:`area` of the images, best first; equal ones in the order
    in which they come.

    Args:
        targets: how many things of the class are in each image (N); above 0 it is there.
        scores: N.
        weights: 1 for images that count and 0 for those that do not, as where all things are difficult (N); None:
            all count.

    Returns: NaN when the class is there nowhere.

    Example: targets [1, 0, 1], scores [0.9, 0.8, 0.7]: (1 + 2/3) / 2 = 0.8333; with weights [1, 0, 1] it is 1.
    """
    counts = np.ones(len(targets), bool) if weights is None else np.asarray(weights) > 0
    there = (np.asarray(targets)[counts] > 0).astype(np.int64)
    if not there.any():
        return float("nan")
    return area(there[np.argsort(-np.asarray(scores)[counts], kind="stable")], int(there.sum()))


def eleven_points(right: Ints, things: int) -> float:
    """Mean of the best precisions at recalls of at least 0, 0.1 ... 1.

    Args:
        right: 1 or 0 of what was found, best first.
        things: how many there are.

    Example: [1, 0, 1] of 2 things: 1 at recalls up to 0.5, 2/3 above, so (6 + 5 * 2/3) / 11 = 0.8485.
    """
    precision, found = _precision(right), 10 * right.cumsum()
    # Whole numbers: 3 of 10 is a recall of 0.3.
    reached = [precision[found >= tenth * things] for tenth in range(11)]
    return float(sum(values[0] if len(values) else 0.0 for values in reached) / 11)


def _precision(right: Ints) -> Floats:
    """Precision among so many best ones, or the best among more of them."""
    precision = right.cumsum() / np.arange(1, len(right) + 1)
    best: Floats = np.maximum.accumulate(precision[::-1])[::-1]
    return best
