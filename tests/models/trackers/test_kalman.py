"""The filter of all boxes at once against one with matrices; assignment and overlaps; the table of tracks."""

from __future__ import annotations

import numpy as np
import pytest

from opabinia.models.trackers import kalman
from opabinia.models.trackers.association import box_iou, match, others
from opabinia.models.trackers.table import TrackTable


def test_the_filter_is_that_of_the_textbook() -> None:
    """State of 8 numbers, transition and observation matrices, and the inverse of the innovation's covariance."""
    random = np.random.default_rng(0)
    noise, measurement, step = random.uniform(0.1, 2, 8), random.uniform(0.1, 2, 4), 1.5
    first = random.uniform(0, 100, 4)
    motion = kalman.start(first[None], 3.0, 5.0)
    state, covariance = np.concatenate([first, np.zeros(4)]), np.diag([3.0] * 4 + [5.0] * 4)
    transition, observation = np.eye(8), np.eye(4, 8)
    transition[:4, 4:] = step * np.eye(4)
    for _ in range(5):
        motion = kalman.predict(motion, step, noise[:4], noise[4:])
        state = transition @ state
        covariance = transition @ covariance @ transition.T + step * np.diag(noise)
        measured = random.uniform(0, 100, 4)
        motion = kalman.correct(motion, measured[None], measurement)
        gain = (
            covariance @ observation.T @ np.linalg.inv(observation @ covariance @ observation.T + np.diag(measurement))
        )
        state = state + gain @ (measured - observation @ state)
        covariance = (np.eye(8) - gain @ observation) @ covariance
        assert motion.position[0] == pytest.approx(state[:4]) and motion.velocity[0] == pytest.approx(state[4:])
        assert motion.position_variance[0] == pytest.approx(covariance.diagonal()[:4])
        assert motion.velocity_variance[0] == pytest.approx(covariance.diagonal()[4:])
        assert motion.covariance[0] == pytest.approx(covariance[:4, 4:].diagonal())


def test_overlaps() -> None:
    boxes = np.array([[0.0, 0, 10, 10], [5, 0, 15, 10], [3, 3, 3, 9]])
    assert box_iou(boxes, boxes) == pytest.approx(np.array([[1, 1 / 3, 0], [1 / 3, 1, 0], [0, 0, 0]]))
    assert box_iou(boxes[:0], boxes).shape == (0, 3)


def test_the_assignment_has_the_largest_sum_and_drops_what_is_not_similar() -> None:
    scores = np.array([[0.6, 0.5], [0.5, 0.1]])
    rows, columns = match(scores, scores, 0.5)
    assert (rows.tolist(), columns.tolist()) == ([0, 1], [1, 0])
    rows, columns = match(scores, scores, 0.55)
    assert (rows.tolist(), columns.tolist()) == ([], [])
    rows, columns = match(np.ones((3, 2)), np.ones((3, 2)), 0.5)  # ties: the first tracks
    assert (rows.tolist(), columns.tolist()) == ([0, 1], [0, 1])
    assert others(4, np.array([2, 0])).tolist() == [1, 3]


def test_a_table_copies_the_tracks_that_it_takes() -> None:
    tracks = TrackTable.new(kalman.start(np.zeros((2, 4)), 1, 1), hits=1, color=np.array([7, 8]))
    taken = tracks.take([1, 0]).joined(tracks)
    assert taken.extra["color"].tolist() == [8, 7, 7, 8] and len(taken) == 4
    taken.confirm({}, np.array([2, 0]), hits=1)
    taken.wait(1.0)
    assert taken.ids.tolist() == [1, -1, 0, -1]
    assert tracks.ids.tolist() == [-1, -1] and tracks.missed.tolist() == [0, 0]
