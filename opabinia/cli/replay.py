"""``opabinia replay``"""

from __future__ import annotations

from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Nproc, Run
from opabinia.cli.processes import layout, run_in_many
from opabinia.cli.weights import local_run


def replay(
    run: Run, step: Annotated[int, typer.Option(help="The optimizer step, from 1 on.")], nproc: Nproc = None
) -> None:
    """Repeat one step of a run with the same samples and random numbers, and record it.

    opabinia replay runs/classification/digits/default --step 120

    Writes RUN/replay/step-00000120: the batch, the losses, and the gradient norm of every parameter. With the world
    size of the run the result is bitwise identical; otherwise batch norms and dropout see other samples.
    """
    with report_errors():
        ranks = layout(nproc, None, None, None, max_restarts=0)
        run_in_many(ranks, ["replay", str(run), "--step", str(step)])
        from opabinia.cli.tables import print_step
        from opabinia.training.replay import replay as again

        print_step(again(local_run(run), step))
