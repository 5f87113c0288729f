"""``opabinia config``: show, check, compare and import configs, list parts. Only ``--build`` imports torch."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.options import Overrides, Recipe
from opabinia.cli.weights import local_run

if TYPE_CHECKING:
    from opabinia.config import Catalog, Resolved
    from opabinia.config.registry import Entry

app = typer.Typer(no_args_is_help=True)

PROBLEM_KEYS = ("place", "key", "message", "value", "suggestion", "allowed")
"""The fields of :class:`opabinia.config.Problem` as ``check --json`` names them."""

Plugins = Annotated[
    list[str] | None, typer.Option("--plugin", help="A module with parts of your own; may be repeated.")
]


@app.command()
def show(
    recipe: Recipe,
    overrides: Overrides = None,
    origin: Annotated[bool, typer.Option("--origin", help="Print where each value comes from.")] = False,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Print the batches over time and their cost instead.")
    ] = False,
    nproc: Annotated[int | None, typer.Option(metavar="N", min=1, help="With --schedule: number of ranks.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="With --schedule: also draw it to this file.")
    ] = None,
) -> None:
    """Print the complete config, with all defaults and resolved references.

    opabinia config show video/digits --origin

    opabinia config show video/digits --schedule --out schedule.png
    """
    with report_errors():
        from opabinia.config import dump, flatten
        from opabinia.config.errors import show as shown

        for option, value in {"--nproc": nproc, "--out": out}.items():
            if value is not None and not schedule:
                raise option_error(option, "belongs to --schedule: add it, or remove this option")
        if out is not None and out.suffix.lower() != ".png":
            raise option_error("--out", f"{out}: the image must be a FILE.png")
        resolved = _resolve(recipe, overrides or [])
        if schedule:
            _show_schedule(recipe, resolved, nproc or 1, out)
        elif origin:
            values, origins = flatten(resolved.config), resolved.origins
            _print_columns([(f"{path}: {shown(value)}", f"# {origins[path]}") for path, value in values.items()])
        else:
            print(dump(resolved.config).rstrip())


@app.command()
def check(
    recipe: Recipe,
    overrides: Overrides = None,
    build: Annotated[
        bool, typer.Option("--build", help="Also build everything and run one tiny batch on the CPU.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the errors as a JSON list: place, key, message, value and so on.")
    ] = False,
) -> None:
    """Report all errors in a config at once. Exit status 0: none; 2: some."""
    with report_errors():
        from opabinia.config import ConfigError, catalog
        from opabinia.config.paths import check_paths, check_run

        try:
            resolved = _resolve(recipe, overrides or [])
            check_paths(resolved, catalog(resolved.config.get("plugins") or ()))
            check_run(resolved)
            if build:
                from opabinia.training.dry_run import dry_run
                from opabinia.training.run_folder import build_parts

                dry_run(build_parts(resolved, batch_size=32, num_workers=0, augment_on="workers").keywords)
        except ConfigError as error:
            if not as_json:
                raise
            problems = [dict(zip(PROBLEM_KEYS, astuple(problem), strict=True)) for problem in error.problems]
            print(json.dumps(problems, indent=1))
            raise SystemExit(2) from None
        unread = "" if build else " in the config; no data were read (--build reads annotations, data check everything)"
        print("[]" if as_json else f"{recipe}: no problems{unread}")


SCHEMA = "opabinia.schema.json"
"""The schema file that recipes refer to, in their folder or a parent of it."""

SCHEMA_COMMENT = "# yaml-language-server: $schema="
"""The comment in a recipe that names its schema for editors, before the path."""


@app.command()
def schema(
    plugin: Plugins = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help=f"Write it to this file, such as {SCHEMA}.")
    ] = None,
) -> None:
    """Print the JSON Schema of recipes, for completion in editors.

    opabinia config schema --out opabinia.schema.json
    """
    with report_errors():
        from opabinia.config import json_schema

        text = json.dumps(json_schema(_catalog(plugin or [])), indent=1) + "\n"
        if out is None:
            print(text, end="")
            return
        _write(out, text)
        print(f"first line of a recipe in the same folder: {SCHEMA_COMMENT}{out.name}")


def _with_schema(out: Path, text: str) -> str:
    """Return the text of a recipe, with the schema comment where the folder of ``out`` or a parent has a schema."""
    parent = out.absolute().parent
    for depth, folder in enumerate([parent, *parent.parents]):
        if (folder / SCHEMA).is_file():
            return f"{SCHEMA_COMMENT}{'../' * depth}{SCHEMA}\n{text}"
    return text


@app.command("list")
def list_parts(
    family: Annotated[str | None, typer.Argument(help="loss, optimizer, transform, ...; recipes; weights")] = None,
    name: Annotated[str | None, typer.Argument(help="A part of that family.")] = None,
    plugin: Plugins = None,
) -> None:
    """List the families, the parts of a family with their parameters, or the details of a part; or the packaged
    recipes with what was run of each, or the pretrained weights on this machine.

    opabinia config list transforms

    opabinia config list optimizer sgd

    opabinia config list recipes

    opabinia config list weights
    """
    with report_errors():
        if family in ("recipes", "weights") and name is not None:
            raise option_error("NAME", f"`config list {family}` lists all {family}; remove {name!r}")
        if family == "weights":
            from opabinia.cli.available import describe_weights

            return print("\n".join(describe_weights()))
        if family == "recipes":
            from opabinia.config.recipe_marks import recipe_marks

            return _print_columns([*recipe_marks().items()])
        catalog = _catalog(plugin or [])
        if family is None:
            from opabinia.config.compose import packaged_names

            parts = [(each, ", ".join(catalog.names(each))) for each in catalog.entries if catalog.names(each)]
            recipes = ("recipes", ", ".join(packaged_names()))
            return _print_columns([*parts, recipes, ("weights", "pretrained weights on this machine")])
        family = next((each for each in catalog.entries if family in (each, f"{each}s", f"{each}es")), family)
        _check_known(family, list(catalog.entries), "family")
        if name is None:
            lines = [line for _, entry in sorted(catalog.entries[family].items()) for line in _signature(entry)]
        else:
            _check_known(name, catalog.names(family), family)
            lines = _details(catalog.entries[family][name])
        print("\n".join(lines))


@app.command("import")
def import_config(
    system: Annotated[
        Literal[
            "basecls",
            "detectron2",
            "fastreid",
            "mmaction",
            "mmdetection",
            "mmpretrain",
            "paddlevideo",
            "pyslowfast",
            "vissl",
        ],
        typer.Argument(
            metavar="SYSTEM",
            help="basecls, detectron2, fastreid, mmaction, mmdetection, mmpretrain, paddlevideo, pyslowfast or vissl.",
        ),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The config.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to it, under its own keys.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            "--cards",
            min=1,
            help="Number of GPUs, for basecls, OpenMMLab and PaddleVideo, whose batch size is per GPU (8).",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="Write the recipe to this file instead of standard output.")
    ] = None,
) -> None:
    """Convert the config of another system to a recipe, and list what is not converted. Nothing in it is executed.

    opabinia config import detectron2 faster_rcnn_R_50_FPN_1x.yaml SOLVER.BASE_LR=0.01 --out faster_rcnn.yaml

    opabinia config import paddlevideo slowfast_multigrid.yaml --gpus 8 > slowfast.yaml
    """
    with report_errors():
        from opabinia.migration import convert

        recipe = convert(system, file, gpus, overrides or [])
        for note in recipe.notes:
            typer.echo(f"note: {note}", err=True)
        for key in recipe.unconverted():
            typer.echo(f"not converted: {key}", err=True)
        if out is None:
            print(recipe.text(), end="")
        elif out.suffix not in (".yaml", ".yml") or out.exists():
            raise option_error("--out", f"{out}: {'exists already' if out.exists() else 'a recipe is a FILE.yaml'}")
        else:
            _write(out, _with_schema(out, recipe.text()))


def _write(out: Path, text: str) -> None:
    from opabinia.runtime.files import write_atomic

    write_atomic(out, text)


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A packaged recipe, a YAML file or a run folder.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
) -> None:
    """Compare two complete configs, defaults included; one line per difference."""
    with report_errors():
        from opabinia.config import flatten
        from opabinia.config.errors import show

        old, new = (flatten(_resolve(str(local_run(recipe)), []).config) for recipe in (first, second))
        for path in dict.fromkeys([*old, *new]):
            if path not in old or path not in new or type(old[path]) is not type(new[path]) or old[path] != new[path]:
                before, after = (show(values[path]) if path in values else "(missing)" for values in (old, new))
                print(f"{path}: {before} -> {after}")


def _resolve(recipe: str, overrides: Sequence[str]) -> Resolved:
    """Return the complete config; warnings are printed to stderr."""
    from opabinia.config import catalog, check, compose

    tree = compose(recipe, overrides)
    resolved = check(tree, catalog(tree.plugins))
    for warning in resolved.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return resolved


def _catalog(plugins: Sequence[str]) -> Catalog:
    from opabinia.config import ConfigError, Problem, catalog

    parts = catalog(plugins)
    if parts.failed:
        raise ConfigError(Problem("", name, f"cannot be imported: {why}") for name, why in parts.failed.items())
    return parts


def _show_schedule(recipe: str, resolved: Resolved, processes: int, out: Path | None) -> None:
    """Print the batches of a run on ``processes`` ranks."""
    from opabinia.cli.tables import print_schedule
    from opabinia.config import build
    from opabinia.runtime.files import disk_errors
    from opabinia.training.loaders import splits_norms
    from opabinia.training.run_folder import replace_auto
    from opabinia.training.schedule_preview import draw_preview, schedule_preview
    from opabinia.training.world_size_scaling import auto_scale

    config, changes = auto_scale(replace_auto(resolved.config), processes)
    reference = resolved.config["train"]["reference_world_size"]
    for change in changes:
        typer.echo(f"for world size {processes} instead of {reference}: {change}", err=True)
    parts = build(config, origins=resolved.origins).keywords
    table = schedule_preview(parts, processes)
    print_schedule(table, norms=splits_norms(table.plan, parts["train"].sync_batch_norm))
    if out is not None:
        image = draw_preview(table, parts["schedule"], recipe)
        with disk_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            image.save(out)


def _print_columns(rows: Sequence[tuple[str, str]]) -> None:
    width = min(max((len(left) for left, _ in rows), default=0), 60)
    for left, right in rows:
        print(f"{left:<{width}}  {right}".rstrip())


def _check_known(name: str, names: Sequence[str], kind: str) -> None:
    from opabinia.config import ConfigError, Problem
    from opabinia.config.errors import listing, nearest

    if name not in names:
        message = f"there is no {kind} {name!r}"
        raise ConfigError(Problem("", "", message, "", nearest(name, names), f"there are: {listing(names)}"))


def _signature(entry: Entry) -> list[str]:
    """Return a part in a few lines: name, description, parameters with their defaults."""
    from opabinia.config.errors import show
    from opabinia.config.types import describe

    given = (
        f"{param.name}: {describe(param.spec)}" + ("" if param.required else f" = {show(param.default)}")
        for param in entry.parameters
    )
    wrapped = textwrap.wrap("; ".join(given), 112, initial_indent="    ", subsequent_indent="    ")
    return [f"{entry.name}  {entry.doc}".rstrip(), *wrapped]


def _details(entry: Entry) -> list[str]:
    """Return a part with its parameters: type, default and description."""
    from opabinia.config.errors import show
    from opabinia.config.types import describe

    lines = [f"{entry.family} {entry.name}", f"  {entry.doc}"]
    for parameter in entry.parameters:
        default = "required" if parameter.required else f"default {show(parameter.default)}"
        lines += ["", f"  {parameter.name}: {describe(parameter.spec)}; {default}"]
        lines += [f"      {parameter.doc}"] if parameter.doc else []
    if entry.runtime:
        lines += ["", f"  given at run time: {', '.join(entry.runtime)}"]
    if entry.renamed:
        lines += ["", f"  old names: {', '.join(f'{old} (now {new})' for old, new in entry.renamed.items())}"]
    return lines
