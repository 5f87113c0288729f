"""``opabinia report``"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.options import Checkpoint, Device, Weights
from opabinia.cli.weights import local_run
from opabinia.runtime.slurm import launched_rank


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders, or s3://... and the like.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Default: RUN/report.html, or report.html beside several runs."),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK=RUN", help="Show a task of a multi-task run beside this single-task run."),
    ] = None,
    images: Annotated[
        bool,
        typer.Option(
            "--images/--no-images", " /--no-pictures", help="Make images of data and predictions that are missing."
        ),
    ] = True,
    checkpoint: Checkpoint = "best",
    weights: Weights = None,
    device: Device = None,
) -> None:
    """Write an HTML report of runs: curves, scores, configs, and images with predictions.

    It is one file that needs no network. Images are made once for each checkpoint; without the data, or with
    --no-images, the report shows only what the run folders hold. The folder of a cross-validation stands for its runs.

    opabinia report runs/classification/digits/default

    opabinia report runs/classification/digits/slow runs/classification/digits/fast --out both.html

    opabinia report runs/classification/digits/default-folds

    opabinia report runs/multitask/digits/default --compare boxes=runs/detection/digits/default
    """
    with report_errors():
        from opabinia.config.paths import member_runs
        from opabinia.visualization.report import compared_runs, default_path, write_report

        folders = [local_run(run) for run in runs]
        members = [member for folder in folders for member in member_runs(folder)]
        singles = compared_runs(members, _by_task(compare or []))
        if images:
            from opabinia.config import ConfigError
            from opabinia.inference.load import RunModel
            from opabinia.inference.report_images import write_images

            for run in [*members, *singles.values()]:
                try:
                    write_images(RunModel(run, checkpoint=checkpoint, weights=weights, device=device))
                except Exception as error:  # the rest of the report needs no model
                    reason = error if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
                    typer.echo(f"no images of {run}: {reason}", err=True)
        if singles:
            print_comparison(folders, singles)
        typer.echo(f"the report is in {write_report(folders, out or default_path(folders), compare=singles)}")


def _by_task(words: Sequence[str]) -> dict[str, Path]:
    """Return the folders of ``TASK=RUN`` by task.

    Raises:
        ConfigError: a word is of another form.
    """
    pairs = [(word, *word.partition("=")[::2]) for word in words]
    for word, task, run in pairs:
        if not task or not run:
            raise option_error("--compare", f"{word!r} is not of the form TASK=RUN, such as boxes=runs/boxes")
    return {task: local_run(run) for _, task, run in pairs}


def print_comparison(runs: Sequence[Path], singles: Mapping[str, Path]) -> None:
    """Print the scores of multi-task runs minus those of single-task runs, and what both have cost."""
    from opabinia.cli.tables import print_cells
    from opabinia.visualization.report import comparison_rows

    for run in runs:
        print_cells((str(run), "multi-task", "single-task", "difference"), comparison_rows(run, singles))


def leave_report(run: Path) -> None:
    """Write the report of a run that has just ended. It never fails the run; an up-to-date report is kept."""
    from opabinia.visualization.report import compared_runs, default_path, write_report

    if launched_rank(os.environ):
        return
    try:
        path, results = default_path([run]), run / "results.json"
        if not (path.exists() and results.exists() and path.stat().st_mtime >= results.stat().st_mtime):
            path = write_report([run])
    except Exception as error:
        typer.echo(f"no report of {run}: {type(error).__name__}: {error}", err=True)
    else:
        if singles := compared_runs([run]):
            print_comparison([run], singles)
        typer.echo(f"the report is in {path}; opabinia report {run} adds images")
