"""``opabinia eval``"""

from __future__ import annotations

from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import AsJson, Checkpoint, Endpoint, Nnodes, NodeRank, Nproc, Overrides, Quiet, Run
from opabinia.cli.outcome import in_json, print_json, words_of
from opabinia.cli.processes import layout, run_in_many
from opabinia.runtime.quiet import quiet_terminal


def evaluate(
    run: Run,
    overrides: Overrides = None,
    checkpoint: Checkpoint = "best",
    evaluator: Annotated[
        list[str] | None,
        typer.Option(
            "--evaluator", "--measure", metavar="NAME", help="An additional evaluator, such as knn; may be repeated."
        ),
    ] = None,
    nproc: Nproc = None,
    nnodes: Nnodes = None,
    node_rank: NodeRank = None,
    rdzv_endpoint: Endpoint = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint of a run on its validation data.

    opabinia eval runs/classification/digits/default --checkpoint last

    opabinia eval runs/classification/digits/default --nproc 2

    opabinia eval runs/classification/digits/default --evaluator linear_probe --evaluator knn
    """
    with report_errors(), quiet_terminal(quiet):
        overrides = [*(overrides or []), *(f"evaluate.evaluators.{name}.evaluator={name}" for name in evaluator or [])]
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
