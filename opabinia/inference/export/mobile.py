"""Graphs for phones and small devices: ExecuTorch's .pte and LiteRT's .tflite, for one sample."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from torch import Tensor
from torch.export import ExportedProgram

from opabinia.config import ConfigError, Problem
from opabinia.contracts import ExportModule
from opabinia.inference.export.description import Description
from opabinia.inference.export.runtimes import DESCRIPTION


def write_executorch(
    path: Path, program: ExportedProgram, inputs: Mapping[str, Tensor], outputs: Sequence[str], about: Description
) -> None:
    """Write a ``.pte``: what XNNPACK computes is delegated to it, the rest runs in ExecuTorch's own operators.

    Args:
        path: the file.
        program: the graph.
        inputs: a sample.
        outputs: names of the outputs.
        about: written as the result of a second method, ``opabinia``.

    Raises:
        ConfigError: the graph has an operator that ExecuTorch lacks.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    constants = {"opabinia": _metadata(inputs, outputs, about)}
    try:
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()], constant_methods=constants)
        content = edge.to_executorch().buffer
    except Exception as error:  # of many types, deep in the library
        raise _unsupported("ExecuTorch", error) from error
    path.write_bytes(content)


def write_litert(
    path: Path, module: ExportModule, inputs: Mapping[str, Tensor], outputs: Sequence[str], about: Description
) -> None:
    """Write a ``.tflite``, with the description in a zip archive at its end, where LiteRT's metadata are.

    Args:
        path: the file.
        module: the function.
        inputs: a sample.
        outputs: names of the outputs.
        about: the description.

    Raises:
        ConfigError: the graph has an operator that LiteRT lacks.
    """
    import litert_torch

    try:
        with redirect_stdout(StringIO()):  # it prints its progress
            litert_torch.convert(module.eval(), sample_kwargs=dict(inputs)).export(str(path))
    except Exception as error:  # as above
        raise _unsupported("LiteRT", error) from error
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(DESCRIPTION, _metadata(inputs, outputs, about))


def _metadata(inputs: Mapping[str, Tensor], outputs: Sequence[str], about: Description) -> str:
    """Return the metadata as JSON, with what these formats do not have: the names of inputs and outputs."""
    shapes = json.dumps({name: list(value.shape) for name, value in inputs.items()})
    return json.dumps({**about.metadata(), "inputs": shapes, "outputs": json.dumps(list(outputs))})


def _unsupported(title: str, error: BaseException) -> ConfigError:
    while error.__cause__ is not None:
        error = error.__cause__
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    message = f"{title} cannot take this model: {reason[:300]}"
    return ConfigError(Problem("command line", "--format", message, allowed="--format onnx takes every task"))
