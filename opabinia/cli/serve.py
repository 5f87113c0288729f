"""``opabinia serve``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.predict import Checkpoint, Device


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 lets everybody in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    gallery: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Tell which pictures in this folder are most like each.")
    ] = None,
    max_mb: Annotated[float, typer.Option(min=0.001, help="Of a request, in megabytes.")] = 20,
    max_megapixels: Annotated[float, typer.Option(min=0.001, help="Of a picture, or of a film's frame.")] = 50,
    max_waiting: Annotated[int, typer.Option(min=0, help="Requests that wait; more are turned away.")] = 16,
    checkpoint: Checkpoint = "best",
    device: Device = None,
) -> None:
    """Answer HTTP requests: pictures in, JSON out; and a page to drop pictures on. On this machine alone.

    opabinia serve runs/classification/digits/default

    curl -F file=@three.png http://127.0.0.1:8000/predict

    opabinia serve runs/reid/digits/default --gallery gallery/ --port 8080
    """
    with report_errors():
        from opabinia.inference.serving.address import listening, refuse_missing_libraries

        refuse_missing_libraries()
        with listening(host, port) as door:
            from opabinia.inference.serving.limits import Limits
            from opabinia.inference.serving.server import serve as answer

            limits = Limits(round(max_mb * 1e6), round(max_megapixels * 1e6), max_waiting)
            answer(run, door, host=host, limits=limits, gallery=gallery, checkpoint=checkpoint, device=device)
