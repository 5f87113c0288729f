"""``opabinia data``: look at data before anything is trained on it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opabinia.cli.config import Overrides, Recipe
from opabinia.cli.errors import leave, report_errors

if TYPE_CHECKING:
    from opabinia.contracts import Source
    from opabinia.data import Data
    from opabinia.data.check import DataReport

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """A group also while it has one command."""


@app.command()
def check(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with the pictures of what is found.")
    ] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything that is found; - prints it.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read so many samples of each set, drawn by --seed.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of that draw.")] = 0,
    near: Annotated[
        int, typer.Option(min=0, max=12, help="Bits of 64 that may differ in hashes of nearly equal pictures.")
    ] = 4,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that read; as many as there are cores if not given.")
    ] = None,
) -> None:
    """Count what the data sets of a recipe hold, and tell what is wrong in them, each by itself and all together.

    Every picture is decoded, and of every film the first, the middle and the last frame. What ``broken: error`` would
    refuse is told, too. Exit status 0: nothing is wrong; 2: something is. Ctrl-C tells what was found so far (130).

    opabinia data check detection/coco_format vars.root=data/bccd --out bccd.html
    """
    with report_errors():
        from rich.console import Console

        from opabinia.data.check import run_checks
        from opabinia.data.check.terminal import show
        from opabinia.runtime.resources import cores

        sources = _sources(_data(recipe, overrides or [], lenient=True))
        workers = cores() if workers is None else workers
        with _progress() as tell:
            found = run_checks(
                sources, near=near, limit=limit, seed=seed, workers=workers if workers > 1 else 0, tell=tell
            )
        if as_json is None or str(as_json) != "-":
            show(found, Console(highlight=False))
        _write(found, recipe, out, as_json)
        if found.stopped:
            raise KeyboardInterrupt
        if found.wrong:
            leave(2, f"{recipe}: {found.wrong} {'thing is' if found.wrong == 1 else 'things are'} wrong in the data")


@app.command()
def pack(
    recipe: Recipe,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    overrides: Overrides = None,
    section: Annotated[str, typer.Option(help="train, or the prefix of a validation set.")] = "train",
    size: Annotated[
        int | None, typer.Option(min=1, help="Shrink larger frames to so many pixels at their shorter side.")
    ] = None,
    quality: Annotated[int, typer.Option(min=1, max=95, help="Of the JPEGs.")] = 90,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads; as many as there are cores if not given.")
    ] = None,
) -> None:
    """Take the films of a recipe apart into JPEGs, which are read more quickly and take more of the disk.

    The source packed_films reads them. The same command goes on where it was killed. Films that cannot be read end it,
    or with data.on_error=skip are left out.

    opabinia data pack kinetics.yaml --section train --out kinetics/train_256 --size 256
    """
    with report_errors():
        from opabinia.config import ConfigError, Problem
        from opabinia.data.decoding.pack import pack as write
        from opabinia.runtime.log import logging_to

        data = _data(recipe, overrides or [])
        sources = _sources(data)
        if section not in sources:
            raise ConfigError(
                Problem("command line", "--section", f"there is no {section!r}; there is {', '.join(sources)}")
            )
        with logging_to(None):
            done = write(
                sources[section],
                out,
                size=size,
                quality=quality,
                workers=workers or os.cpu_count() or 1,
                skip=data.on_error == "skip",
            )
        left_out = f", {done.left_out} left out" if done.left_out else ""
        print(f"{done.films} films, {done.frames} frames, {done.bytes / 1e6:.1f} MB{left_out}")
        print(f"source: {{name: packed_films, root: {out}}}")


def _data(recipe: str, overrides: list[str], *, lenient: bool = False) -> Data:
    """The data of a recipe; ``lenient``: without what is broken in them."""
    from opabinia.config import build, live_catalog
    from opabinia.runtime.log import log
    from opabinia.training.auto_values import with_values
    from opabinia.training.run_folder import resolve

    resolved = resolve(recipe, overrides)
    catalog = live_catalog(resolved.config.get("plugins") or ())
    config = with_values(resolved.config, batch_size=1, workers=0, augment_on="workers")  # which nothing here asks for
    config["data"] = _lenient(config["data"]) if lenient else config["data"]
    log.disabled = lenient  # the sources warn of what they leave out; here it is told once, and in full
    try:
        data: Data = build(config, catalog, origins=resolved.origins).keywords["data"]
    finally:
        log.disabled = False
    return data


def _sources(data: Data) -> dict[str, Source]:
    """The data sets by their name."""
    return {"train": data.train.source, **{one.prefix: one.source for one in data.validation}}


def _lenient(section: Any) -> Any:
    """A section in which every source leaves out what is broken."""
    if isinstance(section, Mapping):
        return {key: "drop" if key == "broken" else _lenient(value) for key, value in section.items()}
    return [_lenient(one) for one in section] if isinstance(section, list | tuple) else section


def _write(found: DataReport, recipe: str, out: Path | None, as_json: Path | None) -> None:
    """The page and the JSON that are asked for."""
    from opabinia.data.check.page import write_page
    from opabinia.runtime.files import write_atomic

    if as_json is not None:
        text = json.dumps(found.plain(), indent=1)
        if str(as_json) == "-":
            print(text)
        else:
            write_atomic(as_json, text + "\n")
            typer.echo(f"what was found is in {as_json}", err=True)
    if out is not None:
        write_page(found, out, recipe)
        typer.echo(f"the page is in {out}", err=True)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading")
        yield lambda done, of: bar.update(task, completed=done, total=of)
