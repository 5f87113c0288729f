"""Identity metrics (Ristani et al. 2016, arXiv:1609.01775), by TrackEval's rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from opabinia.evaluation.tracking.pairs import Pairs


class IdentitySums(NamedTuple):
    """Boxes of sequences whose tracks are matched one to one: right ones, missed true and false predicted boxes."""

    matched: int
    missed: int
    false: int


def identity_sums(pairs: Pairs, threshold: float) -> IdentitySums:
    """Match the tracks of a sequence one to one, so that most boxes are right, and return its sums.

    Args:
        pairs: the boxes, and the pairs of them that overlap.
        threshold: smallest IoU of a right box.
    """
    close = pairs.select(pairs.similarity >= threshold)
    true, rows = np.unique(pairs.true.ids[close.rows], return_inverse=True)
    predicted, columns = np.unique(pairs.predicted.ids[close.columns], return_inverse=True)
    shape = len(true), len(predicted)
    common = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)
    matched = int(common[linear_sum_assignment(common, maximize=True)].sum())
    return IdentitySums(matched, len(pairs.true.ids) - matched, len(pairs.predicted.ids) - matched)


def identity_scores(sums: IdentitySums) -> dict[str, float]:
    """Return the fractions."""
    true, predicted = sums.matched + sums.missed, sums.matched + sums.false
    return {
        "IDF1": sums.matched / max(1, (true + predicted) / 2),
        "IDR": sums.matched / max(1, true),
        "IDP": sums.matched / max(1, predicted),
    }
