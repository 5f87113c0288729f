"""The command line program. Heavy imports wait until a command needs them: ``--help`` loads no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from opabinia.cli import (
    benchmark,
    completion,
    config,
    data,
    demo,
    embedding_map,
    evaluate,
    export,
    extract,
    merge,
    predict,
    replay,
    report,
    search,
    serve,
    sweep,
    train,
)
from opabinia.runtime.version import __version__

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
    """Train, evaluate and deploy computer vision models with PyTorch."""


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
app.command("map")(embedding_map.draw)
app.command("benchmark")(benchmark.benchmark)
app.command("bench", hidden=True, deprecated=True)(benchmark.benchmark)
app.command("demo")(demo.demo)
app.command("completion")(completion.completion)
app.add_typer(data.app, name="data", help="Check and pack datasets.")
app.add_typer(config.app, name="config", help="Show, check, compare and import configs; list parts.")
