"""``opabinia export``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Overrides
from opabinia.cli.predict import Checkpoint


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    overrides: Overrides = None,
    form: Annotated[
        Literal["onnx", "torch", "huggingface"],
        typer.Option("--format", help="ONNX, torch.export's .pt2, or a folder as the Hugging Face hub has them."),
    ] = "onnx",
    out: Annotated[
        Path | None, typer.Option(help="What to write; RUN/export/model.onnx, and so on, if not given.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference from the original that is allowed.")
    ] = 1e-4,
    checkpoint: Checkpoint = "best",
) -> None:
    """Write a run's model for use elsewhere, checked against the original's numbers.

    opabinia export runs/classification/digits/default

    opabinia export runs/detection/digits/default --format torch --out detector.pt2

    opabinia export runs/classification/digits/default --format huggingface --out my-digits/
    """
    with report_errors():
        from opabinia.inference.export import export as write

        write(run, out, overrides or [], form=form, tolerance=tolerance, checkpoint=checkpoint)
