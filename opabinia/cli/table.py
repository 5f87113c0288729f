"""Scores as a table."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from opabinia.runtime.slurm import told_rank


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
