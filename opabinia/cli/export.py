"""``opabinia export``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Checkpoint, Classes, Overrides, RunOrRecipe, WeightsOrFile
from opabinia.cli.weights import open_run


def export(
    run: RunOrRecipe,
    overrides: Overrides = None,
    form: Annotated[
        Literal["onnx", "torch", "huggingface"],
        typer.Option("--format", help="ONNX, torch.export (.pt2), or a folder in the layout of the Hugging Face Hub."),
    ] = "onnx",
    out: Annotated[Path | None, typer.Option(help="Output path; default: RUN/export/model.onnx or the like.")] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest allowed difference from the outputs of the original.")
    ] = 1e-4,
    checkpoint: Checkpoint = "best",
    weights: WeightsOrFile = None,
    classes: Classes = None,
) -> None:
    """Export the model of a run, or of a recipe with weights from a file, and compare its outputs with the original.

    opabinia export runs/classification/digits/default

    opabinia export runs/detection/digits/default --format torch --out detector.pt2

    opabinia export runs/classification/digits/default --format huggingface --out my-digits/
    """
    with report_errors():
        folder, chosen = open_run(run, overrides, weights, classes)
        from opabinia.inference.export import export as write

        write(folder, out, overrides or [], form=form, tolerance=tolerance, checkpoint=checkpoint, weights=chosen)
