"""Ground truth of sequences from that of their frames."""

from __future__ import annotations

import pytest

from opabinia.contracts import DataMismatch, FrameTracks
from opabinia.evaluation.tracking.frames import join_frames
from tests.evaluation.track_scenes import ground_truth


def frame(sequence: str, number: int, *rows: list[int]) -> FrameTracks:
    return FrameTracks(sequence, number, None, ground_truth(list(rows)))


def test_frames_in_any_order_are_joined() -> None:
    first, second = [1, 7, 0, 0, 4, 4, 0, 0], [2, 7, 1, 0, 5, 4, 0, 0]
    truths = join_frames([frame("a", 2, second), frame("empty", 1), frame("a", 1, first)])
    assert list(truths) == ["a", "empty"]
    assert truths["a"].frames.tolist() == [2, 1] and truths["a"].boxes.tolist() == [[1, 0, 5, 4], [0, 0, 4, 4]]
    assert len(truths["empty"].ids) == 0


def test_frames_that_cannot_be_joined() -> None:
    with pytest.raises(DataMismatch, match="a: there are two frames with the number 3"):
        join_frames([frame("a", 3), frame("a", 3)])
    with pytest.raises(DataMismatch, match="no tracks"):
        join_frames([None])
