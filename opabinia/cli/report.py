"""``opabinia report``"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Checkpoint, Device, Weights
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
    weights: Weights = None,
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
            from opabinia.config import ConfigError
            from opabinia.inference.report_images import gather

            for run in runs:
                try:
                    gather(run, checkpoint=checkpoint, weights=weights, device=device)
                except Exception as error:  # the rest of the report needs no model
                    reason = error if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
                    typer.echo(f"no images of {run}: {reason}", err=True)
        typer.echo(f"the report is in {write_report(runs, out or default_path(runs))}")


def leave_report(run: Path) -> None:
    """Write the report of a run that has just ended. It never fails the run; an up-to-date report is kept."""
    from opabinia.visualization.report import default_path, write_report

    if launched_rank(os.environ):
        return
    try:
        path, results = default_path([run]), run / "results.json"
        if not (path.exists() and results.exists() and path.stat().st_mtime >= results.stat().st_mtime):
            path = write_report([run])
    except Exception as error:
        typer.echo(f"no report of {run}: {type(error).__name__}: {error}", err=True)
    else:
        typer.echo(f"the report is in {path}; opabinia report {run} adds images")
