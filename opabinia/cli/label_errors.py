"""``opabinia data labels``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import AnnotationTool, Changes, Checkpoint, Device, Weights
from opabinia.cli.weights import open_run
from opabinia.runtime.text import plural


def labels(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders, or s3://... and the like.")],
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another dataset of the runs; train: labels that the model has learned."),
    ] = None,
    count: Annotated[int, typer.Option(min=0, metavar="N", help="Rows to print; the files have all.")] = 20,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Default: RUN/labels, or labels next to several runs.", show_default=False),
    ] = None,
    export: AnnotationTool = None,
    checkpoint: Checkpoint = "best",
    weights: Weights = None,
    changes: Changes = None,
    device: Device = None,
) -> None:
    """Find suspicious labels: those that a model contradicts which was not trained on them.

    The labels of the validation data of each run are compared with its predictions, and sorted by suspicion; runs on
    folds cover all training data. labels.csv has an empty column `corrected`, which the source `corrected` reads;
    labels.html shows the images. --export writes the images and their annotations for an annotation tool, the
    suspicious ones marked. The folder of a cross-validation stands for its runs.

    opabinia data labels runs/classification/digits/default

    opabinia data labels runs/classification/digits/default-folds --count 50

    opabinia data labels runs/detection/digits/default --export cvat
    """
    with report_errors():
        from opabinia.cli.tables import print_cells
        from opabinia.config.paths import member_runs
        from opabinia.inference.annotation_files.write import check_absent
        from opabinia.inference.label_errors.export import export_suspects
        from opabinia.inference.label_errors.find import (
            LIST,
            PAGE,
            check_no_corrections,
            default_folder,
            find_label_errors,
            write_files,
        )
        from opabinia.inference.load import RunModel
        from opabinia.runtime.storage import is_url
        from opabinia.runtime.text import one_line

        members = [str(member) for run in runs for member in ([run] if is_url(run) else member_runs(Path(run)))]
        opened = [open_run(run, changes, weights) for run in members]
        alone = Path(runs[0]) if len(runs) == 1 < len(members) else None  # the folder of a cross-validation
        folder = out or default_folder([alone] if alone else [path for path, _, _ in opened])
        check_no_corrections(folder)  # before minutes of work
        if export:
            check_absent(folder / export)
        models = [RunModel(path, tuple(words), checkpoint, chosen, device) for path, chosen, words in opened]
        found = find_label_errors(models, split)
        write_files(found, folder)
        shown = [suspect for suspect, _ in found.suspects[:count]]
        if shown:
            columns = ("sample", "issue", "label", "predicted", "suspicion", "reason")
            rows = [
                (suspect.id, suspect.issue, suspect.label, suspect.predicted, f"{suspect.score:.3f}", suspect.reason)
                for suspect in shown
            ]
            print_cells(columns, [[one_line(cell, 100) for cell in row] for row in rows])
        for name, value in found.summary.items():
            print(f"{name}: {one_line(value, 400)}")
        for warning in found.warnings:
            typer.echo(f"warning: {warning}", err=True)
        typer.echo(f"the list is in {folder / LIST}, the page in {folder / PAGE}", err=True)
        if export:
            count = export_suspects(found.suspects, folder / export, export)
            typer.echo(
                f"{plural(count, 'image')} for {export} {'is' if count == 1 else 'are'} in {folder / export}", err=True
            )
