"""CLEAR MOT metrics (Bernardin and Stiefelhagen 2008), by TrackEval's rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opabinia.evaluation.tracking.pairs import Bools, Ints, Pairs, blocks, in_conflict

_CONTINUED = 1000.0
"""Score that a pair of boxes gets if their tracks matched in the frame before; an IoU adds at most 1."""
MOSTLY_TRACKED, MOSTLY_LOST = 0.8, 0.2


class ClearSums(NamedTuple):
    """Sums over the frames of sequences. Sums of two sequences can be added.

    Attributes:
        matched, missed, false: numbers of matches, of true and of predicted boxes without one.
        switches: matches of a true track with another predicted track than at its match before.
        mostly_tracked: true tracks of which more than 80 % of the boxes are matched.
        partly_tracked: true tracks of which at least 20 % are matched, and not more than 80 %.
        mostly_lost: the other true tracks.
        fragments: how often a true track is matched again after an interruption.
        similarity: sum of the IoUs of matches.
    """

    matched: int
    missed: int
    false: int
    switches: int
    mostly_tracked: int
    partly_tracked: int
    mostly_lost: int
    fragments: int
    similarity: float


class Switch(NamedTuple):
    """An identity switch: a true track is matched with another predicted track than at its match before.

    Attributes:
        track: the true track.
        frames: frame of the match before, and of this match.
        predicted: the predicted tracks of both.
        boxes_lost: matches of the true track with the first or the second predicted track, whichever are fewer: a
            switch in the middle of a track costs most.
    """

    track: int
    frames: tuple[int, int]
    predicted: tuple[int, int]
    boxes_lost: int


def clear_sums(pairs: Pairs, threshold: float) -> ClearSums:
    """Match the boxes of a sequence and return its sums.

    In each frame, boxes whose tracks matched in the frame before are matched again if their IoU still reaches the
    threshold, and the others for the largest sum of IoUs. Frames without any true or any predicted box do not count as
    a frame before.

    Args:
        pairs: the boxes, and the pairs of them that overlap.
        threshold: smallest IoU of a match.
    """
    matches, frames = _matches(pairs, threshold)
    true = pairs.true.ids[matches.rows]
    before, after = _successive(matches)
    switched = _predicted_track(matches, before) != _predicted_track(matches, after)
    positions = np.searchsorted(frames, matches.frames)
    interrupted = positions[after] - positions[before] > 1

    lengths = np.bincount(pairs.true.ids)
    tracked = np.bincount(true, minlength=len(lengths)) / lengths
    mostly, partly = int((tracked > MOSTLY_TRACKED).sum()), int((tracked >= MOSTLY_LOST).sum())
    return ClearSums(
        matched=len(true),
        missed=len(pairs.true.ids) - len(true),
        false=len(pairs.predicted.ids) - len(true),
        switches=int(switched.sum()),
        mostly_tracked=mostly,
        partly_tracked=partly - mostly,
        mostly_lost=len(lengths) - partly,
        fragments=int(interrupted.sum()),
        similarity=float(matches.similarity.sum()),
    )


def identity_switches(pairs: Pairs, threshold: float) -> list[Switch]:
    """Return the identity switches that :func:`clear_sums` counts, in order of their frames; with its arguments."""
    matches, _ = _matches(pairs, threshold)
    before, after = _successive(matches)
    switched = _predicted_track(matches, before) != _predicted_track(matches, after)
    ends = np.stack([before[switched], after[switched]], 1)
    ends = ends[np.argsort(ends[:, 1])]
    _, track_pair, counts = np.unique(matches.track_pairs, return_inverse=True, return_counts=True)
    rows, columns = matches.rows[ends], matches.columns[ends]
    values = zip(
        pairs.true.given_ids[rows[:, 0]].tolist(),
        map(tuple, pairs.true.frames[rows].tolist()),
        map(tuple, pairs.predicted.given_ids[columns].tolist()),
        counts[track_pair[ends]].min(1, initial=len(track_pair)).tolist(),
        strict=True,
    )
    return [Switch(*row) for row in values]


def clear_scores(sums: ClearSums) -> dict[str, float]:
    """Return the fractions."""
    true, predicted = max(1, sums.matched + sums.missed), max(1, sums.matched + sums.false)
    tracks = max(1, sums.mostly_tracked + sums.partly_tracked + sums.mostly_lost)
    return {
        "MOTA": (sums.matched - sums.false - sums.switches) / true,
        "MOTP": sums.similarity / max(1, sums.matched),
        "MODA": (sums.matched - sums.false) / true,
        "sMOTA": (sums.similarity - sums.false - sums.switches) / true,
        "recall": sums.matched / true,
        "precision": sums.matched / predicted,
        "MTR": sums.mostly_tracked / tracks,
        "PTR": sums.partly_tracked / tracks,
        "MLR": sums.mostly_lost / tracks,
    }


def clear_counts(sums: ClearSums) -> dict[str, int]:
    """Return the numbers of boxes, switches, tracks and interruptions by their usual names."""
    return {
        "TP": sums.matched,
        "FN": sums.missed,
        "FP": sums.false,
        "IDSW": sums.switches,
        "MT": sums.mostly_tracked,
        "PT": sums.partly_tracked,
        "ML": sums.mostly_lost,
        "Frag": sums.fragments,
    }


def _matches(pairs: Pairs, threshold: float) -> tuple[Pairs, Ints]:
    """Return the matches, and the frames with true and predicted boxes; see :func:`clear_sums`."""
    close = pairs.close(threshold)
    frames = np.intersect1d(pairs.true.frames, pairs.predicted.frames)
    return close.select(_match_in_order(close, frames)), frames


def _successive(matches: Pairs) -> tuple[Ints, Ints]:
    """Return the pairs of successive matches of a true track, as indices of the first and of the second."""
    true = matches.true.ids[matches.rows]
    order = np.lexsort((matches.frames, true))
    again = np.diff(true[order]) == 0
    return order[:-1][again], order[1:][again]


def _predicted_track(matches: Pairs, rows: Ints) -> Ints:
    tracks: Ints = matches.predicted.ids[matches.columns[rows]]
    return tracks


def _match_in_order(close: Pairs, frames: Ints) -> Bools:
    """Return for each pair whether it is a match. Only frames in which boxes have several pairs depend on others."""
    conflicts = in_conflict(close)
    chosen = ~conflicts
    track_pairs = close.track_pairs
    first, last = (np.searchsorted(close.frames, frames, side) for side in ("left", "right"))
    for block in blocks(close, conflicts):
        before = int(np.searchsorted(frames, close.frames[block.pairs.start])) - 1
        pairs_before = slice(first[before], last[before]) if before >= 0 else slice(0)
        continued = np.isin(track_pairs[block.pairs], track_pairs[pairs_before][chosen[pairs_before]])
        scores = _CONTINUED * continued + close.similarity[block.pairs]
        chosen[block.pairs.start + block.assign(scores)] = True
    return chosen
