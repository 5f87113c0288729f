"""``opabinia search``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.predict import Checkpoint, Device, Nearest


def search(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    gallery: Annotated[Path, typer.Argument(metavar="GALLERY", help="The folder of pictures that is searched.")],
    queries: Annotated[list[Path], typer.Argument(metavar="QUERY...", help="Pictures, and folders of pictures.")],
    index: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The index; one in RUN/search if not given.")
    ] = None,
    nearest: Nearest = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each query.")] = False,
    checkpoint: Checkpoint = "best",
    device: Device = None,
) -> None:
    """Find pictures in a folder that are like others. The folder is indexed once, and again when it has changed.

    opabinia search runs/reid/digits/default gallery/ query.png

    Needs the extra `search` (faiss).
    """
    with report_errors():
        from opabinia.inference.retrieval.search import search as look

        look(
            *(run, gallery, queries),
            index=index, nearest=nearest, as_json=as_json, checkpoint=checkpoint, device=device,
        )  # fmt: skip
