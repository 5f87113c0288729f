"""``opabinia export``"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.options import Checkpoint, Classes, Overrides, RunOrRecipe, Tasks, WeightsOrFile, split_names
from opabinia.cli.weights import open_run


class Precision(StrEnum):
    """Reduced precisions of an ONNX or OpenVINO model."""

    FP16 = "fp16"
    INT8 = "int8"


Format = Annotated[
    Literal["onnx", "openvino", "torch", "huggingface"],
    typer.Option(
        "--format",
        help="ONNX, OpenVINO, torch.export (.pt2), or a folder in the layout of the Hugging Face Hub.",
    ),
]
OUT = (
    "File (.onnx, .pt2) or folder (OpenVINO, Hugging Face) to write; default: RUN/export/model.onnx or the like, with "
    "--task A RUN/export/A-model.onnx."
)
Evaluate = Annotated[
    bool,
    typer.Option("--evaluate", help="Evaluate what is exported on the first validation set; print a table."),
]
MaxDrop = Annotated[
    float | None,
    typer.Option(min=0, help="Largest allowed drop of the score; default: 0.001, for INT8 0.02.", show_default=False),
]
Push = Annotated[
    str | None,
    typer.Option(metavar="OWNER/NAME", help="With --format huggingface: upload the folder, after confirmation."),
]
Public = Annotated[bool, typer.Option("--public", help="Everybody may read what is uploaded.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Upload without confirmation, for scripts.")]
License = Annotated[
    str, typer.Option(metavar="NAME", help="License in the model card, such as apache-2.0.", show_default=False)
]


def export(
    run: RunOrRecipe,
    overrides: Overrides = None,
    form: Format = "onnx",
    out: Annotated[Path | None, typer.Option(help=OUT)] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest allowed difference from the outputs of the original.")
    ] = 1e-4,
    evaluate: Evaluate = False,
    precision: Annotated[
        list[Precision] | None,
        typer.Option(help="Write the model in this precision, too, and evaluate it; repeatable."),
    ] = None,
    max_drop: MaxDrop = None,
    calibration_images: Annotated[
        int, typer.Option(min=1, help="Training images from which INT8 takes the ranges of activations.")
    ] = 128,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Layers that stay in FP32, such as 'head.*'; repeatable."),
    ] = None,
    push: Push = None,
    public: Public = False,
    yes: Yes = False,
    license: License = "",
    task: Tasks = "",
    checkpoint: Checkpoint = "best",
    weights: WeightsOrFile = None,
    classes: Classes = None,
) -> None:
    """Export the model of a run, or of a recipe with weights from a file, and compare its outputs with the original.

    opabinia export runs/classification/digits/default

    opabinia export runs/detection/digits/default --format torch --out detector.pt2

    opabinia export runs/classification/digits/default --evaluate --precision fp16 --precision int8

    opabinia export runs/classification/digits/default --format huggingface --out my-digits/

    opabinia export runs/classification/digits/default --format huggingface --push OWNER/NAME
    """
    with report_errors():
        if form != "huggingface" and (push or license):
            raise option_error("--push" if push else "--license", "it needs --format huggingface")
        _check_push(push, public=public, yes=yes)
        folder, chosen, overrides = open_run(run, overrides, weights, classes)
        from opabinia.inference.export import Measured
        from opabinia.inference.export import export as write

        measured = None
        if evaluate or precision or exclude or max_drop is not None:
            precisions = list(dict.fromkeys(item.value for item in precision or []))
            measured = Measured(precisions, max_drop, calibration_images, exclude or [])
        if push:
            from opabinia.inference.export.hub_upload import describe_upload, find_destination, upload

            destination = find_destination(push, public=public)
        path = write(
            *(folder, out, overrides),
            form=form, tolerance=tolerance, checkpoint=checkpoint, weights=chosen, measured=measured, license=license,
            task=split_names(task),
        )  # fmt: skip
        if push:
            print(*describe_upload(path, destination), sep="\n")
            if not yes and not typer.confirm("Upload this?"):
                print(f"nothing was uploaded; {path} stays")
                return
            upload(path, destination)
            print(f"uploaded: {destination.url}; opabinia.load('hf:{push}')")


def _check_push(push: str | None, *, public: bool, yes: bool) -> None:
    """Check the options of an upload before anything is computed."""
    if push is None and (public or yes):
        raise option_error("--public" if public else "--yes", "it belongs to --push: add it")
    if push and not yes and not sys.stdin.isatty():
        raise option_error("--push", "there is no terminal for the confirmation; --yes uploads without one")
