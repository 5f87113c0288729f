"""Reading metrics.jsonl: points in order, thinning that keeps spikes, broken lines."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opabinia.visualization.report.metrics import Point, read_metrics, thinned


def test_values_have_step_epoch_samples_and_hours(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"step": 10, "epoch": 0.5, "samples": 80, "train/loss": 2.0, "time/step": 36.0},
        {"step": 20, "epoch": 1.0, "samples": 160, "train/loss": 1.0, "time/step": 72.0},
        {"step": 20, "epoch": 1.0, "samples": 160, "val/top1": 0.5, "time/val": 1800.0},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics_log = read_metrics(path)
    assert metrics_log.lines["train/loss"] == [Point((10, 0.5, 80, 0.1), 2.0), Point((20, 1.0, 160, 0.1 + 0.2), 1.0)]
    assert metrics_log.lines["val/top1"][0].at[3] == pytest.approx(0.8)  # the evaluation took half an hour
    assert metrics_log.newest() == {"val/top1": 0.5}
    assert metrics_log.last[:3] == (20, 1.0, 160)


def test_incomplete_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "train/loss": 1.0}\n[1]\n{"train/loss": 3}\n{"step": "x"}\n{"step": 2, "train/lo')
    metrics_log = read_metrics(path)
    assert len(metrics_log.lines["train/loss"]) == 1
    assert metrics_log.broken == 4


def test_non_finite_values_are_gaps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "train/loss": NaN, "sample_ids": ["a"]}\n{"step": 2, "train/loss": Infinity}\n')
    metrics_log = read_metrics(path)
    assert [point.value for point in metrics_log.lines["train/loss"]] == [None, None]
    assert metrics_log.infinite == {"train/loss"}
    assert list(metrics_log.lines) == ["train/loss"]


def test_a_missing_file_is_an_empty_log(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl").lines == {}


def points(values: list[float | None]) -> list[Point]:
    return [Point((step, 0.0, 0.0, 0.0), value) for step, value in enumerate(values)]


def test_a_spike_survives_thinning() -> None:
    values: list[float | None] = [math.sin(step / 900) for step in range(100_000)]
    values[54_321] = 99.0
    thinned_points = thinned(points(values))
    assert len(thinned_points) <= 2002
    assert max(point.value or 0 for point in thinned_points) == 99.0
    assert (thinned_points[0].at[0], thinned_points[-1].at[0]) == (0, 99_999)


@given(st.lists(st.one_of(st.none(), st.floats(-9, 9)), max_size=60), st.integers(2, 20))
def test_thinning_keeps_order_and_a_subset_of_the_points(values: list[float | None], most: int) -> None:
    whole = points(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opabinia.visualization.report.metrics.MAX_POINTS", most)
        thinned_points = thinned(whole)
    assert [point.at[0] for point in thinned_points] == sorted({point.at[0] for point in thinned_points})
    assert set(thinned_points) <= set(whole)
    assert len(thinned_points) <= max(most, len(whole) if len(whole) <= most else 0) + 2
