"""What the documentation shows runs as it stands there."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def test_the_notebook_runs_from_top_to_bottom() -> None:
    notebook = json.loads((EXAMPLES / "no_yaml.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {cell['id']}", "exec"), names)
    assert names["scores"]["val_ema/top1"] > 0.9
    assert names["longer"]["val/top1"] >= names["scores"]["val/top1"] - 0.02
    assert names["snapshot"].step == 6 * 23
    assert names["predictor"](names["digit"]["image"]).readable["top"][0]["class"] == str(names["digit"]["label"])


def test_the_plain_loop_learns_and_repeats_itself() -> None:
    """No trainer: a loop of a page over the parts."""
    main = runpy.run_path(str(EXAMPLES / "plain_loop.py"))["main"]
    first = main(epochs=2)
    assert first["top1"] > 0.8
    assert main(epochs=2) == first
