"""``opabinia merge``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Checkpoint, Run
from opabinia.cli.weights import local_run


def merge(
    run: Run,
    out: Annotated[Path, typer.Option(help="The file to write, such as model.safetensors.")],
    checkpoint: Checkpoint = "best",
    weights: Annotated[str, typer.Option(help="raw, or ema for their moving average.")] = "raw",
) -> None:
    """Write the weights of a checkpoint, sharded or not, to one safetensors file.

    opabinia merge runs/classification/digits/default --out digits.safetensors
    """
    with report_errors():
        from opabinia.training.run_folder import merge as write

        write(local_run(run), out, checkpoint=checkpoint, weights=weights)
        print(out)
