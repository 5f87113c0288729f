"""The command line. Heavy imports wait until a command needs them: ``--help`` and ``config check`` load no torch."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from opabinia import __version__
from opabinia.agent import end_with_agent
from opabinia.cli import (
    bench,
    completion,
    config,
    data,
    demo,
    evaluate,
    export,
    extract,
    map,
    merge,
    predict,
    replay,
    report,
    search,
    serve,
    sweep,
    train,
)
from opabinia.runtime.signals import end_at_once

app = typer.Typer(
    name="opabinia",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """One PyTorch training engine for five kinds of vision work."""


app.command("train")(train.train)
app.command("sweep")(sweep.sweep)
app.command("eval")(evaluate.evaluate)
app.command("replay")(replay.replay)
app.command("report")(report.report)
app.command("merge")(merge.merge)
app.command("predict")(predict.predict)
app.command("extract")(extract.extract)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.command("search")(search.search)
app.command("map")(map.draw)
app.command("bench")(bench.bench)
app.command("demo")(demo.demo)
app.command("completion")(completion.completion)
app.add_typer(data.app, name="data", help="Look at data before anything is trained on it.")
app.add_typer(config.app, name="config", help="Show, check and compare configs; list what there is.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 a crash, 2 something given is wrong, 130 or 143 stopped after saving."""
    end_at_once()
    end_with_agent()
    # Before torch is imported: what its C++ warns of when another process ends, people can neither read nor mend.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Plug-ins may lie in the folder one works in, as with python -m; at the end, so that they shadow nothing.
    sys.path.append(os.getcwd())
    try:
        given = [_without_dashes(word) for word in (sys.argv[1:] if arguments is None else arguments)]
        app(args=train.with_resume_value(given))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _without_dashes(word: str) -> str:
    """``--optimizer.lr=0.1`` as ``optimizer.lr=0.1``: a dotted path is an override, never an option."""
    return re.sub(r"^--(?=[A-Za-z_]\w*(\.\w+)+=)", "", word)
