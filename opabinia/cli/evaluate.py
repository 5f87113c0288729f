"""``opabinia eval``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.train import Overrides


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    overrides: Overrides = None,
    checkpoint: Annotated[str, typer.Option(help="best, last, or the path of a checkpoint.")] = "best",
) -> None:
    """Evaluate a run's checkpoint on its validation data.

    opabinia eval runs/classification/digits/default --checkpoint last
    """
    with report_errors():
        from opabinia.cli.table import print_scores
        from opabinia.launch import evaluate as measure

        print_scores(f"{run} ({checkpoint})", measure(run, overrides or [], checkpoint=checkpoint))
