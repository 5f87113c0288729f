"""``opabinia demo``"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors

RECIPES = ("classification/digits", "reid/digits")


def demo(out: Annotated[Path, typer.Option(help="Where runs lie.")] = Path("runs")) -> None:
    """Train a classifier and embeddings on the data that comes along, evaluate, show the scores: some three minutes."""
    with report_errors():
        from opabinia.cli.table import print_scores
        from opabinia.launch import evaluate, train
        from opabinia.runtime.signals import Stopped

        name = time.strftime("demo-%Y%m%d-%H%M%S")
        for recipe in RECIPES:
            try:
                folder, _ = train(recipe, out=out, name=name)
            except Stopped as stopped:
                raise SystemExit(stopped.exit_status) from None
            print_scores(str(folder), evaluate(folder))
