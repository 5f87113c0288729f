"""``opabinia data``: look at data before anything is trained on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opabinia.cli.config import Overrides, Recipe
from opabinia.cli.errors import leave, report_errors

if TYPE_CHECKING:
    from opabinia.contracts import Source
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

    Every picture is opened. What ``broken: error`` would refuse is told, too.

    opabinia data check detection/coco_format vars.root=data/bccd
    """
    with report_errors():
        from opabinia.data.doctor import check_up

        found = {name: check_up(source) for name, source in _sources(recipe, overrides or []).items()}
        if as_json:
            print(json.dumps({name: asdict(one) for name, one in found.items()}, indent=1))
        else:
            for name, one in found.items():
                _show(name, one)
        broken = sum(fault.count for one in found.values() for fault in one.problems)
        if broken:
            leave(2, f"{recipe}: {broken} broken things in the data")


def _sources(recipe: str, overrides: list[str]) -> dict[str, Source]:
    """The data sets of a recipe by their name, without what is broken in them."""
    from opabinia.config import build, live_catalog
    from opabinia.loading import resolve
    from opabinia.runtime.log import log

    resolved = resolve(recipe, overrides)
    catalog = live_catalog(resolved.config.get("plugins") or ())
    config = {**resolved.config, "data": _lenient(resolved.config["data"])}
    log.disabled = True  # the sources warn of what they leave out; here it is told once, and in full
    try:
        data = build(config, catalog, origins=resolved.origins).keywords["data"]
    finally:
        log.disabled = False
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
    boxes = found.boxes
    counts: dict[str, object] = {"pictures": found.pictures}
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
    table = Table("class", "pictures", *(["things"] if boxes else []))
    for name, pictures in found.of_class.items():
        things = [f"{boxes.of_class[name]}"] if boxes else []
        table.add_row(name, f"{pictures}" if pictures else "none", *things)
    return table


def _pixels(size: tuple[int, int]) -> str:
    return f"{size[1]} x {size[0]}"
