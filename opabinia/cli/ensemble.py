"""``opabinia ensemble``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.weights import local_run


def ensemble(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN...", help="Run folders, or s3://... and the like.")],
    out: Annotated[Path, typer.Option(help="The folder to write; commands take it like a run folder.")],
) -> None:
    """Make an ensemble of several runs of a task: a folder for predict, eval and serve, with links to the runs.

    Probabilities of classes and pixels are averaged, detections are fused (weighted boxes fusion), embeddings are
    joined. The folds of a cross-validation are an ensemble already.

    opabinia ensemble runs/classification/digits/a-seed0 runs/classification/digits/a-seed1 --out runs/seeds
    """
    with report_errors():
        if len(runs) < 2:
            raise option_error("RUN", "an ensemble has two runs or more")
        if out.exists():
            raise option_error("--out", f"{out} exists; give another name")
        from opabinia.training.trained_model import write_ensemble

        write_ensemble([local_run(run) for run in runs], out)
        print(f"{out}: ensemble of {len(runs)} runs; next: opabinia eval {out}")
