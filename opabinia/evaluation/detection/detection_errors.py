"""Which things in pictures were found, missed, or taken for others, at one score and one overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.evaluation.detection.base import Floats, Picture

OVERLAP = 0.5
WORST = 100


class Matches(NamedTuple):
    """What in a picture belongs together.

    Attributes:
        right: classes of things that were found as what they are.
        mistaken: (true class, class found) of those taken for others.
        missed: classes of those not found.
        false: classes of what was found where nothing is.
    """

    right: list[int]
    mistaken: list[tuple[int, int]]
    missed: list[int]
    false: list[int]


def overlaps(found: Floats, there: Floats) -> Floats:
    """Intersection over union of boxes, both left, top, right, bottom (D x 4 and N x 4), D x N; 0 of empty ones."""
    shared = _shared(found, there)
    union = _areas(found)[:, None] + _areas(there) - shared
    result: Floats = shared / np.maximum(union, np.finfo(np.float64).tiny)
    return result


def match(picture: Picture, confidence: float) -> Matches:
    """Pairs of what was found with a score of at least ``confidence`` and what is there, overlapping by half at least.

    Each belongs to one pair at most. Pairs of the same class are made first, then those of different ones, and among
    them those that overlap more. What was found and lies for half of it within a crowd of its class is left out.
    """
    ground_truth = picture.ground_truth
    sure = picture.scores >= confidence
    boxes, labels = picture.boxes[sure].astype(np.float64), picture.labels[sure]
    corners = np.concatenate([ground_truth.boxes[:, :2], ground_truth.boxes[:, :2] + ground_truth.boxes[:, 2:]], 1)
    single = ~ground_truth.crowd
    there = ground_truth.labels[single]
    shares = overlaps(boxes, corners[single])
    rows, columns = np.nonzero(shares >= OVERLAP)
    order = np.lexsort((-shares[rows, columns], labels[rows] != there[columns]))
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if row not in partner and column not in taken:
            partner[row] = column
            taken.add(column)
    ignored = _within(boxes, labels, corners[ground_truth.crowd], ground_truth.labels[ground_truth.crowd])
    pairs = [(int(there[column]), int(labels[row])) for row, column in partner.items()]
    return Matches(
        right=[true for true, said in pairs if true == said],
        mistaken=[pair for pair in pairs if pair[0] != pair[1]],
        missed=[label for column, label in enumerate(there.tolist()) if column not in taken],
        false=[label for row, label in enumerate(labels.tolist()) if row not in partner and not ignored[row]],
    )


def mistakes(pictures: Sequence[Picture], classes: int, confidence: float) -> dict[str, Any]:
    """The tables of an evaluation: :func:`confusion` and the :func:`worst` pictures."""
    matches = [match(picture, confidence) for picture in pictures]
    return {"confusion": confusion(matches, classes), "worst": worst(pictures, matches, WORST)}


def confusion(matches: Sequence[Matches], classes: int) -> list[list[int]]:
    """(True class, class found, number of things), most frequent mistakes first; the number ``classes`` stands for the
    background: as class found for what was missed, as true class for what was found where nothing is. See
    :func:`match`."""
    cells: Counter[tuple[int, int]] = Counter()
    for found in matches:
        cells.update((label, label) for label in found.right)
        cells.update(found.mistaken)
        cells.update((label, classes) for label in found.missed)
        cells.update((classes, label) for label in found.false)
    order = sorted(cells.items(), key=lambda cell: (cell[0][0] == cell[0][1], -cell[1], cell[0]))
    return [[true, said, count] for (true, said), count in order]


def worst(pictures: Sequence[Picture], matches: Sequence[Matches], most: int) -> list[dict[str, Any]]:
    """Pictures with mistakes, most mistakes first: what was missed and what is false; taken for another class counts as
    both. Of equally many, the picture with fewer things found rightly comes first. See :func:`match`."""
    rows = []
    for picture, found in zip(pictures, matches, strict=True):
        missed, false = (len(found.mistaken) + len(one) for one in (found.missed, found.false))
        if missed or false:
            rows.append((picture.name, picture.ground_truth.image_id, len(found.right), missed, false))
    rows.sort(key=lambda row: (-row[3] - row[4], row[2]))
    return [dict(zip(("id", "image_id", "right", "missed", "false"), row, strict=True)) for row in rows[:most]]


def _areas(boxes: Floats) -> Floats:
    result: Floats = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1)
    return result


def _shared(found: Floats, there: Floats) -> Floats:
    starts = np.maximum(found[:, None, :2], there[None, :, :2])
    ends = np.minimum(found[:, None, 2:], there[None, :, 2:])
    result: Floats = (ends - starts).clip(0).prod(2)
    return result


def _within(boxes: Floats, labels: NDArray[Any], crowds: Floats, kinds: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether half of a box at least lies in a crowd of its class."""
    share = _shared(boxes, crowds) >= OVERLAP * _areas(boxes)[:, None]
    result: NDArray[np.bool_] = (share & (labels[:, None] == kinds)).any(1)
    return result
