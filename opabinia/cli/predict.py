"""``opabinia predict``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    pictures: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Pictures, and folders of pictures.")],
    out: Annotated[
        Path | None, typer.Option(help="Where predictions.jsonl and the sheet go; RUN/predictions if not given.")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="best, last, or the path of a checkpoint.")] = "best",
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, mps or auto; as the run was trained if not given.")
    ] = None,
) -> None:
    """Tell what is on pictures: a table, predictions.jsonl and a sheet of them.

    opabinia predict runs/classification/digits/default picture.png folder/
    """
    with report_errors():
        from opabinia.predict import predict as tell

        tell(run, pictures, out or run / "predictions", checkpoint=checkpoint, device=device)
