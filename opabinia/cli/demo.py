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


class DemoTask(StrEnum):
    """Tasks of the demo."""

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
        overrides: changes that make all tasks fit into a quarter of an hour.
        question: that the model learns to answer.
        score: name of its metric.
        baseline: the same metric without training.
    """

    recipe: str
    overrides: tuple[str, ...]
    question: str
    score: str
    baseline: str


PARTS: dict[DemoTask, Part] = {
    DemoTask.classification: Part("classification/digits", (), "which digit is it?", "val/top1", "guessing: 0.100"),
    DemoTask.reid: Part("reid/digits", (), "which images show the same one of 797 digits?", "val/mAP", "pixels: 0.008"),
    DemoTask.selfsup: Part(
        "selfsup/digits_vicreg",
        (),
        "which images are similar, learned without labels?",
        "val/knn_top1",
        "pixels: 0.578",
    ),
    DemoTask.video: Part(
        "video/digits", ("train.length=2ep",), "which way does it move?", "val/top1", "a single frame: 0.140"
    ),
    DemoTask.detection: Part(
        "detection/digits", ("train.length=4ep",), "where are the digits, and which are they?", "val/AP", "nothing: 0"
    ),
}
"""The fastest first."""


def demo(
    task: Annotated[DemoTask, typer.Argument(help="The task.")] = DemoTask.all,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    name: Annotated[str, typer.Option(help="Name of the runs; another name trains again.")] = "demo",
) -> None:
    """Train all tasks on the embedded handwritten digits, evaluate them, and write a report.

    After Ctrl-C the same command resumes; finished runs are not trained again.
    """
    with report_errors():
        from opabinia.training.launch import run_folder_of
        from opabinia.training.sweep import check_same_config

        chosen: Mapping[DemoTask, Part] = PARTS if task is DemoTask.all else {task: PARTS[task]}
        folders = {name_: run_folder_of(part.recipe, out, name) for name_, part in chosen.items()}
        for key, part in chosen.items():
            check_same_config(folders[key], part.recipe, part.overrides)
        typer.echo("Ctrl-C saves a checkpoint; the same command resumes")
        scores = {}
        for number, key in enumerate(chosen, 1):
            typer.secho(f"\n{number} of {len(chosen)}, {key}: {chosen[key].question}", bold=True)
            scores[key] = _scores(chosen[key], folders[key], out, name)
    _print_scores(chosen, scores)
    page = folders[task] / "report.html" if len(chosen) == 1 else out / f"{name}.html"
    report(list(folders.values()), out=page)
    _print_next_commands(chosen, folders)
    if sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        typer.launch(str(page))


def _scores(part: Part, folder: Path, out: Path, name: str) -> dict[str, float]:
    """Train unless finished, and evaluate."""
    from opabinia.cli.tables import print_scores
    from opabinia.runtime.signals import Stopped
    from opabinia.training.launch import evaluate
    from opabinia.training.sweep import read_results, release_memory, train_or_resume

    if read_results(folder) is not None:
        typer.echo(f"{folder} is finished: nothing to train")
    try:
        train_or_resume(part.recipe, part.overrides, out=out, name=name)
    except Stopped as stopped:
        typer.echo("stopped: the same command resumes", err=True)
        leave(stopped.exit_status)
    release_memory()
    scores = evaluate(folder)
    print_scores(str(folder), scores)
    return scores


def _print_scores(chosen: Mapping[DemoTask, Part], scores: Mapping[DemoTask, Mapping[str, float]]) -> None:
    """Print a table of the scores, one row per task."""
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "score", "value", "baseline")
    for key, part in chosen.items():
        table.add_row(key, part.score, f"{scores[key][part.score]:.4f}", part.baseline)
    Console(highlight=False).print(table)


def _print_next_commands(chosen: Mapping[DemoTask, Part], folders: Mapping[DemoTask, Path]) -> None:
    recipe, run = next((part.recipe, folders[key]) for key, part in chosen.items())
    print("next:")
    print(f"  {shlex.join(['opabinia', 'config', 'show', str(run), '--origin'])}")
    print(f"  opabinia train {recipe} optimizer.lr=0.001 --name slow")
    print(f"  {shlex.join(['tensorboard', '--logdir', os.path.commonpath(folders.values())])}")
