"""``opabinia predict``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.options import Checkpoint, Device, Gallery, Nearest, Rerank, Run, Weights


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
    rerank: Rerank = False,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="SET", help="Predict this validation set (auto: the first) and draw it with its ground truth."
        ),
    ] = None,
    max_images: Annotated[int, typer.Option("--max-images", "--most", min=1, help="Number of images of --split.")] = 60,
    score: Annotated[float, typer.Option(min=0, max=1, help="Lowest score of the detections that are drawn.")] = 0.5,
    explain: Annotated[bool, typer.Option("--explain", help="Overlay a Grad-CAM heat map on each image.")] = False,
    checkpoint: Checkpoint = "best",
    weights: Weights = None,
    device: Device = None,
) -> None:
    """Predict images or videos: a table, predictions.jsonl, and a sheet with the predictions drawn.

    opabinia predict runs/classification/digits/default picture.png folder/

    Videos are drawn as strips of frames, and as clips with the predicted class.

    With --gallery: image retrieval. A sheet for each query shows the nearest images of the gallery; where file names
    tell the identity (0002_c1..., or a folder for each), correct ones are framed in green, wrong ones in red, and the
    same identity on the same camera in gray.

    opabinia predict runs/reid/digits/default query/ --gallery gallery/ --explain

    With --split: images of a validation set, ground truth next to predictions, the worst first; videos as strips,
    wrong ones framed in red, correct ones in green.

    opabinia predict runs/detection/digits/default --split val
    """
    with report_errors():
        if (split is None) == (not paths):
            raise option_error("", "give images or videos, or --split for those of the run's data")
        if rerank and not gallery:
            raise option_error("--rerank", "it re-ranks the images of --gallery")
        from opabinia.config.paths import check_input_paths, check_run_folder

        check_run_folder(run)
        check_input_paths([*(paths or []), *([gallery] if gallery else [])])
        from opabinia.inference import predict as prediction

        folder = out or run / "predictions"
        if split is not None:
            from opabinia.inference.compare import compare
            from opabinia.inference.splits import resolve_split
            from opabinia.training.run_folder import resolve

            split = resolve_split(resolve(run), split)
            compare(
                *(run, split, out or folder / split),
                max_images=max_images, min_score=score, checkpoint=checkpoint, weights=weights, device=device,
            )  # fmt: skip
        elif gallery is None:
            prediction.predict(
                *(run, paths or [], folder),
                explain=explain, min_score=score, checkpoint=checkpoint, weights=weights, device=device,
            )  # fmt: skip
        else:
            prediction.retrieve(
                *(run, paths or [], gallery, folder),
                nearest=nearest, rerank=rerank, explain=explain, checkpoint=checkpoint, weights=weights, device=device,
            )  # fmt: skip
