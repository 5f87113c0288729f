"""Small run folders as training writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

CONFIG = {"task": {"name": "classification", "dropout": 0.1}, "optimizer": {"name": "adamw", "lr": 0.01}, "seed": 0}

LOG = """11-22 08:04:10 I rank 0 of 1 on cpu, 1 thread, seed 0
11-22 08:04:10 I environment
  python       3.11.7
  command      opabinia train "a & b"
11-22 08:04:10 I model
  (head): Linear()
11-22 08:04:11 W the loader is slow
"""

DETAILS = {
    "step": 20,
    "per_class": [
        {"class": "cat", "samples": 10, "recall": 0.9, "precision": 0.75, "f1": 0.8},
        {"class": "dog", "samples": 6, "recall": 0.5, "precision": None, "f1": 0.6},
    ],
    "confusion": [[1, 0, 3], [0, 1, 1], [0, 0, 9], [1, 1, 3]],
    "calibration": [{"samples": 16, "confidence": 0.8, "accuracy": 0.75}],
}


def rows_of(count: int, every: int = 10) -> list[dict[str, Any]]:
    """Return a row of training metrics for each period, and an evaluation at the end."""
    rows: list[dict[str, Any]] = [
        {
            **{
                "step": step,
                "epoch": step / 10,
                "samples": 8 * step,
                "train/loss": 2 / step,
                "train/top1": step / count,
            },
            **{"lr": 0.01, "time/step": 0.5, "samples_per_s": 16.0, "grad_norm": 1.0},
        }
        for step in range(every, count + 1, every)
    ]
    return [*rows, {"step": count, "epoch": count / 10, "samples": 8 * count, "val/top1": 0.75, "time/val": 3.0}]


Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that writes a run folder; arguments that are None are omitted."""

    def write_run(
        name: str = "run",
        *,
        rows: Sequence[Mapping[str, Any]] | None = tuple(rows_of(20)),
        config: Mapping[str, Any] | None = CONFIG,
        details: Mapping[str, Any] | None = DETAILS,
        results: Mapping[str, float] | None = {"val/top1": 0.75},
        state: Mapping[str, Any] | None = None,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        texts: dict[str, str] = {"train.log": LOG}
        if rows is not None:
            texts["metrics.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
        saved = {"config.yaml": config, "eval/val/details.json": details, "results.json": results}
        saved["checkpoints/step-00000020/state.json"] = state
        texts |= {place: json.dumps(value) for place, value in saved.items() if value is not None}
        for place, text in texts.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(text, encoding="utf-8")
        return folder

    return write_run
