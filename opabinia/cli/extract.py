"""``opabinia extract``"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import (
    Checkpoint,
    Device,
    Endpoint,
    MaxRestarts,
    Nnodes,
    NodeRank,
    Nproc,
    Overrides,
    RunOrRecipe,
    WeightsOrFile,
    split_names,
)
from opabinia.cli.processes import layout, run_in_many
from opabinia.cli.weights import open_run
from opabinia.runtime.slurm import launched_rank
from opabinia.runtime.storage import is_url, upload_folder


def extract(
    run: RunOrRecipe,
    overrides: Overrides = None,
    split: Annotated[
        str,
        typer.Option(
            metavar="A,B|all", help="train, prefixes of validation sets; auto: the first of these, else train."
        ),
    ] = "auto",
    layers: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Modules whose outputs to write, trunk, head or embedding; default: embedding."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output folder (OUT/SET for several sets); default: RUN/features/SET. A URL (s3://...): also there."
        ),
    ] = None,
    task: Annotated[
        str,
        typer.Option(metavar="NAME", help="Of a multi-task run; default: the task of each set.", show_default=False),
    ] = "",
    form: Annotated[
        Literal["npy", "parquet"], typer.Option("--format", help="One file per column, or one table.")
    ] = "npy",
    checkpoint: Checkpoint = "best",
    weights: WeightsOrFile = None,
    device: Device = None,
    nproc: Nproc = None,
    nnodes: Nnodes = None,
    node_rank: NodeRank = None,
    rdzv_endpoint: Endpoint = None,
    max_restarts: MaxRestarts = 3,
) -> None:
    """Write features of a run's data, with labels and ids, as files for NumPy and vector databases.

    After an interruption the same command resumes.

    opabinia extract runs/classification/digits/default --split train,val

    opabinia extract classification/image_folder --weights dino.pth init.partial=true vars.root=photos

    opabinia extract runs/classification/digits/default --layers trunk,layer3,head --format parquet

    opabinia extract runs/classification/digits/default --split all --nproc 2 evaluate.batch_size=64
    """
    with report_errors():
        from opabinia.config.paths import check_run_data

        keys = {"train": ["data.train"], "all": ["data.train", "data.val"]}
        folder, chosen, overrides = open_run(run, overrides, weights)
        ends = [name.rpartition("/")[2] for name in split_names(split)]  # boxes/train of a multi-task run
        check_run_data(folder, overrides, [key for end in ends for key in keys.get(end, ["data.val"])])
        words = ["--split", split, "--layers", layers, "--format", form, "--checkpoint", checkpoint]
        for option, value in {"--task": task, "--out": out, "--device": device, "--weights": chosen}.items():
            words += [option, str(value)] if value else []
        ranks = layout(nproc, nnodes, node_rank, rdzv_endpoint, max_restarts)
        run_in_many(ranks, ["extract", str(folder), *overrides, *words])
        from opabinia.inference.extract import extract as write
        from opabinia.inference.load import RunModel

        model = RunModel(folder, overrides, checkpoint, chosen, device)
        names, target = split_names(split), None if is_url(out) else out
        written = write(model, target, splits=names, layers=split_names(layers), form=form, task=task)
        if is_url(out) and launched_rank(os.environ) == 0:
            several = len(written) > 1 or "all" in names
            for features in written:
                name = f"/{features.relative_to(folder / 'features')}" if several else ""
                upload_folder(features, f"{out}{name}", last="about.json")
