"""Assignment of detections to tracks. N tracks, M detections."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from opabinia.models.trackers.kalman import Floats

Ints = NDArray[np.int64]


def box_iou(first: Floats, second: Floats) -> Floats:
    """Return the IoU of each box of the first (N x 4: left, top, right, bottom) with each of the second (N x M)."""
    common = np.ones((len(first), len(second)))
    for low, high in ((0, 2), (1, 3)):
        sides = np.minimum.outer(first[:, high], second[:, high])
        sides -= np.maximum.outer(first[:, low], second[:, low])
        common *= sides.clip(0, out=sides)
    areas, other_areas = ((boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1) for boxes in (first, second))
    union = areas[:, None] + other_areas - common
    iou: Floats = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return iou


def match(scores: Floats, similarity: Floats, least: float) -> tuple[Ints, Ints]:
    """Assign tracks and detections one to one for the largest sum of scores, and keep the similar pairs.

    The assignment is a function of the numbers alone: equal scores are decided by the order of rows and columns.

    Args:
        scores: score of each pair (N x M).
        similarity: similarity of each pair (N x M).
        least: smallest similarity of a match.

    Returns:
        Track and detection of each match, in the order of the tracks.
    """
    rows, columns = linear_sum_assignment(scores, maximize=True)
    similar = similarity[rows, columns] >= least
    return rows[similar], columns[similar]


def others(count: int, rows: Ints) -> Ints:
    """Return the numbers below ``count`` that are not in ``rows``."""
    free = np.ones(count, bool)
    free[rows] = False
    return np.flatnonzero(free)
