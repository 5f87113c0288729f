"""The examples in docs/examples run."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

from opabinia.training.launch import train

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def test_the_notebook_runs() -> None:
    notebook = json.loads((EXAMPLES / "no_yaml.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {cell['id']}", "exec"), names)
    assert names["scores"]["val_ema/top1"] > 0.9
    assert names["longer"]["val/top1"] >= names["scores"]["val/top1"] - 0.02
    assert names["snapshot"].step == 6 * 23
    assert names["predictor"](names["digit"]["image"]).readable["top"][0]["class"] == str(names["digit"]["label"])


def test_the_plain_loop_learns_and_is_reproducible() -> None:
    main = runpy.run_path(str(EXAMPLES / "plain_loop.py"))["main"]
    first = main(epochs=2)
    assert first["top1"] > 0.8
    assert main(epochs=2) == first


def test_a_run_is_compared_with_pixels_and_the_untrained_network(tmp_path: Path) -> None:
    """On whole digits, where pixels are the best embedding."""
    overrides = ["data.train.source={name: digits}", "data.val.source={name: digits, split: val}", "data.num_workers=0"]
    run, results = train("selfsup/digits_simclr", [*overrides, "train.length=2it", "evaluate.every=2it"], out=tmp_path)
    scores = runpy.run_path(str(EXAMPLES / "what_it_learned.py"))["main"](run)
    assert scores.keys() == {"pixels", "untrained", "trained"}
    assert scores["pixels"]["knn_top1"] > 0.97 and scores["pixels"]["linear_top1"] > 0.9
    assert scores["trained"]["knn_top1"] == results["val/knn_top1"] != scores["untrained"]["knn_top1"]
