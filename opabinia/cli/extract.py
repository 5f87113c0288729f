"""``opabinia extract``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.predict import Checkpoint, Device


def extract(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    split: Annotated[str, typer.Option(help="train, or the prefix of a validation set.")] = "val",
    layers: Annotated[
        str, typer.Option(metavar="A,B", help="Modules whose outputs to write; the embedding if not given.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="The folder to write; RUN/features/SPLIT if not given.")] = None,
    form: Annotated[
        Literal["npy", "parquet"], typer.Option("--format", help="A file for each column, or one table.")
    ] = "npy",
    checkpoint: Checkpoint = "best",
    device: Device = None,
) -> None:
    """Write features of a run's data, with labels and ids, as files that NumPy and vector databases read.

    opabinia extract runs/classification/digits/default --split train

    opabinia extract runs/classification/digits/default --layers backbone.model.layer3,embedding --format parquet
    """
    with report_errors():
        from opabinia.extract import extract as write

        names = [name.strip() for name in layers.split(",") if name.strip()]
        write(run, out, split=split, layers=names, form=form, checkpoint=checkpoint, device=device)
