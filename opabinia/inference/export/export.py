"""The work of ``opabinia export``: write a trained model, read it back and compare it with the original."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

import torch
from rich.console import Console
from torch import Tensor

from opabinia.config import ConfigError, Problem
from opabinia.inference.export.description import describe
from opabinia.inference.export.files import (
    check_onnx_libraries,
    read_onnx,
    read_torch,
    reader_name,
    trace,
    write_onnx,
    write_torch,
)
from opabinia.inference.export.hugging_face import write_layout
from opabinia.inference.export.job import ExportJob, check_difference
from opabinia.inference.export.samples import select_samples
from opabinia.inference.load import load
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import logging_to
from opabinia.training.run_folder import chosen_checkpoint, resolve

Form = Literal["onnx", "torch", "huggingface"]
FORMATS: tuple[Form, ...] = get_args(Form)
NAMES: Mapping[Form, str] = {"onnx": "model.onnx", "torch": "model.pt2", "huggingface": "hugging_face"}

COMPARED = 8
"""Number of samples on which models are compared."""


def export(
    run: Path,
    out: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    form: Form = "onnx",
    tolerance: float = 1e-4,
    checkpoint: str = "best",
) -> Path:
    """Write a run's model for use elsewhere, read it back, compare it with the original, and then put it in place.

    ``onnx`` and ``torch`` write one file: the function from images, as the validation transforms give them, to
    predictions by name (:meth:`opabinia.contracts.Task.export_module`), for any number of samples. ``huggingface``
    writes a folder: weights, config, model card.

    Args:
        run: the run folder.
        out: the file or folder to write, which must not exist; None: ``export/model.onnx`` (and so on) in the run
            folder.
        overrides: ``key=value`` of the run's config.
        form: see above.
        tolerance: largest allowed difference, relative to the largest magnitude of an output where that is above 1.
        checkpoint: see :func:`opabinia.load`.

    Returns:
        the path that was written.

    Raises:
        ConfigError: there is no such run or checkpoint, ``out`` exists, a library is missing, or the task cannot be
            exported in this format.
        ExportMismatch: the model that was read back differs from the original by more.
    """
    path = out or run / "export" / NAMES[form]
    if path.exists():
        raise ConfigError(Problem("command line", "--out", f"{path} exists already; remove it, or give another path"))
    if form == "onnx":
        check_onnx_libraries()
    folder = chosen_checkpoint(run, checkpoint)
    with logging_to(None):
        predictor = load(run, overrides, checkpoint=str(folder), device="cpu")
        resolved = resolve(run, overrides)
        selected = select_samples(resolved, predictor, COMPARED)
    module = predictor.task.export_module()
    try:
        if form != "huggingface":
            module.check_static()
        inputs = module.inputs(selected.samples)
    except ValueError as error:
        raise ConfigError(Problem("", "", str(error))) from error
    job = ExportJob(module, inputs, describe(run, folder, resolved, predictor, inputs["image"]))
    console = Console(highlight=False)
    with disk_errors(path), torch.no_grad(), _temporary_path(path) as temporary:
        if form == "huggingface":
            lines = write_layout(temporary, run, resolved.config, job, tolerance)
        else:
            lines = _write_file(form, temporary, job, tolerance, selected.origin)
    console.print(f"{path} ({_size(path) / 1e6:.1f} MB)", *lines, sep="\n", soft_wrap=True)
    return path


@contextmanager
def _temporary_path(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` that is renamed to it if the block succeeds, and otherwise deleted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.{path.name}")  # keeps the suffix
    try:
        yield temporary
        temporary.rename(path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())


def _write_file(form: Form, path: Path, job: ExportJob, tolerance: float, origin: str) -> list[str]:
    """Write the graph, read it back and compare it; return lines to print."""
    expected = job.module.expected(job.inputs)
    program = trace(job.module, job.inputs)
    if form == "onnx":
        write_onnx(path, program, job.description, list(expected))
    else:
        write_torch(path, program, job.description)
    run = (read_onnx if form == "onnx" else read_torch)(path)
    sizes = (1, len(job.inputs["image"]))
    difference = max(job.module.difference(_first(expected, size), run(_first(job.inputs, size))) for size in sizes)
    check_difference(difference, tolerance, reader_name(form))
    return [
        *(_shape_line("inputs", job.inputs), _shape_line("outputs", expected)),
        f"{reader_name(form)} and the original on {origin}, in batches of {sizes[0]} and {sizes[1]}: largest "
        f"difference {difference:.1e} (at most {tolerance:.0e})",
    ]


def _first(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    return {name: value[:count] for name, value in tensors.items()}


def _shape_line(kind: str, tensors: Mapping[str, Tensor]) -> str:
    shapes = (
        f"{name} ({str(value.dtype).removeprefix('torch.')}, {' x '.join(map(str, ['batch', *value.shape[1:]]))})"
        for name, value in tensors.items()
    )
    return f"{kind}: {', '.join(shapes)}"
