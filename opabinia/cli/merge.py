"""``opabinia merge``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors


def merge(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(help="The file to write, such as model.safetensors.")],
    checkpoint: Annotated[str, typer.Option(help="best, last, or the path of a checkpoint.")] = "best",
    weights: Annotated[str, typer.Option(help="model, or ema, their average.")] = "model",
) -> None:
    """Write the weights of a checkpoint, which may lie in many files, to one safetensors file.

    opabinia merge runs/classification/digits/default --out digits.safetensors
    """
    with report_errors():
        from opabinia.training.run_folder import merge as write

        write(run, out, checkpoint=checkpoint, weights=weights)
        print(out)
