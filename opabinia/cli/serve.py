"""``opabinia serve``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.options import Changes, Checkpoint, Classes, Device, Gallery, Tasks, WeightsOrFile, split_names
from opabinia.cli.weights import open_run


def serve(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|RECIPE|EXPORTED",
            show_default=False,
            help="A run folder, an exported model.onnx or model.xml, or with --weights FILE a recipe.",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8000,
    gallery: Gallery = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Refuse requests without the token in this file (401); default: OPABINIA_TOKEN, or no token.",
        ),
    ] = None,
    max_mb: Annotated[float, typer.Option(min=0.001, help="Largest request in megabytes.")] = 20,
    max_megapixels: Annotated[float, typer.Option(min=0.001, help="Largest image or video frame in megapixels.")] = 50,
    max_input_megapixels: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            show_default="4; 100 for videos",
            help="Largest input of the model after the transforms, in megapixels; smaller ones share a forward pass.",
        ),
    ] = None,
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
    """
    with report_errors():
        from opabinia.inference.serving.address import check_libraries, is_exported, open_socket, read_token

        check_libraries()
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
            run_server(model, listener, host=host, token=token, limits=limits, gallery=gallery, task=split_names(task))
