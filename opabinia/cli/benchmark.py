"""``opabinia benchmark``"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.options import Nproc, Overrides
from opabinia.cli.processes import layout, run_in_many
from opabinia.inference.serving.address import is_exported

RecipeOrExported = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="A recipe as in `train`, or an exported model (.onnx, .pte, .tflite, .xml)."),
]
STEPS = 30
"""Measured steps, unless --steps gives another number."""
SMALLEST, LARGEST = 2**30, 2**40
"""Bytes of the smallest and the largest memory of a GPU that --device-memory takes."""


def benchmark(
    recipe: RecipeOrExported,
    overrides: Overrides = None,
    steps: Annotated[
        int | None, typer.Option(min=2, show_default="30", help="Steps to measure, after some warm-up steps.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Also write the numbers to this file.")] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Predict the memory of a training step on a GPU; none is needed.")
    ] = False,
    device_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="With --memory: a GPU's memory, such as 24GiB.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="With --memory: fp32, bf16 or fp16, in place of train.precision.")
    ] = None,
    nproc: Nproc = None,
) -> None:
    """Measure training throughput, its bottleneck and memory on this machine. Nothing of the run is kept.

    An exported model (.onnx, .pte, .tflite, model.xml) is measured, too: latency, throughput, stages and memory.

    With --memory nothing is measured: the memory of a training step on a GPU is predicted, and the largest batch that
    fits.

    opabinia benchmark classification/digits

    opabinia benchmark classification/digits data.num_workers=4 train.precision=bf16 --steps 100 --json

    opabinia benchmark classification/digits --nproc 2 --out digits.json

    opabinia benchmark runs/classification/digits/default/export/model.onnx

    opabinia benchmark classification/digits --memory --device-memory 24GiB --precision bf16
    """
    with report_errors():
        ranks = layout(nproc, None, None, None, max_restarts=0)
        from opabinia.config import catalog, check, compose
        from opabinia.config.paths import check_paths

        if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
            raise option_error("--out", f"{out} is not a file in an existing folder")
        sizes = device_sizes(device_memory)
        if not memory and (device_memory is not None or precision is not None):
            option = "--precision" if device_memory is None else "--device-memory"
            raise option_error(option, "belongs to --memory, which predicts the memory of a step")
        for option, value in {"--steps": steps, "--nproc": nproc}.items() if memory else ():
            if value is not None:
                raise option_error(option, "measures; with --memory nothing is: remove it")
        if precision is not None:
            overrides = [*(overrides or []), f"train.precision={precision}"]
        if is_exported(Path(recipe)):
            training_only = {"--memory": memory, "--steps": steps, "--nproc": nproc}
            show(_measured_export(Path(recipe), overrides or [], training_only), as_json, out)
            return
        tree = compose(recipe, overrides or [])
        parts = catalog(tree.plugins)
        check_paths(check(tree, parts), parts)
        if memory:
            from opabinia.training.memory_prediction import predict_memory

            show(predict_memory(recipe, overrides or [], device_memory=sizes), as_json, out)
            return
        words = [*(["--json"] if as_json else []), *(["--out", str(out)] if out else [])]
        run_in_many(ranks, ["benchmark", recipe, *(overrides or []), "--steps", str(steps or STEPS), *words])
        from opabinia.runtime.slurm import launched_rank
        from opabinia.training.benchmark import benchmark as run_benchmark

        result = run_benchmark(recipe, overrides or [], steps=steps or STEPS)
        if launched_rank(os.environ):
            return
        show(result, as_json, out)


def _measured_export(path: Path, overrides: Sequence[str], training_only: Mapping[str, object]) -> dict[str, Any]:
    """Measure an exported model.

    Args:
        path: the file, or OpenVINO's folder.
        overrides: must be empty: there is no config.
        training_only: options about training by name, which must not be given.
    """
    given = [*overrides, *(name for name, value in training_only.items() if value)]
    if given:
        raise option_error(given[0], f"{path} is an exported model, whose graph is measured: remove it")
    from opabinia.inference.export.benchmark import benchmark_export

    return benchmark_export(path)


def device_sizes(size: str | None) -> list[int]:
    """Return the bytes of common GPUs and of this one.

    Raises:
        ConfigError: it is not a size, or not one of a GPU.
    """
    sizes = {gib * 2**30 for gib in (8, 16, 24, 48, 80)}
    return sorted(sizes if size is None else sizes | {device_bytes(size)})


def device_bytes(size: str) -> int:
    """Return the bytes of a GPU's memory, such as ``24GiB``.

    Raises:
        ConfigError: it is not a size, or not one of a GPU.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        given = int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        given = 0
    if not SMALLEST <= given <= LARGEST:
        message = f"{size!r} is no memory of a GPU; expected a number and a unit, such as 24GiB, from 1GiB to 1TiB"
        raise option_error("--device-memory", message)
    return given


def show(result: Mapping[str, Any], as_json: bool, out: Path | None) -> None:
    """Print a result as a table or as JSON, and write it to the file ``out``."""
    import json

    from opabinia.cli.tables import print_benchmark, print_export_benchmark, print_memory
    from opabinia.runtime.files import write_atomic

    text = json.dumps(result, indent=1)
    if out is not None:
        write_atomic(out, text + "\n")
    if as_json:
        print(text)
    elif "runtime" in result:
        print_export_benchmark(result)
    elif "largest_batch" in result:
        print_memory(result)
    else:
        print_benchmark(result)
