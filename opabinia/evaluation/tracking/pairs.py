"""True and predicted boxes of a sequence, and all pairs of them that overlap, in one flat table for all frames.

Shapes: N true boxes, M predicted boxes, P pairs of a true and a predicted box in the same frame, T frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from opabinia.contracts.tracking import Role, TrackGroundTruth, Tracks

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

EPS = float(np.finfo(float).eps)
"""An IoU that is smaller than a threshold by this much still reaches it."""
DISTRACTOR_IOU = 0.5
"""A predicted box is matched with a distractor from this IoU on."""
REGION_SHARE = 0.5
"""A predicted box is in a region if this share of its area is."""
_CHUNK = 2**20
"""Pairs of boxes that are compared at once."""


class Boxes(NamedTuple):
    """Boxes in order of their frames.

    Attributes:
        frames: number of the frame of each box (N).
        ids: its track (N).
        corners: left, top, right, bottom (N x 4).
        given_ids: its track as given; ``ids`` may be numbered otherwise (N).
    """

    frames: Ints
    ids: Ints
    corners: Floats
    given_ids: Ints

    def select(self, mask: Bools) -> Boxes:
        """Return the boxes for which the mask (N) is true."""
        return Boxes(self.frames[mask], self.ids[mask], self.corners[mask], self.given_ids[mask])

    def numbered(self) -> Boxes:
        """Return the boxes with tracks that are numbered from 0 without gaps."""
        return self._replace(ids=np.unique(self.ids, return_inverse=True)[1])


class Pairs(NamedTuple):
    """True and predicted boxes, and the pairs of them that overlap, in order of frame, true box, predicted box.

    Attributes:
        true: the true boxes.
        predicted: the predicted boxes.
        rows: index of the true box of each pair (P).
        columns: index of its predicted box (P).
        similarity: their IoU, above 0 (P).
    """

    true: Boxes
    predicted: Boxes
    rows: Ints
    columns: Ints
    similarity: Floats

    def select(self, mask: Bools) -> Pairs:
        """Return the pairs for which the mask (P) is true, with all boxes."""
        return self._replace(rows=self.rows[mask], columns=self.columns[mask], similarity=self.similarity[mask])

    @property
    def frames(self) -> Ints:
        """Frame of each pair (P)."""
        return self.true.frames[self.rows]

    @property
    def track_pairs(self) -> Ints:
        """One number for each pair of a true and a predicted track (P): :meth:`split_track_pairs` gives them back."""
        return self.true.ids[self.rows] * self._radix + self.predicted.ids[self.columns]

    def split_track_pairs(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the true and the predicted track of each number of ``track_pairs``."""
        return numbers // self._radix, numbers % self._radix

    @property
    def _radix(self) -> int:
        return int(self.predicted.ids.max(initial=0)) + 1

    def close(self, threshold: float) -> Pairs:
        """Return the pairs whose IoU reaches the threshold."""
        return self.select(self.similarity >= threshold - EPS)

    def restrict(self, true: Bools, predicted: Bools) -> Pairs:
        """Return the pairs of the true and the predicted boxes for which the masks (N, M) are true, and only these
        boxes."""
        pairs = self.select(true[self.rows] & predicted[self.columns])
        return Pairs(
            self.true.select(true).numbered(),
            self.predicted.select(predicted).numbered(),
            (np.cumsum(true) - 1)[pairs.rows],
            (np.cumsum(predicted) - 1)[pairs.columns],
            pairs.similarity,
        )


class Block(NamedTuple):
    """The pairs of a frame as a matrix of its n true and m predicted boxes.

    Attributes:
        pairs: the pairs of the frame, a slice of all.
        rows: index of the true box of each pair, within the frame.
        columns: index of its predicted box, within the frame.
        shape: n, m.
    """

    pairs: slice
    rows: Ints
    columns: Ints
    shape: tuple[int, int]

    def matrix(self, values: Floats) -> Floats:
        """Return the values of the pairs of the frame as a matrix (n x m), 0 elsewhere."""
        matrix = np.zeros(self.shape)
        matrix[self.rows, self.columns] = values
        return matrix

    def assign(self, scores: Floats) -> Ints:
        """Return the pairs, numbered within the frame, of the one-to-one assignment with the largest sum of scores."""
        rows, columns = linear_sum_assignment(-self.matrix(scores))
        numbers = np.full(self.shape, -1)
        numbers[self.rows, self.columns] = np.arange(len(self.rows))
        chosen: Ints = numbers[rows, columns]
        return chosen[chosen >= 0]


def class_pairs(truth: TrackGroundTruth, tracks: Tracks, label: int) -> Pairs:
    """Return the boxes of a class that count, and their pairs.

    If there are distractors or regions, predicted boxes are matched one to one with the objects of all roles, so that
    the sum of IoUs from 0.5 on is largest. Predicted boxes that match a distractor are dropped, and those that match
    nothing and are in a region by more than half. These are the rules of MOT17 (TrackEval's ``MotChallenge2DBox``) and,
    with regions, of KITTI (``Kitti2DBox``).

    Args:
        truth: annotated boxes of the sequence.
        tracks: predicted boxes of the sequence.
        label: the class.
    """
    rows = np.argsort(truth.frames, kind="stable")
    rows = rows[np.isin(truth.labels[rows], (label, -1))]
    annotated, roles = _boxes(truth, rows), truth.roles[rows]
    rows = np.argsort(tracks.frames, kind="stable")
    rows = rows[tracks.labels[rows] == label]
    predicted = _boxes(tracks, rows)

    is_region = roles == Role.REGION
    regions, true, roles = annotated.select(is_region), annotated.select(~is_region), roles[~is_region]
    pairs = _overlapping(true, predicted)
    ignored = np.zeros(len(predicted.ids), bool)
    if len(regions.ids) or (roles == Role.DISTRACTOR).any():
        close = pairs.close(DISTRACTOR_IOU)
        matched = close.select(assign(close, close.similarity))
        ignored = _inside(predicted, regions)
        ignored[matched.columns] = roles[matched.rows] == Role.DISTRACTOR
    return pairs.restrict(roles == Role.COUNTED, ~ignored)


def _boxes(tracks: Tracks | TrackGroundTruth, rows: Ints) -> Boxes:
    return Boxes(tracks.frames[rows], tracks.ids[rows], tracks.boxes[rows], tracks.ids[rows])


def assign(pairs: Pairs, scores: Floats) -> Bools:
    """Return for each pair whether it is in its frame's one-to-one assignment with the largest sum of scores.

    Args:
        pairs: the pairs.
        scores: positive score of each pair (P).
    """
    conflicts = in_conflict(pairs)
    chosen = ~conflicts
    for block in blocks(pairs, conflicts):
        chosen[block.pairs.start + block.assign(scores[block.pairs])] = True
    return chosen


def in_conflict(pairs: Pairs) -> Bools:
    """Return for each pair whether some box in its frame has several pairs. In other frames, all pairs are matches."""
    several = (np.bincount(pairs.rows)[pairs.rows] > 1) | (np.bincount(pairs.columns)[pairs.columns] > 1)
    return np.isin(pairs.frames, pairs.frames[several])


def blocks(pairs: Pairs, mask: Bools) -> Iterator[Block]:
    """Yield the frames in which the mask (P) is true."""
    chosen = np.unique(pairs.frames[mask])
    bounds = [
        np.searchsorted(frames, chosen, side).tolist()
        for frames in (pairs.frames, pairs.true.frames, pairs.predicted.frames)
        for side in ("left", "right")
    ]
    for start, end, top, bottom, left, right in zip(*bounds, strict=True):
        rows, columns = pairs.rows[start:end] - top, pairs.columns[start:end] - left
        yield Block(slice(start, end), rows, columns, (bottom - top, right - left))


def _overlapping(true: Boxes, predicted: Boxes) -> Pairs:
    """Return the pairs of boxes in the same frame whose IoU is above 0."""
    rows, columns, common = _intersections(true, predicted)
    union = _areas(true)[rows] + _areas(predicted)[columns] - common
    return Pairs(true, predicted, rows, columns, common / union)


def _inside(boxes: Boxes, regions: Boxes) -> Bools:
    """Return for each box whether a large part of it is in one of the regions of its frame."""
    _, columns, common = _intersections(regions, boxes)
    inside = np.zeros(len(boxes.ids), bool)
    inside[columns[common / _areas(boxes)[columns] > REGION_SHARE + EPS]] = True
    return inside


def _areas(boxes: Boxes) -> Floats:
    sides = boxes.corners[:, 2:] - boxes.corners[:, :2]
    areas: Floats = sides[:, 0] * sides[:, 1]
    return areas


def _intersections(first: Boxes, second: Boxes) -> tuple[Ints, Ints, Floats]:
    """Return the pairs of boxes in the same frame that overlap (indices of the first and the second), in order, and the
    areas of their intersections."""
    begin = np.searchsorted(second.frames, first.frames)
    counts = np.searchsorted(second.frames, first.frames, "right") - begin
    last = np.cumsum(counts)
    chunks = np.split(np.arange(len(counts)), np.flatnonzero(np.diff(last // _CHUNK)) + 1)
    parts = []
    for boxes in chunks:
        rows = np.repeat(boxes, counts[boxes])
        before = last[boxes] - counts[boxes]
        columns = np.arange(len(rows)) + np.repeat(begin[boxes] - before + before[:1], counts[boxes])
        parts.append(_positive(first.corners, second.corners, rows, columns))
    rows, columns, common = (np.concatenate(part) for part in zip(*parts, strict=True))
    return rows, columns, common


def _positive(first: Floats, second: Floats, rows: Ints, columns: Ints) -> tuple[Ints, Ints, Floats]:
    """Return the pairs that overlap among those of the boxes ``rows`` of the first and ``columns`` of the second, and
    the areas of their intersections."""
    common = np.ones(len(rows))
    for low, high in ((0, 2), (1, 3)):  # few pairs pass the first axis
        sides = np.minimum(first[rows, high], second[columns, high]) - np.maximum(
            first[rows, low], second[columns, low]
        )
        near = sides > 0
        rows, columns, common = rows[near], columns[near], common[near] * sides[near]
    return rows, columns, common
