"""HOTA (Luiten et al. 2021, arXiv:2009.07736), by TrackEval's rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opabinia.evaluation.tracking.pairs import EPS, Floats, Ints, Pairs, assign

THRESHOLDS = np.arange(0.05, 0.99, 0.05)
"""The 19 IoUs at which boxes are compared, over which HOTA is the mean."""


class HotaSums(NamedTuple):
    """Sums over the frames of sequences for each of the 19 thresholds. Sums of two sequences can be added.

    Attributes:
        matched, missed, false: numbers of matches, of true and of predicted boxes without one.
        association: sum over matches of the IoU of the two tracks, as sets of boxes.
        association_recall: sum over matches of the share of the true track's boxes that match the predicted track.
        association_precision: sum over matches of the share of the predicted track's boxes that match the true track.
        similarity: sum of the IoUs of matches.
    """

    matched: Ints
    missed: Ints
    false: Ints
    association: Floats
    association_recall: Floats
    association_precision: Floats
    similarity: Floats


def hota_sums(pairs: Pairs) -> HotaSums:
    """Match the boxes of a sequence and return its sums.

    In each frame, boxes are matched one to one for the largest sum of their IoU times the alignment of their tracks,
    which is the overlap of both over all frames as an IoU. A match counts at the thresholds that its IoU reaches.
    """
    numbers, track_pair = np.unique(pairs.track_pairs, return_inverse=True)
    true_tracks, predicted_tracks = pairs.split_track_pairs(numbers)
    true_lengths = np.bincount(pairs.true.ids)[true_tracks]
    predicted_lengths = np.bincount(pairs.predicted.ids)[predicted_tracks]
    lengths = true_lengths + predicted_lengths

    totals = (np.bincount(index, pairs.similarity)[index] for index in (pairs.columns, pairs.rows))
    shared = np.bincount(track_pair, pairs.similarity / (sum(totals) - pairs.similarity), len(numbers))
    alignment = shared / (lengths - shared)
    chosen = assign(pairs, alignment[track_pair] * pairs.similarity)

    similarity = pairs.similarity[chosen]
    reached = similarity >= THRESHOLDS[:, None] - EPS
    matched = reached.sum(1)
    # Boxes that two tracks share (19 x pairs of tracks).
    counts = np.stack([np.bincount(track_pair[chosen][mask], minlength=len(numbers)) for mask in reached])
    return HotaSums(
        matched=matched,
        missed=len(pairs.true.ids) - matched,
        false=len(pairs.predicted.ids) - matched,
        association=(counts * (counts / (lengths - counts))).sum(1),
        association_recall=(counts * (counts / true_lengths)).sum(1),
        association_precision=(counts * (counts / predicted_lengths)).sum(1),
        similarity=(reached * similarity).sum(1),
    )


def hota_scores(sums: HotaSums) -> dict[str, Floats]:
    """Return the scores at each threshold (19)."""
    matched = np.maximum(1, sums.matched)
    scores = {
        "DetA": sums.matched / np.maximum(1, sums.matched + sums.missed + sums.false),
        "AssA": sums.association / matched,
        "DetRe": sums.matched / np.maximum(1, sums.matched + sums.missed),
        "DetPr": sums.matched / np.maximum(1, sums.matched + sums.false),
        "AssRe": sums.association_recall / matched,
        "AssPr": sums.association_precision / matched,
        "LocA": np.where(sums.matched > 0, sums.similarity / matched, 1.0),
    }
    return {"HOTA": np.sqrt(scores["DetA"] * scores["AssA"])} | scores
