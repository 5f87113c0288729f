"""``opabinia report``"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.predict import Checkpoint, Device
from opabinia.runtime.slurm import told_rank


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="RUN/report.html, or report.html beside several, if not given."),
    ] = None,
    pictures: Annotated[
        bool, typer.Option(help="Make pictures of the data and of what the model makes of it, where they are missing.")
    ] = True,
    checkpoint: Checkpoint = "best",
    device: Device = None,
) -> None:
    """Write a report of runs: curves, scores, configs, and pictures of what the models do; one HTML file.

    The file needs no network and nothing beside it. Pictures are made once for each checkpoint; without the data, or
    with --no-pictures, the report is of what the run folders hold.

    opabinia report runs/classification/digits/default

    opabinia report runs/classification/digits/slow runs/classification/digits/fast --out both.html
    """
    with report_errors():
        from opabinia.visualization.report import check_run_folders, default_place, write_report

        check_run_folders(runs)
        if pictures:
            for run in runs:
                _gather(run, checkpoint, device)
        typer.echo(f"the report is in {write_report(runs, out or default_place(runs))}")


def _gather(run: Path, checkpoint: str, device: str | None) -> None:
    """Pictures, or a word of why there are none: the rest of the report needs neither model nor memory for it."""
    from opabinia.config import ConfigError
    from opabinia.inference.report_images import gather

    try:
        gather(run, checkpoint=checkpoint, device=device)
    except ConfigError as error:
        typer.echo(f"no pictures of {run}: {error}", err=True)
    except Exception as error:
        typer.echo(f"no pictures of {run}: {type(error).__name__}: {error}", err=True)


def leave_report(run: Path) -> None:
    """The report of a run that has just ended, of what its folder holds. It never fails the run, and one that was
    finished before and has its report is left alone."""
    from opabinia.visualization.report import default_place, write_report

    if told_rank(os.environ):
        return
    try:
        path = default_place([run])
        if not _is_newer(path, run / "results.json"):
            path = write_report([run])
    except Exception as error:
        typer.echo(f"no report of {run}: {type(error).__name__}: {error}", err=True)
    else:
        typer.echo(f"the report is in {path}; opabinia report {run} adds pictures")


def _is_newer(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.stat().st_mtime >= other.stat().st_mtime
