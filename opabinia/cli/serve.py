"""``opabinia serve``"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.options import (
    Changes,
    Checkpoint,
    Classes,
    Device,
    Gallery,
    Reid,
    ReidTask,
    Tasks,
    TrackerWords,
    WeightsOrFile,
    split_names,
)
from opabinia.cli.tracking import reid_model, resolve_words, split_options
from opabinia.cli.weights import open_run

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN|RECIPE|EXPORTED",
        show_default=False,
        help="A run folder, an exported model (.onnx, .xml, .pte, .tflite), or with --weights FILE a recipe.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Refuse requests without the token in this file (401); default: OPABINIA_TOKEN, or no token.",
    ),
]
MaxInputMegapixels = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        show_default="4; 100 for videos",
        help="Largest input of the model after the transforms, in megapixels; smaller ones share a forward pass.",
    ),
]
Tracker = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Also track the objects in streams of frames (POST /track/NAME): bytetrack, botsort, ocsort, sort ...",
        show_default=False,
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="FPS", min=1e-3, show_default="30", help="Frames per second of streams whose frames have no time."
    ),
]
Score = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        show_default="thresholds of the run; with --tracker 0.1",
        help="Lowest score of predictions; with --tracker of the detections that are tracked.",
    ),
]
MaxStreams = Annotated[
    int | None, typer.Option(min=1, show_default="64", help="Streams at a time; more are rejected (429).")
]
MaxIdle = Annotated[
    float | None,
    typer.Option(min=0.001, show_default="300", help="Seconds without a frame after which a stream is forgotten."),
]


def serve(
    run: Run,
    words: TrackerWords = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8000,
    gallery: Gallery = None,
    tracker: Tracker = None,
    reid: Reid = None,
    reid_task: ReidTask = None,
    score: Score = None,
    rate: Rate = None,
    max_streams: MaxStreams = None,
    max_idle: MaxIdle = None,
    token_file: TokenFile = None,
    max_mb: Annotated[float, typer.Option(min=0.001, help="Largest request in megabytes.")] = 20,
    max_megapixels: Annotated[float, typer.Option(min=0.001, help="Largest image or video frame in megapixels.")] = 50,
    max_input_megapixels: MaxInputMegapixels = None,
    max_waiting: Annotated[int, typer.Option(min=0, help="Requests in the queue; more are rejected (503).")] = 16,
    task: Tasks = "",
    checkpoint: Checkpoint = "best",
    weights: WeightsOrFile = None,
    classes: Classes = None,
    changes: Changes = None,
    device: Device = None,
) -> None:
    """Serve predictions over HTTP: images or videos in, JSON out, and a page for dropping images.

    opabinia serve runs/classification/digits/default

    curl -F file=@three.png http://127.0.0.1:8000/predict

    opabinia serve runs/reid/digits/default --gallery gallery/ --port 8080

    opabinia serve runs/classification/digits/default/export/model.onnx

    opabinia serve runs/detection/digits/default --tracker bytetrack tracker.keep_lost=2

    curl --data-binary @frame-1.jpg 'http://127.0.0.1:8000/track/door?time=0.04'
    """
    with report_errors():
        from opabinia.inference.serving.address import check_libraries, is_exported, open_socket, read_token

        check_libraries()
        limits_of_streams = _check_options(
            *(run, words or [], tracker, reid, reid_task, gallery),
            score=score if tracker else None, rate=rate, max_streams=max_streams, max_idle=max_idle,
        )  # fmt: skip
        token = read_token(token_file)
        exported = is_exported(Path(run))
        if exported and (checkpoint != "best" or weights or classes or changes or device or task):
            raise option_error("", f"{run} is an exported model, with its own weights, classes and transforms")
        with open_socket(host, port) as listener:
            opened = (Path(run), None, list[str]()) if exported else open_run(run, changes, weights, classes)
            folder, chosen, overrides = opened
            from opabinia.inference.load import RunModel
            from opabinia.inference.serving.limits import Limits
            from opabinia.inference.serving.server import serve as run_server

            input_pixels = round(max_input_megapixels * 1e6) if max_input_megapixels else None
            limits = Limits(round(max_mb * 1e6), round(max_megapixels * 1e6), max_waiting, input_pixels)
            model = RunModel(folder, overrides, checkpoint, chosen, device)
            streams, names = None, split_names(task)
            if tracker is not None:
                from opabinia.inference.serving.streams import StreamOptions
                from opabinia.training.run_folder import resolve
                from opabinia.training.tracked_tasks import detection_task

                tracking = resolve_words(folder, tracker, words or [], overrides)
                streams = StreamOptions(tracking, reid_model(reid, reid_task, device), **limits_of_streams)
                detector = detection_task(resolve(folder, overrides).config, task or None)
                names = [detector] if detector else []
            run_server(
                *(model, listener), host=host, token=token, limits=limits, gallery=gallery, task=names,
                streams=streams, min_score=None if tracker else score,
            )  # fmt: skip


def _check_options(
    run: str,
    words: Sequence[str],
    tracker: str | None,
    reid: str | None,
    reid_task: str | None,
    gallery: Path | None,
    **options: Any,
) -> dict[str, Any]:
    """Check that options fit together, and return the limits of streams that are given, by name."""
    from opabinia.inference.serving.address import is_exported

    _, others = split_options(words, tracker, reid, None, False, reid_task)
    if others:
        raise option_error(others[0], "changes to the config of the run are --set KEY=VALUE")
    given = {name: value for name, value in options.items() if value is not None}
    if tracker is None and given:
        raise option_error(f"--{next(iter(given))}".replace("_", "-"), "is for streams: add --tracker NAME")
    if tracker is not None and gallery is not None:
        raise option_error("--gallery", "is for images, not for streams: remove --tracker or this")
    if tracker is not None and is_exported(Path(run)):
        raise option_error("--tracker", f"needs the folder of a run; {run} is an exported model")
    return given
