"""``opabinia data``: look at data before anything is trained on it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opabinia.cli.config import Overrides, Recipe
from opabinia.cli.errors import leave, report_errors

if TYPE_CHECKING:
    from opabinia.contracts import Source
    from opabinia.data import Data
    from opabinia.data.doctor import Checkup

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """A group also while it has one command."""


@app.command()
def check(
    recipe: Recipe,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object by data set, for programs.")] = False,
) -> None:
    """Count what the data sets of a recipe hold, and tell what is broken in them. Exit status 0: nothing; 2: something.

    Every picture is opened, and of every film the first, the middle and the last frame are decoded. What ``broken:
    error`` would refuse is told, too.

    opabinia data check detection/coco_format vars.root=data/bccd
    """
    with report_errors():
        from opabinia.data.doctor import check_up

        sources = _sources(_data(recipe, overrides or [], lenient=True))
        found = {name: check_up(source) for name, source in sources.items()}
        if as_json:
            print(json.dumps({name: asdict(one) for name, one in found.items()}, indent=1))
        else:
            for name, one in found.items():
                _show(name, one)
        broken = sum(fault.count for one in found.values() for fault in one.problems)
        if broken:
            leave(2, f"{recipe}: {broken} broken things in the data")


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
        from opabinia.data.pack import pack as write
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
    from opabinia.auto import with_numbers
    from opabinia.config import build, live_catalog
    from opabinia.loading import resolve
    from opabinia.runtime.log import log

    resolved = resolve(recipe, overrides)
    catalog = live_catalog(resolved.config.get("plugins") or ())
    config = with_numbers(resolved.config, batch_size=1, workers=0)  # which nothing here asks for
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


def _show(name: str, found: Checkup) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    boxes, films = found.boxes, found.films
    counts: dict[str, object] = {"films" if films else "pictures": found.pictures}
    if films is not None:
        counts |= {"smallest film": _pixels(films.smallest), "largest film": _pixels(films.largest)}
        counts |= {"frames": _range(films.frames), "seconds": _range(films.seconds)}
        counts |= {"frames a second": _range(films.fps)}
    if boxes is not None:
        counts |= {"of them without things": boxes.empty, "things": boxes.things, "crowds": boxes.crowds}
        counts |= {"tiny things (< 2 pixels)": boxes.tiny}
        counts |= {"smallest picture": _pixels(boxes.smallest), "largest picture": _pixels(boxes.largest)}
    counts |= {f"broken: {fault.kind}": fault.count for fault in found.problems}
    table = Table(name, "count")
    for what, count in counts.items():
        table.add_row(what, f"{count}")
    console.print(table)
    if found.of_class:
        console.print(_classes(found))
    for fault in found.problems:
        console.print(f"{fault.kind}:", markup=False)
        for case in fault.first:
            console.print(f"  {case}", markup=False, soft_wrap=True)
        if fault.count > len(fault.first):
            console.print(f"  and {fault.count - len(fault.first)} more")


def _classes(found: Checkup) -> Any:
    """A row for each class; such as nothing is of say so."""
    from rich.table import Table

    boxes = found.boxes
    table = Table("class", "films" if found.films else "pictures", *(["things"] if boxes else []))
    for name, pictures in found.of_class.items():
        things = [f"{boxes.of_class[name]}"] if boxes else []
        table.add_row(name, f"{pictures}" if pictures else "none", *things)
    return table


def _range(values: tuple[float, float, float]) -> str:
    least, middle, most = values
    return f"{least:g}" if least == most else f"{least:.4g} to {most:.4g}, half of them up to {middle:.4g}"


def _pixels(size: tuple[int, int]) -> str:
    return f"{size[1]} x {size[0]}"
