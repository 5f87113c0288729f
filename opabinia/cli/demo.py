"""``opabinia demo``"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import leave, report_errors
from opabinia.cli.report import report


class Shown(StrEnum):
    """What can be shown."""

    all = "all"
    classification = "classification"
    reid = "reid"
    selfsup = "selfsup"
    video = "video"
    detection = "detection"


@dataclass(frozen=True)
class Part:
    """One task of the demo.

    Attributes:
        recipe: what is trained.
        shorter: what is changed in it, so that all fits in a quarter of an hour.
        question: what the model learns to answer.
        score: the one that tells how well.
        compared: the same score of something that has learned nothing.
    """

    recipe: str
    shorter: tuple[str, ...]
    question: str
    score: str
    compared: str


PARTS: dict[Shown, Part] = {
    Shown.classification: Part("classification/digits", (), "which digit is it?", "val/top1", "guessing: 0.100"),
    Shown.reid: Part("reid/digits", (), "which pictures show the same one of 797 digits?", "val/mAP", "pixels: 0.008"),
    Shown.selfsup: Part(
        "selfsup/digits_vicreg",
        (),
        "which pictures are alike, learned without a label?",
        "val/knn_top1",
        "pixels: 0.578",
    ),
    Shown.video: Part(
        "video/digits", ("train.length=2ep",), "which way does it move?", "val/top1", "a single frame: 0.140"
    ),
    Shown.detection: Part(
        "detection/digits", ("train.length=4ep",), "where are the digits, and which are they?", "val/AP", "nothing: 0"
    ),
}
"""The quickest first."""


def demo(
    task: Annotated[Shown, typer.Argument(help="Which task.")] = Shown.all,
    out: Annotated[Path, typer.Option(help="Where runs lie.")] = Path("runs"),
    name: Annotated[str, typer.Option(help="Name of the runs; another one trains all anew.")] = "demo",
) -> None:
    """Train on the handwritten digits that come along, a run a task; evaluate; end with a report of all of them.

    Stopped by Ctrl-C, the same command goes on from there; what is finished is not trained again.
    """
    with report_errors():
        from opabinia.training.launch import run_folder_of
        from opabinia.training.sweep import refuse_other_config

        chosen: Mapping[Shown, Part] = PARTS if task is Shown.all else {task: PARTS[task]}
        folders = {one: run_folder_of(part.recipe, out, name) for one, part in chosen.items()}
        for one, part in chosen.items():
            refuse_other_config(folders[one], part.recipe, part.shorter)
        typer.echo("Ctrl-C saves what was learned; the same command goes on from there")
        scores = {}
        for number, one in enumerate(chosen, 1):
            typer.secho(f"\n{number} of {len(chosen)}, {one}: {chosen[one].question}", bold=True)
            scores[one] = _scores(chosen[one], folders[one], out, name)
    _print_scores(chosen, scores)
    page = folders[task] / "report.html" if len(chosen) == 1 else out / f"{name}.html"
    report(list(folders.values()), out=page)
    _print_next_commands(chosen, folders)
    if sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        typer.launch(str(page))


def _scores(part: Part, folder: Path, out: Path, name: str) -> dict[str, float]:
    """Train what is not trained yet; evaluate."""
    from opabinia.cli.tables import print_scores
    from opabinia.runtime.signals import Stopped
    from opabinia.training.launch import evaluate
    from opabinia.training.sweep import clean_up, results_of, train_or_go_on

    if results_of(folder) is not None:
        typer.echo(f"{folder} is finished: nothing to train")
    try:
        train_or_go_on(part.recipe, part.shorter, out=out, name=name)
    except Stopped as stopped:
        typer.echo("stopped: the same command goes on from there", err=True)
        leave(stopped.exit_status)
    clean_up()
    scores = evaluate(folder)
    print_scores(str(folder), scores)
    return scores


def _print_scores(chosen: Mapping[Shown, Part], scores: Mapping[Shown, Mapping[str, float]]) -> None:
    """Print what was learned, a row a task."""
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "score", "value", "to compare")
    for one, part in chosen.items():
        table.add_row(one, part.score, f"{scores[one][part.score]:.4f}", part.compared)
    Console(highlight=False).print(table)


def _print_next_commands(chosen: Mapping[Shown, Part], folders: Mapping[Shown, Path]) -> None:
    recipe, run = next((part.recipe, folders[one]) for one, part in chosen.items())
    print("next:")
    print(f"  {shlex.join(['opabinia', 'config', 'show', str(run), '--origin'])}")
    print(f"  opabinia train {recipe} optimizer.lr=0.001 --name slow")
    print(f"  {shlex.join(['tensorboard', '--logdir', os.path.commonpath(folders.values())])}")
