"""Models as single files: ONNX, and torch.export's .pt2; each is read back and compared with the original."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from opabinia.config import ConfigError, Problem
from opabinia.inference.export.description import Description
from opabinia.inference.export.exported_task import ExportedTask
from opabinia.inference.export.job import ExportJob, check_difference
from opabinia.runtime.progress import PhaseBar

DESCRIPTION = "opabinia.json"
"""Name of the file in a .pt2 that has the description."""


def check_onnx_libraries() -> None:
    """Check for the libraries that ONNX needs, before anything is computed.

    Raises:
        ConfigError: one is missing.
    """
    for name in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(name) is None:
            message = f"ONNX needs {name}: pip install 'opabinia[export]'"
            raise ConfigError(Problem("command line", "--format", message))


def write_file(
    form: Literal["onnx", "torch"], path: Path, job: ExportJob, tolerance: float, origin: str, bar: PhaseBar
) -> list[str]:
    """Write the graph for any number of samples, read it back and compare it; return lines to print.

    Args:
        form: of the file.
        path: of the file.
        job: the model, with inputs of two samples or more: torch would take a batch size of one for a constant.
        tolerance: see :func:`opabinia.inference.export.export`.
        origin: description of the inputs.
        bar: moved when the file is written.

    Raises:
        ExportMismatch: the model that was read back differs by more.
    """
    expected = job.module.expected(job.inputs)
    batch = Dim("batch", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch and onnxscript warn their own developers here
        program = torch.export.export(
            job.module.eval(), (), dict(job.inputs), dynamic_shapes={name: {0: batch} for name in job.inputs}
        )
        if form == "onnx":
            _write_onnx(path, program, job.description, list(expected))
        else:
            text = json.dumps(job.description.metadata(), ensure_ascii=False, indent=1)
            torch.export.save(program, path, extra_files={DESCRIPTION: text})
    bar.advance()
    run: Callable[..., Mapping[str, Tensor]]
    if form == "onnx":
        reader, run = f"onnxruntime {metadata.version('onnxruntime')}", ExportedTask(path).run
    else:
        reader, run = f"torch {torch.__version__}", torch.export.load(path).module()
    sizes = (1, len(job.inputs["image"]))
    difference = max(job.module.difference(_first(expected, size), run(**_first(job.inputs, size))) for size in sizes)
    check_difference(difference, tolerance, reader)
    return [
        *(_shape_line("inputs", job.inputs), _shape_line("outputs", expected)),
        f"{reader} and the original on {origin}, in batches of {sizes[0]} and {sizes[1]}: largest difference "
        f"{difference:.1e} (at most {tolerance:.0e})",
    ]


def _write_onnx(path: Path, program: ExportedProgram, description: Description, outputs: list[str]) -> None:
    """Write an ONNX file, with the description among its properties (``metadata_props``)."""
    exported: Any = torch.onnx.export(program, dynamo=True, output_names=outputs, verbose=False)
    exported.model.producer_name, exported.model.producer_version = "opabinia", description.version
    exported.model.metadata_props.update(description.metadata())
    exported.save(path, external_data=False)


def _first(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    return {name: value[:count] for name, value in tensors.items()}


def _shape_line(kind: str, tensors: Mapping[str, Tensor]) -> str:
    shapes = (
        f"{name} ({str(value.dtype).removeprefix('torch.')}, {' x '.join(map(str, ['batch', *value.shape[1:]]))})"
        for name, value in tensors.items()
    )
    return f"{kind}: {', '.join(shapes)}"
