"""``opabinia map``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.predict import Checkpoint, Device


def draw(
    where: Annotated[
        Path, typer.Argument(metavar="FEATURES", help="A folder that extract wrote of a set; or a run folder.")
    ],
    split: Annotated[str, typer.Option(help="Of a run: train, or the prefix of a validation set.")] = "val",
    method: Annotated[
        Literal["pca", "tsne", "umap"], typer.Option(help="Principal components, t-SNE or UMAP (where installed).")
    ] = "pca",
    column: Annotated[
        str, typer.Option(help="The array that is drawn: features, or the name of a layer.")
    ] = "features",
    most: Annotated[int, typer.Option(min=3, help="How many samples, taken at even distances.")] = 5000,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="The picture; beside the features, or in RUN/map/SPLIT, if not given."),
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = None,
) -> None:
    """Draw features of a data set as a map, coloured by class, and some samples with their nearest neighbours.

    opabinia map runs/selfsup/digits_simclr/default --method tsne

    opabinia map runs/classification/digits/default/features/val --out map.png
    """
    with report_errors():
        from opabinia.inference.embedding_map import draw_map

        more = {"split": split, "column": column, "most": most, "checkpoint": checkpoint, "device": device}
        draw_map(where, out, method=method, **more)  # type: ignore[arg-type]
