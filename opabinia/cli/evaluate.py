"""``opabinia eval``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Overrides
from opabinia.cli.outcome import AsJson, Quiet, in_json, print_json, words_of
from opabinia.cli.processes import Endpoint, Nnodes, NodeRank, Nproc, layout, run_in_many
from opabinia.runtime.quiet import quietly


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    overrides: Overrides = None,
    checkpoint: Annotated[str, typer.Option(help="best, last, or the path of a checkpoint.")] = "best",
    measure: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further evaluator, such as linear_probe or knn; may be repeated."),
    ] = None,
    nproc: Nproc = None,
    nnodes: Nnodes = None,
    node_rank: NodeRank = None,
    rdzv_endpoint: Endpoint = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's checkpoint on its validation data.

    opabinia eval runs/classification/digits/default --checkpoint last

    opabinia eval runs/classification/digits/default --nproc 2

    opabinia eval runs/classification/digits/default --measure linear_probe --measure knn
    """
    with report_errors(), quietly(quiet):
        overrides = [*(overrides or []), *(f"evaluate.measures.{name}.evaluator={name}" for name in measure or [])]
        many = layout(nproc, nnodes, node_rank, rdzv_endpoint, max_restarts=0)
        if many is not None:
            run_in_many(many, ["eval", str(run), *overrides, "--checkpoint", checkpoint, *words_of(quiet, as_json)])
        from opabinia.cli.tables import print_scores
        from opabinia.training.launch import evaluate as scores_of

        scores = scores_of(run, overrides, checkpoint=checkpoint)
        if as_json:
            print_json({"run": str(run), "checkpoint": checkpoint, "scores": in_json(scores)})
        else:
            print_scores(f"{run} ({checkpoint})", scores)
