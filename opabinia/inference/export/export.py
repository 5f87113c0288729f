"""The work of ``opabinia export``: write a trained model, read it back and compare it with the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from rich.console import Console

from opabinia.config import ConfigError, Problem
from opabinia.inference.export.description import describe
from opabinia.inference.export.files import check_onnx_libraries, write_file
from opabinia.inference.export.hugging_face import write_layout
from opabinia.inference.export.job import ExportJob
from opabinia.inference.export.samples import select_samples
from opabinia.inference.load import load
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import logging_to
from opabinia.runtime.progress import progress_bar
from opabinia.training.run_folder import chosen_checkpoint, resolve
from opabinia.training.trained_model import Weights

Form = Literal["onnx", "torch", "huggingface"]
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
    weights: Weights | None = None,
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
        weights: likewise.

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
        predictor = load(run, overrides, checkpoint=str(folder), weights=weights, device="cpu")
        resolved = resolve(run, overrides)
        samples, origin = select_samples(resolved, predictor, COMPARED)
    module = predictor.task.export_module()
    try:
        if form != "huggingface":
            module.check_static()
        inputs = module.inputs(samples)
    except ValueError as error:
        raise ConfigError(Problem("", "", str(error))) from error
    job = ExportJob(module, inputs, describe(run, folder, resolved, predictor, inputs["image"]))
    with disk_errors(path), torch.no_grad(), progress_bar(f"export {form}", 2, unit="steps") as bar:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".", dir=path.parent) as temporary_folder:
            temporary = Path(temporary_folder) / path.name
            if form == "huggingface":
                lines = write_layout(temporary, run, resolved.config, job, tolerance)
            else:
                lines = write_file(form, temporary, job, tolerance, origin, bar)
            bar.update(2)
            temporary.rename(path)
    size = sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())
    Console(highlight=False).print(f"{path} ({size / 1e6:.1f} MB)", *lines, sep="\n", soft_wrap=True)
    return path
