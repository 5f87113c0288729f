"""``opabinia demo``"""

from __future__ import annotations

import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.report import report


class Shown(StrEnum):
    """What can be shown."""

    all = "all"
    classification = "classification"
    reid = "reid"
    selfsup = "selfsup"
    video = "video"
    detection = "detection"


RECIPES: dict[Shown, tuple[str, tuple[str, ...]]] = {
    Shown.classification: ("classification/digits", ()),
    Shown.reid: ("reid/digits", ()),
    Shown.selfsup: ("selfsup/digits_vicreg", ("train.length=6ep", "evaluate.every=3ep")),
    Shown.video: ("video/digits", ("train.length=2ep",)),
    Shown.detection: ("detection/digits", ("train.length=4ep",)),
}
"""A recipe for each, the quickest first, and what is made shorter."""


def demo(
    task: Annotated[Shown, typer.Argument(help="Which task.")] = Shown.all,
    out: Annotated[Path, typer.Option(help="Where runs lie.")] = Path("runs"),
) -> None:
    """Train on the handwritten digits that come along, a run a task; evaluate; end with a report of all of them."""
    with report_errors():
        from opabinia.cli.table import print_scores
        from opabinia.launch import evaluate, train
        from opabinia.runtime.signals import Stopped

        name = time.strftime("demo-%Y%m%d-%H%M%S")
        chosen = RECIPES if task is Shown.all else {task: RECIPES[task]}
        runs = []
        for recipe, shorter in chosen.values():
            try:
                folder, _ = train(recipe, shorter, out=out, name=name)
            except Stopped as stopped:
                raise SystemExit(stopped.exit_status) from None
            print_scores(str(folder), evaluate(folder))
            runs.append(folder)
    page = out / f"{name}.html"
    report(runs, out=page)
    if sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        typer.launch(str(page))
