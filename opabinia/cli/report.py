"""``opabinia report``"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Checkpoint, Device
from opabinia.runtime.slurm import launched_rank


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Default: RUN/report.html, or report.html beside several runs."),
    ] = None,
    images: Annotated[
        bool,
        typer.Option(
            "--images/--no-images", " /--no-pictures", help="Make images of data and predictions that are missing."
        ),
    ] = True,
    checkpoint: Checkpoint = "best",
    device: Device = None,
) -> None:
    """Write an HTML report of runs: curves, scores, configs, and images with predictions.

    It is one file that needs no network. Images are made once for each checkpoint; without the data, or with
    --no-images, the report shows only what the run folders hold.

    opabinia report runs/classification/digits/default

    opabinia report runs/classification/digits/slow runs/classification/digits/fast --out both.html
    """
    with report_errors():
        from opabinia.visualization.report import check_run_folders, default_path, write_report

        check_run_folders(runs)
        if images:
            for run in runs:
                _gather(run, checkpoint, device)
        typer.echo(f"the report is in {write_report(runs, out or default_path(runs))}")


def _gather(run: Path, checkpoint: str, device: str | None) -> None:
    """Make the images of a run, or print why there are none: the rest of the report needs no model."""
    from opabinia.config import ConfigError
    from opabinia.inference.report_images import gather

    try:
        gather(run, checkpoint=checkpoint, device=device)
    except ConfigError as error:
        typer.echo(f"no images of {run}: {error}", err=True)
    except Exception as error:
        typer.echo(f"no images of {run}: {type(error).__name__}: {error}", err=True)


def leave_report(run: Path) -> None:
    """Write the report of a run that has just ended. It never fails the run; an up-to-date report is kept."""
    from opabinia.visualization.report import default_path, write_report

    if launched_rank(os.environ):
        return
    try:
        path = default_path([run])
        if not _is_newer(path, run / "results.json"):
            path = write_report([run])
    except Exception as error:
        typer.echo(f"no report of {run}: {type(error).__name__}: {error}", err=True)
    else:
        typer.echo(f"the report is in {path}; opabinia report {run} adds images")


def _is_newer(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.stat().st_mtime >= other.stat().st_mtime
