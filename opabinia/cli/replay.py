"""``opabinia replay``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.processes import Nproc, layout, run_in_many


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    step: Annotated[int, typer.Option(help="The optimizer step, from 1 on.")],
    nproc: Nproc = None,
) -> None:
    """Do one step of a run again, with the same samples and random numbers, and write down what happens in it.

    opabinia replay runs/classification/digits/default --step 120

    Writes RUN/replay/step-00000120: the batch, the losses, and the norm of every parameter's gradient. As many
    processes as the run had give the same bits; on another number batch norms and dropout see other samples.
    """
    with report_errors():
        many = layout(nproc, None, None, None, max_restarts=0)
        if many is not None:
            run_in_many(many, ["replay", str(run), "--step", str(step)])
        from opabinia.cli.tables import print_step
        from opabinia.training.replay import replay as again

        print_step(again(run, step))
