"""The layers that INT8 should leave in FP32: ranked by the error of each one alone, as few as an evaluation needs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from torch import Tensor

from opabinia.inference.export.precision import excluded_nodes, layer_names, output_layers, write_int8
from opabinia.inference.export.runtimes import OnnxRuntime
from opabinia.runtime.progress import progress_bar

INPUTS = 8
"""Number of calibration inputs on which layers are compared."""


def rank_layers(source: Path, patterns: Sequence[str], inputs: Sequence[Mapping[str, Tensor]]) -> list[str]:
    """Return the modules that INT8 quantizes, the most sensitive first.

    The sensitivity of a module is the error of the graph with only this module in INT8, at the outputs of the last
    layers (before post-processing): the norm of the difference from FP32, divided by that of the deviations from the
    mean. If there are several, the smallest error counts: scores of one may select the regions or queries that the
    others get, in another order. onnxruntime's ``qdq_loss_debug`` compares the tensors of each layer by themselves;
    large values among them hide that INT8 has rounded the others to zero.

    Args:
        source: the FP32 file.
        patterns: see :func:`opabinia.inference.export.precision.excluded_nodes`.
        inputs: inputs of the graph; the first :data:`INPUTS` are used.
    """
    excluded, names = {*excluded_nodes(source, patterns)}, layer_names(source)
    modules = list(dict.fromkeys(name for node, name in names.items() if node not in excluded))
    errors: dict[str, float] = {}
    with TemporaryDirectory() as folder, progress_bar("INT8 layer by layer", len(modules), unit="layers") as bar:
        probe, quantized = Path(folder) / "probe.onnx", Path(folder) / "int8.onnx"
        outputs = _write_probe(source, probe)
        expected = _values(probe, outputs, inputs[:INPUTS])
        for module in bar.track(modules):
            others = [name for name in modules if name != module]
            write_int8(probe, quantized, [*patterns, *others], inputs[:INPUTS])
            actual = _values(quantized, outputs, inputs[:INPUTS])
            changed = filter(None, map(_error, expected, actual))
            errors[module] = min(changed, default=0.0)
    return sorted(modules, key=errors.__getitem__, reverse=True)


def _write_probe(source: Path, target: Path) -> list[str]:
    """Write a graph with the outputs of its last layers as further outputs, and return their names."""
    import onnx

    model, last, names = onnx.load(source), set(output_layers(source)), layer_names(source)
    outputs = [node.output[0] for node in model.graph.node if names.get(node.name) in last]
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs if name not in known)
    onnx.save(model, target)
    return outputs


def _values(path: Path, names: Sequence[str], inputs: Sequence[Mapping[str, Tensor]]) -> list[np.ndarray]:
    """Return these outputs of a graph, each for all inputs in one row."""
    runtime = OnnxRuntime(path)
    positions = [runtime.outputs.index(name) for name in names]
    rows = [runtime({name: value.numpy() for name, value in item.items()}) for item in inputs]
    return [np.concatenate([row[position].ravel() for row in rows]) for position in positions]


def _error(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the norm of the difference, relative to that of the deviations from the mean."""
    scale = float(np.linalg.norm(expected - expected.mean()))
    return float(np.linalg.norm(actual - expected)) / max(scale, 1e-12)


def smallest_number(most: int, is_enough: Callable[[int], bool]) -> int | None:
    """Return the smallest number from 1 to ``most`` that is enough, or None if none is. Numbers are doubled, and then
    bisected, in about 2 log2(most) calls; if a number is enough, all larger ones must be."""
    doubled = sorted({min(2**power, most) for power in range(most.bit_length() + 1)} - {0})
    enough = next(filter(is_enough, doubled), None)
    return enough and bisect_left(range(enough), True, lo=enough // 2 + 1, key=is_enough)
