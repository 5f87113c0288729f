"""Multi-task runs: groups and tables of each task, and single-task runs that tasks are compared with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from opabinia.cli.commands import app
from opabinia.visualization.report import comparison_rows, write_report
from opabinia.visualization.report.charts import metric_sections
from opabinia.visualization.report.run_data import as_subtask, read_run
from tests.visualization.report.conftest import DETAILS
from tests.visualization.report.test_page import data_of

Make = Callable[..., Path]


@pytest.fixture
def run(make: Make) -> Path:
    """A run of two tasks, of which ``digits`` was trained alone, too (in ``single``)."""
    tasks: dict[str, Any] = {
        "boxes": {"task": {"name": "detection"}, "stream": "digits", "compare": "nowhere"},
        "digits": {"task": {"name": "classification"}, "compare": str(make("single"))},
    }
    rows: list[dict[str, Any]] = []
    for step in (10, 20):
        place = {"step": step, "epoch": step / 10, "samples": 16 * step}
        losses = {"train/boxes/loss": 1.0, "train/boxes/num_boxes": 4.0, "train/digits/loss": 0.5, "train/loss": 1.5}
        rows.append(place | losses | {"lr": 0.01, "time/step": 1.2})
        rows.append(place | {"boxes/val/AP": 0.2, "boxes/val/loss": 1.5, "time/boxes/val": 6.0})
        rows.append(place | {"digits/val/top1": 0.7, "time/digits/val": 6.0})
    folder = make(
        "run",
        rows=rows,
        config={"task": {"name": "multitask", "tasks": tasks}},
        results={"boxes/val/AP": 0.2, "digits/val/top1": 0.7},
        state={"format": 1, "facts": {"samples": 9, "streams": {"digits": {"samples": 9, "classes": ["cat", "dog"]}}}},
    )
    for name in ("boxes/val", "boxes/val/step-00000010"):
        (folder / "eval" / name).mkdir(parents=True)
        details = {"confusion": DETAILS["confusion"]}
        (folder / "eval" / name / "details.json").write_text(json.dumps(details))
    return folder


def test_each_task_has_a_group_of_curves(run: Path) -> None:
    data = read_run(run)
    assert data.metrics.last[3] * 3600 == pytest.approx(48), "20 steps of 1.2 s and 4 evaluations of 6 s"
    assert data.classes_of("boxes/val") == ["cat", "dog"] and "boxes/val/step-00000010" not in data.details
    sections = {section.title: section.blocks for section in metric_sections([data, as_subtask(read_run(run), "x")])}
    assert list(sections)[:2] == ["boxes", "digits"]
    titles = {name: [block.title for block in blocks] for name, blocks in sections.items()}
    assert titles["boxes"] == ["loss", "AP", "num_boxes"] and titles["digits"] == ["loss", "top1"]
    lines = sections["boxes"][0].lines
    assert [line.name for line in lines] == ["train", "val"]


def test_tasks_are_compared_with_single_task_runs(run: Path, tmp_path: Path) -> None:
    page = write_report([run], tmp_path / "page.html").read_text()
    assert [entry["letter"] for entry in data_of(page)["runs"]] == ["A", "B"]
    for words in ("A - B", "all single-task runs", "Evaluation on boxes/val", "compare: nowhere holds no run"):
        assert words in page
    digits = next(chart for chart in data_of(page)["charts"] if chart["title"] == "top1")
    assert [(line["run"], line["name"]) for line in digits["lines"]] == [(0, "val"), (1, "train"), (1, "val")]
    rows = comparison_rows(run, {"digits": tmp_path / "single"})
    assert rows[0] == ("digits/val/top1", "0.7000", "0.7500", "-0.0500")
    assert rows[1:] == [("images trained on", "320", "160", "200%"), ("minutes", "0.8", "0.2167", "369%")]


def test_the_compare_option(run: Path, tmp_path: Path) -> None:
    def report(*words: object) -> Any:
        return CliRunner().invoke(app, ["report", str(run), "--no-images", *map(str, words)])

    result = report("--compare", f"boxes={tmp_path / 'single'}", "--out", tmp_path / "page.html")
    assert result.exit_code == 0 and "digits/val/top1" in result.stdout
    assert [entry["letter"] for entry in data_of((tmp_path / "page.html").read_text())["runs"]] == ["A", "B", "C"]
    for value, message in (
        ("boxes", "'boxes' is not of the form TASK=RUN"),
        ("maps=single", "there is no task of this name; tasks: boxes, digits"),
        ("boxes=nowhere", "there is no folder nowhere"),
    ):
        result = report("--compare", value)
        assert result.exit_code == 2 and message in result.stderr
