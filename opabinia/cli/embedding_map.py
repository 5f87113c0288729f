"""``opabinia map``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Checkpoint, Device, Weights


def draw(
    where: Annotated[Path, typer.Argument(metavar="FEATURES", help="A folder written by extract, or a run folder.")],
    split: Annotated[
        str,
        typer.Option(help="Of a run folder: train, or the prefix of a validation set; auto: the first that exists."),
    ] = "auto",
    method: Annotated[
        Literal["pca", "tsne", "umap"], typer.Option(help="Principal components, t-SNE or UMAP (where installed).")
    ] = "pca",
    column: Annotated[str, typer.Option(help="The array to draw: features, or the name of a layer.")] = "features",
    max_samples: Annotated[
        int, typer.Option("--max-samples", min=3, help="Number of samples, at even distances.")
    ] = 5000,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="The image; default: beside the features, or in RUN/map/SPLIT."),
    ] = None,
    checkpoint: Checkpoint = "best",
    weights: Weights = None,
    device: Device = None,
) -> None:
    """Draw an embedding map: features projected to the plane, colored by class, with nearest neighbors of some samples.

    opabinia map runs/selfsup/digits_simclr/default --method tsne

    opabinia map runs/classification/digits/default/features/val --out map.png
    """
    with report_errors():
        from opabinia.inference.embedding_map import check_method, draw_map, extract_embeddings
        from opabinia.inference.load import RunModel
        from opabinia.training.run_folder import holds_run

        check_method(method)
        model = RunModel(where, checkpoint=checkpoint, weights=weights, device=device)
        folder = extract_embeddings(model, split) if holds_run(where) else where
        draw_map(folder, out, method=method, column=column, max_samples=max_samples)
