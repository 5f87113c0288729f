"""``opabinia predict``"""

from __future__ import annotations

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
    Nearest,
    Rerank,
    RunOrRecipe,
    Tasks,
    WeightsOrFile,
    split_names,
)
from opabinia.cli.weights import open_run
from opabinia.runtime.addresses import is_live
from opabinia.runtime.local_copies import local_copy
from opabinia.runtime.storage import is_stored

Paths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH...",
        help="Images or videos, folders of them, also in s3://...; URLs of streams, cameras.",
        show_default=False,
    ),
]
Out = Annotated[Path | None, typer.Option(help="Output folder; default: RUN/predictions, or RUN/predictions/SET.")]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="SET", help="Predict this validation set (auto: the first) and draw it with its ground truth."
    ),
]
MaxImages = Annotated[int, typer.Option("--max-images", min=1, help="Number of images of --split.")]
Score = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Lowest score of the detections that are drawn.",
        show_default="thresholds of the run, else 0.5",
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Overlay a Grad-CAM heat map on each image.")]
Every = Annotated[
    str | None,
    typer.Option(
        metavar="SECONDS",
        help="Predict a window (with a model of images a frame) of each video at this interval.",
    ),
]
Window = Annotated[
    str | None, typer.Option(metavar="SECONDS", help="Length of the windows; default: of a clip, or --every.")
]
MaxFrames = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="With a model of images: frames of each video."),
]
Features = Annotated[
    bool, typer.Option("--features", help="With --every: write the windows' embeddings, features.npy.")
]
Bands = Annotated[
    str | None,
    typer.Option(
        metavar="B,B,B",
        help="Channels drawn as red, green and blue, or one as gray, from 1; of images with others than 1 or 3.",
    ),
]
Tile = Annotated[
    int | None,
    typer.Option(metavar="PIXELS", min=1, help="Detect objects in overlapping tiles of this side; for large images."),
]
Overlap = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Overlap of the tiles, as a share of their side; default: 0.2.")
]


def predict(
    run: RunOrRecipe,
    paths: Paths = None,
    out: Out = None,
    gallery: Gallery = None,
    nearest: Nearest = 10,
    rerank: Rerank = False,
    split: Split = None,
    max_images: MaxImages = 60,
    score: Score = None,
    explain: Explain = False,
    every: Every = None,
    window: Window = None,
    features: Features = False,
    max_frames: MaxFrames = None,
    bands: Bands = None,
    tile: Tile = None,
    overlap: Overlap = None,
    task: Tasks = "",
    checkpoint: Checkpoint = "best",
    weights: WeightsOrFile = None,
    classes: Classes = None,
    changes: Changes = None,
    device: Device = None,
) -> None:
    """Predict images or videos: a table, predictions.jsonl, and the predictions drawn, on sheets, strips and videos.

    opabinia predict runs/classification/digits/default picture.png folder/

    Models of images take videos, URLs and cameras frame by frame.

    opabinia predict runs/detection/mine/default rtsp://camera.local/stream --every 0.2s --max-frames 1000

    With --gallery: image retrieval. A sheet for each query shows the nearest images; where file names have identities
    (0002_c1..., or a folder for each), correct ones are framed in green, wrong ones in red.

    opabinia predict runs/reid/digits/default query/ --gallery gallery/ --explain

    With --weights FILE: the model of a recipe, without training.

    opabinia predict detection/coco/fcos_r50_1x photos/ --weights fcos.pth --classes coco.txt

    With --every: long videos, a line with start and end for each window.

    opabinia predict runs/video/digits/default long.mp4 --every 1s --window 4s

    With --tile: objects in large images. Each tile is a forward pass; duplicates at their borders are merged.

    opabinia predict runs/detection/mine/default aerial.png --tile 1024 --overlap 0.2

    With --split: images or videos of a validation set, ground truth next to predictions, the worst first.

    opabinia predict runs/detection/digits/default --split val
    """
    with report_errors():
        seconds = _window_seconds(every, window, features, excluded=bool(gallery or explain or split))
        inputs, gallery = _check_inputs(paths or [], split, task, gallery, rerank)
        folder, chosen, overrides = open_run(run, changes, weights, classes)
        from opabinia.inference import compare, windows
        from opabinia.inference import predict as prediction
        from opabinia.inference.load import RunModel
        from opabinia.runtime.log import logging_to

        model = RunModel(folder, _overrides(overrides, tile, overlap, task, gallery), checkpoint, chosen, device)
        if split is not None:
            return compare.compare(model, split, out, max_images=max_images, min_score=0.5 if score is None else score)
        with logging_to(None):
            predictor = model.load(split_names(task))
        out, score = out or folder / "predictions", prediction.use_thresholds(predictor, folder, checkpoint, score)
        shown: dict[str, Any] = {"max_frames": max_frames, "min_score": score}
        if every is not None:
            return windows.predict_windows(predictor, inputs, out, features=features, **seconds, **shown)
        if gallery is None:
            return prediction.predict(predictor, inputs, out, explain=explain, bands=_bands(bands), **shown)
        prediction.retrieve(predictor, inputs, gallery, out, nearest=nearest, rerank=rerank, explain=explain)


def _check_inputs(
    paths: list[str], split: str | None, task: str, gallery: Path | None, rerank: bool
) -> tuple[list[str], Path | None]:
    """Return ``paths`` and ``gallery``, of which the files and folders exist; for remote ones their local copies."""
    from opabinia.config.paths import check_input_paths

    if (split is None) == (not paths):
        raise option_error("", "give images or videos, or --split for those of the run's data")
    if split and task:
        raise option_error("--task", "the samples of --split are for one task already")
    if rerank and not gallery:
        raise option_error("--rerank", "it re-ranks the images of --gallery")
    paths = [local_copy(path) if is_stored(path) else path for path in paths]
    gallery = Path(local_copy(gallery)) if gallery and is_stored(gallery) else gallery
    check_input_paths([*(Path(path) for path in paths if not is_live(path)), *([gallery] if gallery else [])])
    return paths, gallery


def _bands(text: str | None) -> list[int] | None:
    """Return the numbers of ``--bands``."""
    if text is None:
        return None
    numbers = [int(number) if number.strip().isdigit() else 0 for number in text.split(",")]
    if len(numbers) not in (1, 3) or min(numbers) < 1:
        raise option_error("--bands", f"{text!r} is not one or three numbers of channels from 1, such as 3,2,1")
    return numbers


def _overrides(
    changes: list[str], tile: int | None, overlap: float | None, task: str, gallery: Path | None
) -> list[str]:
    """Return ``changes`` to the config with those of ``--tile`` and ``--overlap``; ``task`` names the detector of a
    multi-task run."""
    section = f"task.tasks.{task}.task.tiles" if task else "task.tiles"
    given = {"--tile": tile, "--overlap": overlap}
    option = next((option for option, value in given.items() if value is not None), None)
    if option and gallery:
        raise option_error(option, "tiles are for object detection, not for --gallery")
    if option and "," in task:
        raise option_error(option, f"tiles are for the detector: give it alone as --task, not {task}")
    if tile is not None:
        tiles = [f"{section}={{size: {tile}{'' if overlap is None else f', overlap: {overlap}'}}}"]
    else:
        tiles = [] if overlap is None else [f"{section}.overlap={overlap}"]
    return [*changes, *tiles]


def _window_seconds(every: str | None, window: str | None, features: bool, *, excluded: bool) -> dict[str, Any]:
    """Return the values of ``--every`` and ``--window`` in seconds."""
    if every is None and (window is not None or features):
        raise option_error("--window" if window else "--features", "it belongs to --every: add it")
    if every is not None and excluded:
        raise option_error("--every", "windows of videos have no gallery, heat maps or ground truth")
    given = {"every": every, "window": window}
    return {name: _seconds(f"--{name}", text) for name, text in given.items() if text}


def _seconds(option: str, text: str) -> float:
    try:
        seconds = float(text.strip().removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise option_error(option, f"{text} is not a number of seconds above 0, such as 1s or 0.5")
    return seconds
