"""``opabinia data``: check datasets and labels, select images to label, and pack videos."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opabinia.cli import label_errors
from opabinia.cli import select as selection
from opabinia.cli.errors import leave, option_error, report_errors
from opabinia.cli.options import Overrides, Recipe
from opabinia.runtime.text import plural

if TYPE_CHECKING:
    from opabinia.contracts import Source
    from opabinia.data.check import DataReport

app = typer.Typer(no_args_is_help=True)


@app.command()
def check(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write an HTML page with the images concerned.")
    ] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all findings as JSON; - prints them.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of samples to read of each dataset, drawn with --seed.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --limit.")] = 0,
    near: Annotated[
        int, typer.Option(min=0, max=12, help="Bits of 64 that may differ between hashes of near-duplicate images.")
    ] = 4,
    workers: Annotated[int | None, typer.Option(min=0, help="Loader processes; default: the number of cores.")] = None,
) -> None:
    """Check the datasets of a recipe: broken files and annotations, duplicates, leaks between splits, and statistics.

    Every image is decoded, and the first, middle and last frame of every video. Exit status 0: no findings; 2: some.
    Ctrl-C reports the findings so far (130).

    opabinia data check detection/coco_format vars.root=data/bccd --out bccd.html
    """
    with report_errors():
        from rich.console import Console

        from opabinia.data.check import run_checks
        from opabinia.data.check.terminal import print_report
        from opabinia.runtime.resources import cores

        sources = _sources(_parts(recipe, overrides or [], lenient=True))
        workers = cores() if workers is None else workers
        workers = 0 if workers == 1 else workers  # a single worker is no faster than none
        report = run_checks(sources, near=near, limit=limit, seed=seed, workers=workers)
        if as_json is None or str(as_json) != "-":
            print_report(report, Console(highlight=False))
        _write(report, recipe, out, as_json)
        if report.stopped:
            raise KeyboardInterrupt
        if report.error_count:
            leave(2, f"{recipe}: {report.error_count} {'error' if report.error_count == 1 else 'errors'} in the data")


app.command()(label_errors.labels)
app.command()(selection.select)


@app.command()
def pack(
    recipe: Recipe,
    out: Annotated[Path, typer.Option(help="The output folder.")],
    overrides: Overrides = None,
    section: Annotated[str, typer.Option(help="train, or the prefix of a validation set.")] = "train",
    size: Annotated[int | None, typer.Option(min=1, help="Shrink frames to this shorter side in pixels.")] = None,
    quality: Annotated[int, typer.Option(min=1, max=95, help="JPEG quality.")] = 90,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; default: the number of cores.")] = None,
) -> None:
    """Convert the videos of a recipe to JPEG frames in tar files: faster to read, larger on disk.

    The source packed_videos reads them. After an interruption the same command resumes. A video that cannot be read
    is an error, or is skipped with data.on_error=skip.

    opabinia data pack kinetics.yaml --section train --out kinetics/train_256 --size 256
    """
    with report_errors():
        from opabinia.data.decoding.pack import pack as write
        from opabinia.runtime.log import logging_to

        parts = _parts(recipe, overrides or [])
        sources, data = _sources(parts), parts["data"]
        if section not in sources:
            raise option_error("--section", f"there is no {section!r}; there is {', '.join(sources)}")
        threads, skip = workers or os.cpu_count() or 1, data.on_error == "skip"
        with logging_to(None):
            done = write(sources[section], out, size=size, quality=quality, workers=threads, skip=skip)
        skipped = f", {done.skipped} skipped" if done.skipped else ""
        print(f"{plural(done.videos, 'video')}, {plural(done.frames, 'frame')}, {done.bytes / 1e6:.1f} MB{skipped}")
        print(f"source: {{name: packed_videos, root: {out}}}")


@app.command()
def refresh(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://BUCKET/FOLDER, gs://..., az://...")],
) -> None:
    """List a folder of remote storage again; print the number of objects.

    A folder is listed once, when it is first used. Local copies of objects that have changed or are gone are removed;
    the others stay.

    opabinia data refresh s3://bucket/photos
    """
    with report_errors():
        from opabinia.runtime.local_copies import refresh as list_again
        from opabinia.runtime.storage import local_path

        print(f"{plural(list_again(url), 'object')} in {local_path(url)}")


def _parts(recipe: str, overrides: list[str], *, lenient: bool = False) -> Mapping[str, Any]:
    """Return the parts of a recipe, which may lack the sections that only a training needs; ``lenient``: without broken
    annotations."""
    from opabinia.config import compose, flatten
    from opabinia.runtime.log import silence
    from opabinia.training.run_folder import build_parts, resolve, with_values

    unused = {"optimizer": "sgd", "train.length": "1ep", "data.batch_size": "1"}
    given = flatten(compose(recipe, overrides).root.plain())
    absent = [key for key in unused if not any(f"{name}.".startswith(f"{key}.") for name in given)]
    resolved = resolve(recipe, [*(f"{key}={unused[key]}" for key in absent), *overrides])
    config = with_values(resolved.config, batch_size=1, num_workers=0, augment_on="workers")  # unused here
    config = {**config, "data": _lenient(config["data"]), "task": _lenient(config["task"])} if lenient else config
    # The sources warn of what they drop; here it is reported once, and completely.
    with silence() if lenient else nullcontext():
        return build_parts(replace(resolved, config=config)).keywords


def _sources(parts: Mapping[str, Any]) -> dict[str, Source]:
    """Return the datasets by name; those of a multi-task run are ``NAME/train`` and ``NAME/val``."""
    from opabinia.training.streams import training_streams

    streams = training_streams(parts["task"], parts["data"])
    training = {f"{name}/train" if name else "train": stream.source for name, stream in streams.items()}
    return {**training, **{stream.prefix: stream.source for stream in parts["data"].validation}}


def _lenient(section: Any) -> Any:
    """Return a section in which every source drops broken annotations."""
    if isinstance(section, Mapping):
        return {key: "drop" if key == "broken" else _lenient(value) for key, value in section.items()}
    return [_lenient(item) for item in section] if isinstance(section, list | tuple) else section


def _write(report: DataReport, recipe: str, out: Path | None, as_json: Path | None) -> None:
    """Write the HTML page and the JSON file."""
    from opabinia.data.check.page import write_page
    from opabinia.runtime.files import write_atomic

    if as_json is not None:
        text = json.dumps(report.to_json(), indent=1)
        if str(as_json) == "-":
            print(text)
        else:
            write_atomic(as_json, text + "\n")
            typer.echo(f"the findings are in {as_json}", err=True)
    if out is not None:
        write_page(report, out, recipe)
        typer.echo(f"the page is in {out}", err=True)
