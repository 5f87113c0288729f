"""Models as single files: ONNX, and torch.export's .pt2. Each is read back from the disk, and asked."""

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
from opabinia.inference.export.description import Description
from opabinia.inference.export.wrapper import Inference

Ask = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""From inputs by name to what a model that was read back says of them, by name."""

DESCRIPTION = "opabinia.json"
"""Name of the file in a .pt2 that has the description."""


def refuse_missing_onnx() -> None:
    """Tell what ONNX needs, before anything is computed.

    Raises:
        ConfigError: some of it is missing.
    """
    for name in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(name) is None:
            message = f"ONNX needs {name}: pip install 'opabinia[onnx]'"
            raise ConfigError(Problem("command line", "--format", message))


def traced(inference: Inference, inputs: Mapping[str, Tensor]) -> ExportedProgram:
    """The graph of what is exported, for any number of samples.

    Args:
        inference: what is exported.
        inputs: two samples or more: with one torch would take the number for a constant.
    """
    batch = Dim("batch", min=1)
    shapes = {name: {0: batch} for name in inputs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own making, for its own developers
        return torch.export.export(inference.eval(), (), dict(inputs), dynamic_shapes=shapes)


def write_torch(path: Path, program: ExportedProgram, description: Description) -> None:
    """Write a .pt2, with the description in it."""
    said = json.dumps(description.metadata(), ensure_ascii=False, indent=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own making
        torch.export.save(program, path, extra_files={DESCRIPTION: said})


def read_torch(path: Path) -> Ask:
    """A .pt2 from the disk."""
    module = torch.export.load(path).module()

    def ask(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        with torch.no_grad():
            said: Mapping[str, Tensor] = module(**inputs)
        return said

    return ask


def write_onnx(path: Path, program: ExportedProgram, description: Description, outputs: list[str]) -> None:
    """Write an ONNX file, with the description among its properties (``metadata_props``).

    Args:
        path: of the file.
        program: what is written.
        description: goes along.
        outputs: names of what the program gives, in its order.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's and onnxscript's own making
        made: Any = torch.onnx.export(program, dynamo=True, output_names=outputs, verbose=False)
    made.model.producer_name, made.model.producer_version = "opabinia", description.version
    made.model.metadata_props.update(description.metadata())
    made.save(path, external_data=False)


def read_onnx(path: Path) -> Ask:
    """An ONNX file from the disk, in onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]

    def ask(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        said = session.run(names, {name: value.numpy() for name, value in inputs.items()})
        return {name: torch.from_numpy(value) for name, value in zip(names, said, strict=True)}

    return ask


def reader(form: str) -> str:
    """What reads a format, with its version, for people."""
    return f"onnxruntime {metadata.version('onnxruntime')}" if form == "onnx" else f"torch {torch.__version__}"
