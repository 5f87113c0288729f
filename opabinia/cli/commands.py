"""The command line program. Heavy imports wait until a command needs them: ``--help`` loads no torch."""

from __future__ import annotations

import inspect
import re
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from opabinia.cli import (
    benchmark,
    completion,
    config,
    data,
    demo,
    embedding_map,
    ensemble,
    evaluate,
    export,
    extract,
    merge,
    plan,
    predict,
    replay,
    report,
    search,
    serve,
    sweep,
    track,
    train,
)
from opabinia.cli.command_line import override_of_option
from opabinia.cli.errors import leave
from opabinia.runtime.version import __version__


class Program(TyperGroup):
    """The root command. Help texts are wrapped at the width of the terminal, not where docstrings break; and it names
    the override where an option of another training system is given."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        for each in [] if command is None else [command, *getattr(command, "commands", {}).values()]:
            each.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(each.help or ""))
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if type(error).__name__ != "NoSuchOption":  # Typer's, or Click's in older versions of Typer
                raise
            option, command = error.option_name, error.ctx.command  # type: ignore[attr-defined]
            override = override_of_option(option, ctx.meta["words"])
            if not override or "overrides" not in {param.name for param in command.params}:
                raise
            leave(2, f"command line: {option}: no such option; write {override}")


app = typer.Typer(
    name="opabinia", cls=Program, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
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
app.command("plan")(plan.plan)
app.command("sweep")(sweep.sweep)
app.command("eval")(evaluate.evaluate)
app.command("replay")(replay.replay)
app.command("report")(report.report)
app.command("merge")(merge.merge)
app.command("ensemble")(ensemble.ensemble)
app.command("predict")(predict.predict)
app.command("track")(track.track)
app.command("extract")(extract.extract)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.command("search")(search.search)
app.command("map")(embedding_map.draw)
app.command("benchmark")(benchmark.benchmark)
app.command("demo")(demo.demo)
app.command("completion")(completion.completion)
app.add_typer(data.app, name="data", help="Check and pack datasets.")
app.add_typer(config.app, name="config", help="Show, check, compare and import configs; list parts.")
