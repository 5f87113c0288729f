"""Models as single files: ONNX, and torch.export's .pt2. Each can be read back and run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from opabinia.config import ConfigError, Problem
from opabinia.contracts import ExportModule
from opabinia.inference.export.description import Description

Run = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Maps inputs by name to the outputs of a model that was read back, by name."""

DESCRIPTION = "opabinia.json"
"""Name of the file in a .pt2 that has the description."""


def check_onnx_libraries() -> None:
    """Check for the libraries that ONNX needs, before anything is computed.

    Raises:
        ConfigError: one is missing.
    """
    for name in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(name) is None:
            message = f"ONNX needs {name}: pip install 'opabinia[onnx]'"
            raise ConfigError(Problem("command line", "--format", message))


def trace(module: ExportModule, inputs: Mapping[str, Tensor]) -> ExportedProgram:
    """Return the graph of a module, for any number of samples.

    Args:
        module: the function of tensors.
        inputs: two samples or more: torch would take a batch size of one for a constant.
    """
    batch = Dim("batch", min=1)
    shapes = {name: {0: batch} for name in inputs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns its own developers here
        return torch.export.export(module.eval(), (), dict(inputs), dynamic_shapes=shapes)


def write_torch(path: Path, program: ExportedProgram, description: Description) -> None:
    """Write a .pt2 with the description in it."""
    text = json.dumps(description.metadata(), ensure_ascii=False, indent=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # see trace()
        torch.export.save(program, path, extra_files={DESCRIPTION: text})


def read_torch(path: Path) -> Run:
    """Read a .pt2."""
    module = torch.export.load(path).module()

    def run(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        with torch.no_grad():
            outputs: Mapping[str, Tensor] = module(**inputs)
        return outputs

    return run


def write_onnx(path: Path, program: ExportedProgram, description: Description, outputs: list[str]) -> None:
    """Write an ONNX file, with the description among its properties (``metadata_props``).

    Args:
        path: of the file.
        program: the graph.
        description: of the model.
        outputs: names of the program's outputs, in its order.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch and onnxscript warn their own developers here
        exported: Any = torch.onnx.export(program, dynamo=True, output_names=outputs, verbose=False)
    exported.model.producer_name, exported.model.producer_version = "opabinia", description.version
    exported.model.metadata_props.update(description.metadata())
    exported.save(path, external_data=False)


def read_onnx(path: Path) -> Run:
    """Read an ONNX file with onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        outputs = session.run(names, {name: value.numpy() for name, value in inputs.items()})
        return {name: torch.from_numpy(value) for name, value in zip(names, outputs, strict=True)}

    return run


def reader_name(form: str) -> str:
    """Return name and version of the library that reads a format."""
    return f"onnxruntime {metadata.version('onnxruntime')}" if form == "onnx" else f"torch {torch.__version__}"
