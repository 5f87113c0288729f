"""ONNX files of reduced precision: FP16, and INT8 by static quantization."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from opabinia.config import ConfigError, Problem

_LAYERS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
_HALF = _LAYERS | {
    *("Add", "AveragePool", "Clip", "Concat", "Div", "Erf", "Expand", "Flatten", "Gelu", "GlobalAveragePool"),
    *("HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "MaxPool", "Mul", "Pad", "Relu"),
    *("Reshape", "Sigmoid", "Slice", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze"),
}
"""Computed in FP16; as in torch's mixed precision, softmax and layer normalization are not."""
_SAMPLERS = {"GridSample", "RoiAlign"}
"""Read features (the first input) at coordinates."""
_SUMS = {"Add", "AveragePool"}
_QUANTIZED = ["Conv", "Gemm", "MatMul", "Add", "MaxPool", "AveragePool", "Relu", "Clip"]


def layer_names(path: Path) -> dict[str, str]:
    """Return the module's name (``backbone.model.conv1``) of each convolution and linear layer by its node in an ONNX
    file, in order."""
    import onnx

    return {node.name: _module(node) for node in onnx.load(path).graph.node if node.op_type in _LAYERS}


def _module(node: Any) -> str:
    """Return the module of a node: that of its weight, or else the innermost one of its scopes."""
    weight = next((name for name in node.input if name.endswith(".weight")), "")
    scopes = re.findall(
        r"'([^']*)'", next((item.value for item in node.metadata_props if item.key.endswith("name_scopes")), "")
    )
    name = weight.removesuffix(".weight") or next(filter(None, reversed(scopes[:-1])), node.name)
    return name.removeprefix("task.")


def excluded_nodes(path: Path, patterns: Sequence[str]) -> list[str]:
    """Return the nodes of an ONNX file that stay in FP32: pre- and post-processing (all whose values do not come from a
    convolution or linear layer, or do not enter another one: scores that select regions do not), coordinates, and the
    layers that a pattern names, with the sums and means of their outputs: a bias, a residual connection.

    Args:
        path: path of the file.
        patterns: patterns of modules (``backbone.model.conv1``, ``head.*``), with ``*`` and ``?``.

    Raises:
        ConfigError: a pattern names no layer.
    """
    import onnx

    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    nodes, names = graph.node, layer_names(path)
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names.values()):
            known = ", ".join(dict.fromkeys(names.values()))
            raise ConfigError(
                Problem("command line", "--exclude", f"no layer is named {pattern!r}", allowed=f"layers: {known}")
            )
    before = _reached(nodes, lambda node: node.input, lambda node: node.output)
    no_features = {item.name for item in graph.value_info if item.type.tensor_type.elem_type != onnx.TensorProto.FLOAT}
    after = _reached(
        list(reversed(nodes)),
        lambda node: node.output,
        lambda node: node.input[:1] if node.op_type in _SAMPLERS else {*node.input} - no_features,
    )
    kept = before & after - _coordinates(graph)
    excluded, tensors = list[str](), set[str]()
    for node in nodes:
        named = any(fnmatch(names.get(node.name, ""), pattern) for pattern in patterns)
        if named or (node.op_type in _SUMS and tensors & {*node.input}):
            tensors |= {*node.output}
            excluded.append(node.name)
        elif node.name not in kept:
            excluded.append(node.name)
    return excluded


def _reached(
    nodes: Sequence[Any], inputs: Callable[[Any], Iterable[str]], outputs: Callable[[Any], Iterable[str]]
) -> set[str]:
    """Return the nodes that are layers or have one before them, in the order given."""
    tensors, found = set[str](), set[str]()
    for node in nodes:
        if node.op_type in _LAYERS or tensors & set(inputs(node)):
            found.add(node.name)
            tensors |= set(outputs(node))
    return found


def _coordinates(graph: Any) -> set[str]:
    """Return the nodes that compute coordinates (tensors with 2 or 4 columns that are no feature maps), or something
    from coordinates, until it enters a layer or samples features."""
    sides = {item.name: [side.dim_value for side in item.type.tensor_type.shape.dim] for item in graph.value_info}
    tensors = {name for name, shape in sides.items() if len(shape) not in (0, 1, 4) and shape[-1] in (2, 4)}
    found = set[str]()
    for node in graph.node:
        if node.op_type not in _LAYERS | _SAMPLERS and tensors & {*node.input, *node.output}:
            found.add(node.name)
            tensors |= set(node.output)
    return found


def output_layers(path: Path) -> list[str]:
    """Return the modules after which there is no other convolution or linear layer."""
    import onnx

    nodes, names, last = onnx.load(path).graph.node, layer_names(path), []
    needed = set[str]()  # tensors that a layer needs
    for node in reversed(nodes):
        follows = needed & set(node.output)
        if node.op_type in _LAYERS and not follows:
            last.append(names[node.name])
        if node.op_type in _LAYERS or follows:
            needed |= set(node.input)
    return list(dict.fromkeys(last))


def write_fp16(source: Path, target: Path, patterns: Sequence[str]) -> None:
    """Write an ONNX file with layers and what is between them in FP16 (:data:`_HALF`), the rest and inputs and outputs
    in FP32.

    Values between two FP32 nodes are never rounded, such as coordinates of boxes in pixels; onnxruntime's converter
    rounds the outputs of all nodes.

    Args:
        source: the FP32 file.
        target: the file to write.
        patterns: see :func:`excluded_nodes`.
    """
    import onnx
    from onnx import TensorProto, numpy_helper

    model = onnx.shape_inference.infer_shapes(onnx.load(source))
    graph, excluded = model.graph, {*excluded_nodes(source, patterns)}
    weights = {item.name: item for item in graph.initializer}
    types = {item.name: item.type.tensor_type.elem_type for item in [*graph.input, *graph.output, *graph.value_info]}
    types |= {name: item.data_type for name, item in weights.items()}
    half = {
        node.name
        for node in graph.node
        if node.op_type in _HALF and node.name not in excluded and all(name in types for name in node.output)
    }
    needed_single = {output.name for output in graph.output}.union(
        *(_inputs_of(node) for node in graph.node if node.name not in half)
    )
    nodes, converted = [], set[str]()
    for node in graph.node:
        if node.name not in half:
            nodes.append(node)
            continue
        for index, name in enumerate(node.input):
            if types.get(name) != TensorProto.FLOAT:
                continue
            node.input[index] = f"{name}_fp16"
            if name in converted:
                continue
            converted.add(name)
            if name in weights:
                values = numpy_helper.to_array(weights[name]).astype("float16")
                graph.initializer.append(numpy_helper.from_array(values, f"{name}_fp16"))
            else:
                nodes.append(_cast(name, f"{name}_fp16", TensorProto.FLOAT16))
        nodes.append(node)
        for index, name in enumerate(node.output):
            if types[name] == TensorProto.FLOAT:
                converted.add(name)
                node.output[index] = f"{name}_fp16"
                if name in needed_single:
                    nodes.append(_cast(f"{name}_fp16", name, TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
    used = set[str]().union(*map(_inputs_of, nodes), (output.name for output in graph.output))
    kept = [item for item in graph.initializer if item.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    onnx.save(model, target)


def _inputs_of(node: Any) -> set[str]:
    """Return the tensors that a node and the graphs in it read."""
    inner = (child for attribute in node.attribute if attribute.HasField("g") for child in attribute.g.node)
    return set(node.input).union(*map(_inputs_of, inner))


def _cast(name: str, target: str, to: int) -> Any:
    from onnx import helper

    return helper.make_node("Cast", [name], [target], to=to, name=f"{target}_cast")


def write_int8(source: Path, target: Path, patterns: Sequence[str], inputs: Iterable[Mapping[str, Tensor]]) -> None:
    """Write an ONNX file with weights (per channel) and activations in INT8, in the QDQ format.

    Weights have 7 bits: with 8, CPUs without VNNI instructions would clamp sums of two products (onnxruntime's
    ``reduce_range``), and the score would depend on the CPU.

    Args:
        source: the FP32 file.
        target: the file to write.
        patterns: see :func:`excluded_nodes`.
        inputs: inputs of the graph, from which the ranges of activations are measured.
    """
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    remaining = iter(inputs)

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            item = next(remaining, None)
            return None if item is None else {name: value.numpy() for name, value in item.items()}

    logging.disable(logging.WARNING)  # it recommends steps that the exporter has done
    try:
        with np.errstate(invalid="ignore"):  # values of post-processing may be infinite; they stay in FP32
            quantize_static(
                *(source, target, Reader()),
                op_types_to_quantize=_QUANTIZED,
                per_channel=True,
                reduce_range=True,
                nodes_to_exclude=excluded_nodes(source, patterns),
                extra_options={"MatMulConstBOnly": True},
            )
    finally:
        logging.disable(logging.NOTSET)
