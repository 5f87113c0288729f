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

DemoTask = StrEnum(
    "DemoTask", ["all", "classification", "reid", "selfsup", "video", "detection", "segmentation", "tracking"]
)
"""Tasks of the demo."""


@dataclass(frozen=True)
class Part:
    """One task of the demo.

    Attributes:
        recipe: what is trained.
        short: overrides for all tasks within five minutes on two CPU cores; one task alone trains as its recipe says.
        question: that the model learns to answer.
        score: name of its metric.
        baseline: the same metric without training.
    """

    recipe: str
    short: tuple[str, ...]
    question: str
    score: str
    baseline: str


PARTS: dict[str, Part] = {
    DemoTask.selfsup: Part(
        "selfsup/digits_vicreg",
        ("train.length=5ep", "evaluate.every=5ep"),
        "which images are similar, learned without labels?",
        "val/knn_top1",
        "pixels: 0.578",
    ),
    DemoTask.detection: Part(
        "detection/digits",
        ("train.length=3ep", "evaluate.every=3ep", "task.detector.num_convs=2"),
        "where are the digits, and which are they?",
        "val/AP",
        "nothing: 0",
    ),
    DemoTask.segmentation: Part(
        "segmentation/digits",
        ("train.length=4ep", "evaluate.every=4ep"),
        "which pixels belong to which digit?",
        "val/mIoU",
        "nothing: 0",
    ),
    DemoTask.reid: Part(
        "reid/digits",
        ("evaluate.every=14ep",),
        "which images show the same one of 797 digits?",
        "val/mAP",
        "pixels: 0.008",
    ),
    DemoTask.video: Part(
        "video/digits",
        ("train.length=2ep", "evaluate.every=2ep"),
        "which way does it move?",
        "val/top1",
        "a single frame: 0.140",
    ),
    DemoTask.classification: Part("classification/digits", (), "which digit is it?", "val/top1", "guessing: 0.100"),
}
"""The longest first, so that the last ones end together."""

TRACKING: dict[str, Part] = {
    "detector": Part(
        "detection/digit_tracks",
        ("train.length=1.5ep", "evaluate.every=1.5ep"),
        "where are the digits?",
        "val/AP",
        "nothing: 0",
    ),
    "re-ID": Part("reid/digit_tracks", (), "which crops show the same digit?", "val/mAP", "pixels: 0.696"),
}
"""The two models of ``opabinia demo tracking``."""


def demo(
    task: Annotated[DemoTask, typer.Argument(help="The task.")] = DemoTask.all,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    name: Annotated[str, typer.Option(help="Name of the runs; another name trains again.")] = "demo",
) -> None:
    """Train all tasks on the embedded handwritten digits, evaluate them, and write a report.

    All tasks are shortened to less than five minutes on two CPU cores and run side by side, one per core (runs
    NAME-short); one task alone trains as long as its recipe says. ``tracking`` trains a detector and a model of
    re-identification, and compares tracks by motion alone with those by motion and appearance. After Ctrl-C the same
    command resumes; finished runs are not trained again.
    """
    with report_errors():
        typer.echo("Ctrl-C saves a checkpoint; the same command resumes")
        parts = TRACKING if task is DemoTask.tracking else PARTS
        if task is DemoTask.all:
            folders, status = _train_all(parts, out, f"{name}-short")
            page = out / f"{name}.html"
        elif task is DemoTask.tracking:
            folders, status = _train_all(parts, out, name)
            page = out / f"{name}-tracking.html"
        else:
            folders, status = _train_one(task, out, name), 0
            page = folders[task] / "report.html"
        if not folders:
            leave(status)
        _print_scores(parts, folders)
        if task is DemoTask.tracking and not status:
            _track(folders["detector"], folders["re-ID"])
        typer.echo("drawing predictions for the report", err=True)
        report([str(folder) for folder in folders.values()], out=page)
    key, run = list(folders.items())[-1]
    print("next:")
    print(f"  {shlex.join(['opabinia', 'config', 'show', str(run), '--origin'])}")
    print(f"  opabinia train {parts[key].recipe} optimizer.lr=0.001 --name slow")
    print(f"  {shlex.join(['tensorboard', '--logdir', os.path.commonpath(folders.values())])}")
    if sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        typer.launch(str(page))
    raise SystemExit(status)


def _train_one(task: DemoTask, out: Path, name: str) -> dict[str, Path]:
    """Train a task as its recipe says, unless it is finished; evaluate it; return the run folder."""
    from opabinia.cli.tables import print_scores
    from opabinia.runtime.signals import Stopped
    from opabinia.training.launch import evaluate, run_folder_of
    from opabinia.training.sweep.runs import check_same_config, read_results, release_memory, train_or_resume

    part = PARTS[task]
    folder = run_folder_of(part.recipe, out, name)
    check_same_config(folder, part.recipe, ())
    typer.secho(f"\n{task}: {part.question}", bold=True)
    if read_results(folder) is not None:
        typer.echo(f"{folder} is finished: nothing to train")
    try:
        train_or_resume(part.recipe, (), out=out, name=name)
    except Stopped as stopped:
        typer.echo("stopped: the same command resumes", err=True)
        leave(stopped.exit_status)
    release_memory()
    print_scores(str(folder), evaluate(folder))
    return {task: folder}


def _track(detector: Path, reid: Path) -> None:
    """Print the scores of tracks: of ground-truth boxes, by motion alone, and with appearance."""
    from opabinia.cli.tracking import evaluate_tracks

    print()
    options = ["tracker.min_appearance_iou=0"]  # digits that wait behind an occluder reappear elsewhere
    evaluate_tracks((detector, (), "best", None), ((), None, None), "botsort", options, str(reid), as_json=False)


def _train_all(parts: Mapping[str, Part], out: Path, name: str) -> tuple[dict[str, Path], int]:
    """Train the short versions of all parts, one process per core, unless they are finished.

    Returns:
        The folders of finished runs, and the exit status: 1 if a run has failed.
    """
    from opabinia.cli.side_by_side import TrainingProcess, train_side_by_side
    from opabinia.config import compose
    from opabinia.config.paths import check_run_name
    from opabinia.runtime.durations import Duration
    from opabinia.runtime.resources import cores
    from opabinia.training.sweep.runs import check_same_config

    check_run_name(name)
    runs = {}
    for task, part in parts.items():
        folder, overrides = out / part.recipe / name, [*part.short, "data.num_workers=0"]
        check_same_config(folder, part.recipe, overrides)
        length = Duration.parse(str(compose(part.recipe, overrides).root.plain()["train"]["length"]))
        words = [part.recipe, *overrides, "--name", name, "--out", str(out)]
        runs[task] = TrainingProcess(task, part.question, folder, length, part.score, words)
    status = train_side_by_side(list(runs.values()), cores())
    if status:
        typer.echo("stopped: the same command resumes", err=True)
        leave(status)
    failed = [run for run in runs.values() if run.status]
    for run in failed:
        typer.echo(f"\n{run.folder} {run.state}:\n{run.stderr}", err=True)
    return {task: run.folder for task, run in runs.items() if not run.status}, int(bool(failed))


def _print_scores(parts: Mapping[str, Part], folders: Mapping[str, Path]) -> None:
    """Print a table with the score of each part after its last step."""
    from opabinia.cli.tables import print_cells
    from opabinia.training.sweep.runs import read_results

    rows = []
    for task, folder in folders.items():
        part, results = parts[task], read_results(folder) or {}
        rows.append([task, part.score, f"{results[part.score]:.4f}", part.baseline])
    print_cells(["task", "score", "value", "baseline"], rows)
