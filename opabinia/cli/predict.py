"""``opabinia predict``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Checkpoint, Device, Gallery, Nearest, Run


def predict(
    run: Run,
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="PATH...", help="Images or videos, and folders of them.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder; default: RUN/predictions, or RUN/predictions/SET.")
    ] = None,
    gallery: Gallery = None,
    nearest: Nearest = 10,
    split: Annotated[
        str | None,
        typer.Option(metavar="SET", help="Predict this validation set and draw it with its ground truth."),
    ] = None,
    max_images: Annotated[int, typer.Option("--max-images", "--most", min=1, help="Number of images of --split.")] = 60,
    score: Annotated[float, typer.Option(min=0, max=1, help="Lowest score of the detections that are drawn.")] = 0.5,
    explain: Annotated[bool, typer.Option("--explain", help="Overlay a Grad-CAM heat map on each image.")] = False,
    checkpoint: Checkpoint = "best",
    device: Device = None,
) -> None:
    """Predict images or videos: a table, predictions.jsonl, and a sheet with the predictions drawn.

    opabinia predict runs/classification/digits/default picture.png folder/

    Videos are drawn as strips of frames, and as clips with the predicted class.

    opabinia predict runs/video/digits/default video.mp4 folder/

    With --gallery: image retrieval. A sheet for each query shows the nearest images of the gallery; where file names
    tell the identity (0002_c1..., or a folder for each), correct ones are framed in green, wrong ones in red, and the
    same identity on the same camera in gray.

    opabinia predict runs/reid/digits/default query/ --gallery gallery/ --explain

    With --split: images of a validation set, ground truth next to predictions, the worst first; videos as strips,
    wrong ones framed in red, correct ones in green.

    opabinia predict runs/detection/digits/default --split val
    """
    with report_errors():
        from opabinia.config import ConfigError, Problem
        from opabinia.inference import predict as prediction

        folder = out or run / "predictions" / (split or "")
        if (split is None) == (not paths):
            raise ConfigError(
                Problem("command line", "", "give images or videos, or --split for those of the run's data")
            )
        if split is not None:
            from opabinia.inference.compare import compare

            compare(run, split, folder, max_images=max_images, min_score=score, checkpoint=checkpoint, device=device)
            return
        assert paths is not None
        if gallery is None:
            prediction.predict(
                run, paths, folder, explain=explain, min_score=score, checkpoint=checkpoint, device=device
            )
        else:
            prediction.retrieve(
                *(run, paths, gallery, folder),
                nearest=nearest, explain=explain, checkpoint=checkpoint, device=device,
            )  # fmt: skip
