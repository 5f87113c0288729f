"""``opabinia predict``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors

Checkpoint = Annotated[str, typer.Option(help="best, last, or the path of a checkpoint.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto; as the run was trained if not given.")]
Nearest = Annotated[int, typer.Option(min=1, help="How many pictures of the gallery to tell.")]


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    pictures: Annotated[
        list[Path] | None, typer.Argument(metavar="PATH...", help="Pictures or films, and folders of them.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where all of it goes; RUN/predictions, or RUN/predictions/SET, if not given.")
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Tell which pictures in this folder are most like each.")
    ] = None,
    nearest: Nearest = 10,
    split: Annotated[
        str | None,
        typer.Option(metavar="SET", help="Of things or films: draw this set of the run's data with what is found."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="How many pictures of --split.")] = 60,
    score: Annotated[float, typer.Option(min=0, max=1, help="Score of the things that are drawn.")] = 0.5,
    explain: Annotated[
        bool, typer.Option("--explain", help="Draw on each picture where the prediction comes from (Grad-CAM).")
    ] = False,
    checkpoint: Checkpoint = "best",
    device: Device = None,
) -> None:
    """Tell what is on pictures: a table, predictions.jsonl and a sheet of them.

    opabinia predict runs/classification/digits/default picture.png folder/

    Of a run that learned from films: strips of their frames, and clips with what is said of them.

    opabinia predict runs/video/digits/default film.mp4 folder/

    With --gallery: what is like them. A sheet for each picture shows it with the nearest of the gallery; where names
    tell whose they are (0002_c1..., or a folder for each) right ones are framed in green, wrong ones in red, and the
    same identity on the same camera in grey.

    opabinia predict runs/reid/digits/default query/ --gallery gallery/ --explain

    With --split: pictures of the run's own data, what is there beside what was found, the worst first; strips of films,
    wrong ones framed in red, right ones in green.

    opabinia predict runs/detection/digits/default --split val
    """
    with report_errors():
        from opabinia.config import ConfigError, Problem
        from opabinia.inference import predict as telling

        folder = out or run / "predictions" / (split or "")
        if (split is None) == (not pictures):
            raise ConfigError(Problem("command line", "", "give pictures, or --split to take those of the run's data"))
        if split is not None:
            from opabinia.inference.compare import compare

            compare(run, split, folder, most=most, score=score, checkpoint=checkpoint, device=device)
            return
        assert pictures is not None
        if gallery is None:
            telling.predict(run, pictures, folder, explain=explain, score=score, checkpoint=checkpoint, device=device)
        else:
            telling.retrieve(
                *(run, pictures, gallery, folder),
                nearest=nearest, explain=explain, checkpoint=checkpoint, device=device,
            )  # fmt: skip
