"""``opabinia export``"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.options import (
    Checkpoint,
    Classes,
    Overrides,
    Reid,
    ReidTask,
    RunOrRecipe,
    Tasks,
    TrackedScore,
    WeightsOrFile,
    split_names,
)
from opabinia.cli.tracking import reid_model, resolve_words, split_options
from opabinia.cli.weights import open_run

if TYPE_CHECKING:
    from opabinia.training.trained_model import Weights


class Precision(StrEnum):
    """Reduced precisions of an ONNX or OpenVINO model."""

    FP16 = "fp16"
    INT8 = "int8"


Format = Annotated[
    Literal["onnx", "openvino", "torch", "executorch", "litert", "coreml", "huggingface"],
    typer.Option(
        "--format",
        help="ONNX, OpenVINO, torch.export (.pt2), for phones and small devices ExecuTorch (.pte), LiteRT (.tflite) or "
        "Core ML (.mlpackage), or a folder in the layout of the Hugging Face Hub.",
    ),
]
OUT = (
    "File (.onnx, .pt2, .pte, .tflite, .mlpackage) or folder (OpenVINO, Hugging Face) to write; default: "
    "RUN/export/model.onnx or the like, with --task A RUN/export/A-model.onnx."
)
Tolerance = Annotated[float, typer.Option(min=0, help="Largest allowed difference from the outputs of the original.")]
Evaluate = Annotated[
    bool,
    typer.Option("--evaluate", help="Evaluate what is exported on the first validation set; print a table."),
]
Precisions = Annotated[
    list[Precision] | None,
    typer.Option(help="Write the model in this precision, too, and evaluate it; repeatable."),
]
CalibrationImages = Annotated[
    int, typer.Option(min=1, help="Training images from which INT8 takes the ranges of activations.")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Layers that stay in FP32, such as 'head.*'; repeatable."),
]
Tracker = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Write a folder with a track.py that tracks without this library: detector, --reid RUN, and the tracker "
        "(bytetrack, botsort, ocsort, sort) with its options, tracker.KEY=VALUE.",
        show_default=False,
    ),
]
MaxDrop = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Largest allowed drop of the score, for which INT8 leaves sensitive layers in FP32. Default: 0.001, for "
        "INT8 0.01.",
        show_default=False,
    ),
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
    tolerance: Tolerance = 1e-4,
    evaluate: Evaluate = False,
    precision: Precisions = None,
    max_drop: MaxDrop = None,
    calibration_images: CalibrationImages = 128,
    exclude: Exclude = None,
    tracker: Tracker = None,
    reid: Reid = None,
    reid_task: ReidTask = None,
    score: TrackedScore = None,
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

    opabinia export runs/detection/digits/default --tracker botsort --reid runs/reid/digits/default
    """
    with report_errors():
        _check_push(form, push, license, public=public, yes=yes)
        words, overrides = split_options(overrides or [], tracker, reid, None, False, reid_task)
        measures = evaluate or precision or exclude or max_drop is not None
        _check_tracker(tracker, form, measures=bool(measures), score=score)
        folder, chosen, overrides = open_run(run, overrides, weights, classes)
        if tracker is not None:
            model = folder, overrides, checkpoint, chosen
            _export_tracker(model, task, tracker, words, (reid, reid_task), out, score=score, tolerance=tolerance)
            return
        from opabinia.inference.export import Measured
        from opabinia.inference.export import export as write

        precisions = list(dict.fromkeys(item.value for item in precision or []))
        measured = Measured(precisions, max_drop, calibration_images, exclude or []) if measures else None
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
            if yes or typer.confirm("Upload this?"):
                upload(path, destination)
                print(f"uploaded: {destination.url}; opabinia.load('hf:{push}')")
            else:
                print(f"nothing was uploaded; {path} stays")


def _export_tracker(
    model: tuple[Path, list[str], str, Weights | None],
    task: str,
    tracker: str,
    words: Sequence[str],
    reid: tuple[str | None, str | None],
    out: Path | None,
    *,
    score: float | None,
    tolerance: float,
) -> None:
    """Export a detector with a tracker.

    Args:
        model: run folder, overrides, checkpoint and weights of the detector.
        task: its task, if it is a multi-task run.
        tracker, words: the tracker and its options.
        reid: the run of the model of embeddings, and its task.
        out, score, tolerance: see :func:`opabinia.inference.export.tracker.export_tracker`.
    """
    from opabinia.training.run_folder import resolve
    from opabinia.training.tracked_tasks import detection_task

    tracking, embedder = resolve_words(model[0], tracker, words, model[1]), reid_model(*reid)
    name = detection_task(resolve(model[0], model[1]).config, task or None)
    from opabinia.inference.export.tracker import export_tracker
    from opabinia.inference.load import RunModel

    options = {} if score is None else {"score": score}
    export_tracker(RunModel(*model, task=name), tracking, embedder, out, tolerance=tolerance, **options)


def _check_tracker(tracker: str | None, form: str, *, measures: bool, score: float | None) -> None:
    """Check the options of a tracker before anything is computed."""
    if tracker is None and score is not None:
        raise option_error("--score", "is for trackers: add --tracker NAME")
    if tracker is not None and (form != "onnx" or measures):
        message = "trackers are exported as ONNX, and are not evaluated there: remove --tracker or this"
        raise option_error("--evaluate" if measures else "--format", message)


def _check_push(form: str, push: str | None, license: str, *, public: bool, yes: bool) -> None:
    """Check the options of a folder for the hub, and of its upload, before anything is computed."""
    if form != "huggingface" and (push or license):
        raise option_error("--push" if push else "--license", "it needs --format huggingface")
    if push is None and (public or yes):
        raise option_error("--public" if public else "--yes", "it belongs to --push: add it")
    if push and not yes and not sys.stdin.isatty():
        raise option_error("--push", "there is no terminal for the confirmation; --yes uploads without one")
