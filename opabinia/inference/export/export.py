"""What the export command does."""

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
    Ask,
    read_onnx,
    read_torch,
    reader,
    refuse_missing_onnx,
    traced,
    write_onnx,
    write_torch,
)
from opabinia.inference.export.hugging_face import write_layout
from opabinia.inference.export.job import Job, refuse_different
from opabinia.inference.export.samples import chosen
from opabinia.inference.export.wrapper import inference_of
from opabinia.inference.load import load
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import logging_to
from opabinia.training.run_folder import chosen_checkpoint, resolve

Form = Literal["onnx", "torch", "huggingface"]
FORMATS: tuple[Form, ...] = get_args(Form)
NAMES: Mapping[Form, str] = {"onnx": "model.onnx", "torch": "model.pt2", "huggingface": "hugging_face"}

COMPARED = 8
"""Samples that a model is compared on."""


def export(
    run: Path,
    out: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    form: Form = "onnx",
    tolerance: float = 1e-4,
    checkpoint: str = "best",
) -> Path:
    """Write a run's model for use elsewhere, read it back, compare it with the original, and only then put it in place.

    ``onnx`` and ``torch`` give one file: the function from images, as the validation data's transforms make them, to
    predictions by name, for any number of samples. ``huggingface`` gives a folder: weights, config, model card.

    Args:
        run: the run folder.
        out: what is written; it may not exist yet. None: ``export/model.onnx`` (and so on) in the run folder.
        overrides: ``key=value`` of the run's config.
        form: see above.
        tolerance: the largest difference that is allowed, as a share of the largest number of an output where that is
            above 1.
        checkpoint: see :func:`opabinia.load`.

    Returns:
        what was written.

    Raises:
        ConfigError: there is no such run or checkpoint, ``out`` is there already, a library is missing, or the task
            cannot be exported in this format.
        Different: the model that was read back differs from the original by more.
    """
    path = out or run / "export" / NAMES[form]
    if path.exists():
        raise ConfigError(Problem("command line", "--out", f"{path} is there already; remove it, or say where else"))
    if form == "onnx":
        refuse_missing_onnx()
    folder = chosen_checkpoint(run, checkpoint)
    with logging_to(None):
        predictor = load(run, overrides, checkpoint=str(folder), device="cpu")
        resolved = resolve(run, overrides)
        found = chosen(resolved, predictor, COMPARED)
    inference = inference_of(predictor.task)
    try:
        if form != "huggingface":
            inference.refuse_dynamic()
        inputs = inference.inputs(found.samples)
    except ValueError as error:
        raise ConfigError(Problem("", "", str(error))) from error
    job = Job(inference, inputs, describe(run, folder, resolved, predictor, inputs["image"]))
    console = Console(highlight=False)
    with disk_errors(path), torch.no_grad(), _aside(path) as place:
        if form == "huggingface":
            lines = write_layout(place, run, resolved.config, job, tolerance)
        else:
            lines = _write_file(form, place, job, tolerance, found.source)
    console.print(f"{path} ({_size(path) / 1e6:.1f} MB)", *lines, sep="\n", soft_wrap=True)
    return path


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """Another name beside ``path``, for a file or folder that gets its own when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.with_name(f".{os.getpid()}.{path.name}")  # its ending stays
    try:
        yield place
        place.rename(path)
    finally:
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())


def _write_file(form: Form, path: Path, job: Job, tolerance: float, source: str) -> list[str]:
    """Write the graph, read it back and compare it; what to tell of it."""
    original = job.inference.original(job.inputs)
    program = traced(job.inference, job.inputs)
    if form == "onnx":
        write_onnx(path, program, job.description, list(original))
    else:
        write_torch(path, program, job.description)
    ask = (read_onnx if form == "onnx" else read_torch)(path)
    sizes = (1, len(job.inputs["image"]))
    difference = max(_compared(job, original, ask, size) for size in sizes)
    refuse_different(difference, tolerance, reader(form))
    return [
        *(_shape_line("takes", job.inputs), _shape_line("gives", original)),
        f"{reader(form)} and the original on {source}, in batches of {sizes[0]} and {sizes[1]}: largest difference "
        f"{difference:.1e} (at most {tolerance:.0e})",
    ]


def _compared(job: Job, original: Mapping[str, Tensor], ask: Ask, size: int) -> float:
    """The largest difference over the first batch of so many samples."""
    return job.inference.difference(_first(original, size), ask(_first(job.inputs, size)))


def _first(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    return {name: value[:count] for name, value in tensors.items()}


def _shape_line(verb: str, tensors: Mapping[str, Tensor]) -> str:
    named = (
        f"{name} ({str(value.dtype).removeprefix('torch.')}, {' x '.join(map(str, ['batch', *value.shape[1:]]))})"
        for name, value in tensors.items()
    )
    return f"{verb} {', '.join(named)}"
