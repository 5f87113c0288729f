"""Scores as a table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from opabinia.runtime.slurm import told_rank


def print_step(folder: Path) -> None:
    """Print what ``step.json`` in a folder says of one step: losses, and the largest gradients."""
    if told_rank(os.environ):
        return
    said = json.loads((folder / "step.json").read_text(encoding="utf-8"))
    gradients = said.pop("gradients")
    table = Table("step", str(said.pop("step")))
    for name, value in said.items():
        if not name.startswith(("time/", "samples")):
            table.add_row(name, f"{value}")
    for name in sorted(gradients, key=lambda one: -float(gradients[one]))[:5]:
        table.add_row(f"gradient of {name}", f"{float(gradients[name]):.6g}")
    console = Console(highlight=False)
    console.print(table)
    console.print(str(folder), soft_wrap=True)


def print_scores(title: str, scores: Mapping[str, float]) -> None:
    """Print scores to stdout, one a row, and where they come from; of many processes the first does."""
    if told_rank(os.environ):
        return
    table = Table("score", "value")
    for name, value in scores.items():
        table.add_row(name, f"{value:.4f}")
    console = Console(highlight=False)
    console.print(table)
    console.print(title, soft_wrap=True)
    # One line to paste into a sheet, with the columns of the table above.
    console.print(",".join(["csv", *(f"{value:.6g}" for value in scores.values())]), soft_wrap=True)
