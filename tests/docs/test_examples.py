"""The examples in docs/examples run."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import opabinia
from opabinia.training.launch import train

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


NOTEBOOKS = [
    pytest.param(path.stem, marks=() if path.stem == "classification" else pytest.mark.slow)
    for path in sorted(EXAMPLES.glob("*.ipynb"))
]
SHORT = {
    r'"train\.length=\d+ep"': '"train.length=2it", "schedule.warmup=0it"',
    r'length=Duration\((\d+), "ep"\)': r'length=Duration(\1, "it")',
    r"(warmup)=Duration.*?\)": r'\1=Duration(1, "it")',
    r'"schedule\.warmup=20it", ': "",
}
"""Replacements in a notebook, so that it trains for a few iterations."""


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """All cells, at tiny length; a warning of Python fails any test."""
    notebook = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        text = "".join(cell["source"])
        for pattern, short in SHORT.items():
            text = re.sub(pattern, short, text)
        exec(compile(text, f"{name}, cell {cell['id']}", "exec"), names)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text for text in warnings if not text.startswith("changed since the run began")] == []
    assert (names["folder"] / "config.yaml").is_file() and names["scores"]
    assert isinstance(names["predictor"], opabinia.Predictor)
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells), "stored without outputs"


@pytest.mark.slow
def test_the_plain_loop_learns_and_is_reproducible() -> None:
    main = runpy.run_path(str(EXAMPLES / "plain_loop.py"))["main"]
    first = main(epochs=2)
    assert first["top1"] > 0.8
    assert main(epochs=2) == first


def test_a_run_is_compared_with_pixels_and_the_untrained_network(tmp_path: Path) -> None:
    """Use whole digits, where pixels are the best embedding."""
    overrides = ["data.train.source={name: digits}", "data.val.source={name: digits, split: val}", "data.num_workers=0"]
    run, results = train("selfsup/digits_simclr", [*overrides, "train.length=2it", "evaluate.every=2it"], out=tmp_path)
    scores = runpy.run_path(str(EXAMPLES / "what_it_learned.py"))["main"](run)
    assert scores.keys() == {"pixels", "untrained", "trained"}
    assert scores["pixels"]["knn_top1"] > 0.97 and scores["pixels"]["linear_top1"] > 0.9
    assert scores["trained"]["knn_top1"] == results["val/knn_top1"] != scores["untrained"]["knn_top1"]
