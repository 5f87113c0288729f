"""``opabinia search``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Checkpoint, Device, Nearest, Rerank, Run, Weights
from opabinia.cli.weights import local_run


def search(
    run: Run,
    gallery: Annotated[Path, typer.Argument(metavar="GALLERY", help="The folder of images to search.")],
    queries: Annotated[list[Path], typer.Argument(metavar="QUERY...", help="Images, and folders of images.")],
    index: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The index; default: a file in RUN/search.")
    ] = None,
    nearest: Nearest = 10,
    rerank: Rerank = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line and query.")] = False,
    checkpoint: Checkpoint = "best",
    weights: Weights = None,
    device: Device = None,
) -> None:
    """Find the most similar images in a folder. The folder is indexed once, and again when it has changed.

    opabinia search runs/reid/digits/default gallery/ query.png

    Needs the extra `search` (faiss).
    """
    with report_errors():
        from opabinia.config.paths import check_input_paths, check_run_folder

        run = local_run(run)
        check_run_folder(run)
        check_input_paths([gallery, *queries])
        from opabinia.inference.load import RunModel
        from opabinia.inference.retrieval.search import search as run_search

        model = RunModel(run, checkpoint=checkpoint, weights=weights, device=device)
        run_search(model, gallery, queries, index=index, nearest=nearest, rerank=rerank, as_json=as_json)
