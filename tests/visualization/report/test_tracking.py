"""Evaluations of tracks on the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from opabinia.visualization.report import write_report
from opabinia.visualization.report.blocks import Chart, Table, Timeline
from opabinia.visualization.report.tracking import COLUMNS, MAX_SEQUENCES, tracking_blocks

SCORES = dict.fromkeys(COLUMNS[:6], 0.5) | dict.fromkeys(COLUMNS[6:], 3)


def sequence(name: str, association: float) -> dict[str, Any]:
    return {"sequence": name, **SCORES, "AssA": association}


TABLES: dict[str, Any] = {
    "rows": [{"row": "ground-truth boxes", **SCORES}, {"row": "motion only", **SCORES, "HOTA": 0.25}],
    "tables_of": "sort, motion only",
    "per_class": [{"class": "car", **SCORES}],
    "class_averaged": SCORES,
    "detection_averaged": SCORES,
    "per_sequence": [sequence("good", 0.9), sequence("bad", 0.1)],
    "per_threshold": [{"IoU": iou, "HOTA": 1 - iou, "DetA": 1.0, "AssA": None} for iou in (0.05, 0.95)],
    "switches": [
        {"sequence": "good", "first": 1, "last": 11, "frames": []},
        {"sequence": "bad", "first": 5, "last": 25, "frames": [10, 20]},
    ],
}


def test_tables_curves_and_timeline() -> None:
    rows, curves, classes, sequences, timeline = tracking_blocks(TABLES, [])
    assert isinstance(rows, Table) and [row[:2] for row in rows.rows] == [
        ("ground-truth boxes", 0.5),
        ("motion only", 0.25),
    ]
    assert isinstance(curves, Chart) and [line.name for line in curves.lines] == ["HOTA", "DetA", "AssA"]
    assert (curves.lines[0].x, curves.lines[0].y) == ([0.05, 0.95], [0.95, pytest.approx(0.05)])
    assert isinstance(classes, Table) and [row[0] for row in classes.rows] == [
        "car",
        "all boxes together",
        "mean of the classes",
    ]
    assert isinstance(sequences, Table) and [row[0] for row in sequences.rows] == ["bad", "good"]
    assert isinstance(timeline, Timeline) and [row.name for row in timeline.rows] == ["bad", "good"]
    assert [timeline.position(timeline.rows[0], frame) for frame in (5, 10, 25)] == [0, 250, 1000]
    assert timeline.position(timeline.rows[1], 11) == 500


def test_many_sequences_and_missing_tables() -> None:
    many = [{"sequence": f"{number}", "first": 1, "last": 2, "frames": [2]} for number in range(MAX_SEQUENCES + 5)]
    (timeline,) = tracking_blocks({"rows": [], "switches": many}, [])
    assert isinstance(timeline, Timeline) and len(timeline.rows) == MAX_SEQUENCES and "with most" in timeline.note
    assert tracking_blocks({"rows": []}, []) == []


def test_the_page(make: Callable[..., Path]) -> None:
    run = make(details={"step": 20, "tracking": TABLES})
    pictures = run / "eval" / "val" / "pictures"
    pictures.mkdir()
    Image.new("RGB", (600, 100)).save(pictures / "0000.webp")
    group = {"title": "Worst identity switches", "rows": [{"pictures": [{"file": "0000.webp", "text": "bad: <b>"}]}]}
    (pictures / "index.json").write_text(json.dumps({"groups": [group]}))
    page = write_report([run]).read_text(encoding="utf-8")
    for text in (
        "Evaluation on val",
        "By sequence, worst association first",
        "Worst identity switches",
        "bad: &lt;b&gt;",
    ):
        assert text in page
    assert 'aria-label="frames 5 to 25; identity switch: 10, 20"' in page


@pytest.mark.parametrize("damage", [{"per_threshold": [{}]}, {"switches": [{"frames": ["x"]}]}, {"per_sequence": [{}]}])
def test_damaged_tables_become_notes(make: Callable[..., Path], damage: dict[str, Any]) -> None:
    page = write_report([make(details={"tracking": TABLES | damage})]).read_text(encoding="utf-8")
    assert "the format of tracking is unknown" in page
