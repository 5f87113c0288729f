"""``opabinia data select``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import AnnotationTool, Changes, Checkpoint, Device, Weights
from opabinia.cli.weights import open_run
from opabinia.runtime.local_copies import local_copy
from opabinia.runtime.storage import is_stored


def select(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or s3://... and the like.")],
    paths: Annotated[
        list[str],
        typer.Argument(metavar="UNLABELED...", help="Images or videos, and folders of them.", show_default=False),
    ],
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Number of images to choose.")],
    strategy: Annotated[
        Literal["uncertainty", "diversity", "both"] | None,
        typer.Option(help="Default: both; diversity for a model without classes.", show_default=False),
    ] = None,
    measure: Annotated[Literal["margin", "entropy"], typer.Option(help="Measure of uncertainty.")] = "margin",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the rounds, also of earlier runs; default: RUN/select.",
            show_default=False,
        ),
    ] = None,
    export: AnnotationTool = None,
    score: Annotated[float, typer.Option(min=0, max=1, help="Lowest score of draft detections.")] = 0.3,
    task: Annotated[str, typer.Option(metavar="NAME", help="Task of a multi-task run.", show_default=False)] = "",
    checkpoint: Checkpoint = "best",
    weights: Weights = None,
    changes: Changes = None,
    device: Device = None,
) -> None:
    """Choose the unlabeled images to label next (active learning): those that the model is uncertain about, and that
    differ from the labeled ones and from each other.

    A round is a folder: selected.csv, selected.html with the images, and with --export their predictions as draft
    labels for an annotation tool. Later rounds in the same folder choose other images. rounds.csv has the scores of
    the runs by the number of labels.

    opabinia data select runs/classification/digits/default unlabeled/ --count 200

    opabinia data select runs/detection/mine/second unlabeled/ --count 200 --out rounds --export cvat
    """
    with report_errors():
        from opabinia.cli.tables import print_cells
        from opabinia.config.paths import check_input_paths
        from opabinia.inference.load import RunModel
        from opabinia.inference.selection.rounds import rounds_table
        from opabinia.inference.selection.select import LIST, PAGE, SelectOptions
        from opabinia.inference.selection.select import select as select_images
        from opabinia.runtime.text import one_line, plural

        inputs = [local_copy(path) if is_stored(path) else path for path in paths]
        check_input_paths([Path(path) for path in inputs])
        folder, chosen, overrides = open_run(run, changes, weights)
        model = RunModel(folder, tuple(overrides), checkpoint, chosen, device, task)
        options = SelectOptions(count, strategy, measure, seed, out, export, score, task)
        result = select_images(model, inputs, options)
        headline = next(iter(result.rounds[-1]["scores"]), None)
        rows = rounds_table(result.rounds, [headline] if headline else [])
        cells = [["" if value is None else _text(value) for value in row.values()] for row in rows]
        print_cells(list(rows[0]), [[one_line(cell, 60) for cell in row] for row in cells])
        print(f"chosen: {plural(len(result.paths), 'image')}")
        for note in result.notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"the list is {result.folder / LIST}, the page {result.folder / PAGE}", err=True)
        if export:
            typer.echo(f"the drafts for {export} are in {result.folder / export}", err=True)
        result.raise_skipped()


def _text(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
