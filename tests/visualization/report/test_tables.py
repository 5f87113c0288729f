"""Tables of evaluations as blocks."""

from __future__ import annotations

from typing import Any

import pytest

from opabinia.visualization.report.blocks import Chart, Matrix, Table
from opabinia.visualization.report.tables import BACKGROUND, blocks_of


def blocks_and_notes(details: dict[str, Any], classes: tuple[str, ...] = ("cat", "dog")) -> tuple[list[Any], list[str]]:
    notes: list[str] = []
    return blocks_of(details, classes, notes, "val"), notes


def test_confusion_names_the_background() -> None:
    (matrix, pairs), notes = blocks_and_notes({"confusion": [[0, 2, 4], [0, 0, 6], [2, 1, 3]]})
    assert isinstance(matrix, Matrix) and isinstance(pairs, Table)
    assert matrix.down == ["cat", "dog", BACKGROUND]
    assert matrix.counts == [[6, 0, 4], [0, 0, 0], [0, 3, 0]]
    assert matrix.share(0, 2) == pytest.approx(0.4)
    assert pairs.rows == [("cat", BACKGROUND, 4, 0.4), (BACKGROUND, "dog", 3, 1.0)]
    assert not notes


def test_tables_of_errors_state_which_detections_they_count() -> None:
    counted = {"min_score": 0.371, "min_iou": 0.5, "selected_by": "highest F1", "F1": 0.81}
    worst = [{"id": "a.jpg", "right": 2, "missed": 1, "false": 0}]
    blocks, _ = blocks_and_notes({"counted": counted, "confusion": [[0, 1, 1], [0, 0, 2]], "worst": worst})
    least = "a score of at least 0.371 and an IoU of at least 0.5"
    text = f"Counts detections with {least}: F1 0.810 (the highest on this data)."
    assert [block.note for block in blocks] == [text] * 3
    blocks, _ = blocks_and_notes({"counted": counted | {"selected_by": "confidence"}, "worst": worst})
    assert blocks[0].note == text.replace(" (the highest on this data)", "")
    assert [block.note for block in blocks_and_notes({"worst": worst})[0]] == [""]


def test_many_classes_have_no_matrix_and_huge_numbers_cost_nothing() -> None:
    (pairs,), _ = blocks_and_notes({"confusion": [[10**12, 3, 1]]})
    assert pairs.rows == [(str(10**12), "3", 1, 1.0)]


def test_precision_recall_curves() -> None:
    (chart,), _ = blocks_and_notes(
        {"precision_recall": {"recall": [0.0, 0.5, 1.0], "0.5": [1.0, 0.9, 0.2], "0.75": [1, None, 0]}}
    )
    assert isinstance(chart, Chart)
    assert [line.name for line in chart.lines] == ["IoU 0.5", "IoU 0.75"]
    assert chart.lines[1].y == [1, None, 0]


def test_retrieval_has_a_cmc_curve() -> None:
    table = {"queries": 3, "queries_without_match": 0, "gallery": 9, "cmc": [0.5, 1.0], "worst": []}
    (chart, counts), _ = blocks_and_notes({"retrieval": table})
    assert chart.lines[0].x == [1.0, 2.0]
    assert counts.rows[0] == ("queries", 3)


@pytest.mark.parametrize(
    "details",
    [
        {"confusion": [["a", "b", "c"]]},
        {"confusion": 3},
        {"precision_recall": {"recall": "no"}},
        {"retrieval": {"cmc": 7}},
        {"calibration": [{"confidence": 0.5}]},
        {"clusters": [{"samples": 2}]},
    ],
)
def test_malformed_tables_are_reported(details: dict[str, Any]) -> None:
    blocks, notes = blocks_and_notes(details)
    assert not blocks
    assert len(notes) == 1 and "is unknown" in notes[0]


def test_unknown_tables_are_ignored() -> None:
    assert blocks_and_notes({"step": 3, "of_the_future": {"x": 1}}) == ([], [])
