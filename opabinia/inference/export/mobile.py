"""Graphs for phones and small devices: ExecuTorch's .pte, LiteRT's .tflite and Core ML's .mlpackage, for one sample."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node, Proxy, Transformer
from torch.fx.node import Target

from opabinia.config import ConfigError, Problem
from opabinia.contracts import ExportModule
from opabinia.inference.export.description import Description
from opabinia.inference.export.runtimes import DESCRIPTION
from opabinia.models.layers import Normalize

aten = torch.ops.aten
MobileForm = Literal["executorch", "litert", "coreml"]


def write_mobile(
    form: MobileForm,
    path: Path,
    module: ExportModule,
    sample: Mapping[str, Tensor],
    outputs: Sequence[str],
    about: Description,
) -> None:
    """Write a graph for one sample, with its description, which also gets the names of inputs and outputs: the formats
    do not have them.

    Args:
        form: format of the file.
        path: path of the file.
        module: the function; ``train.channels_last`` is undone in it, since these graphs have layouts of their own.
        sample: inputs by name.
        outputs: names of the outputs.
        about: the description.

    Raises:
        ConfigError: the graph has an operator that the format lacks.
    """
    module.eval().to(memory_format=torch.contiguous_format)
    for part in module.modules():
        if isinstance(part, Normalize):
            part.channels_last = False
    shapes = json.dumps({name: list(value.shape) for name, value in sample.items()})
    metadata = json.dumps({**about.metadata(), "inputs": shapes, "outputs": json.dumps(list(outputs))})
    try:
        _WRITERS[form](path, module, dict(sample), metadata)
    except Exception as error:  # of many types, deep in the libraries
        title = {"executorch": "ExecuTorch", "litert": "LiteRT", "coreml": "Core ML"}[form]
        message = f"{title} cannot take this model: {_first_cause(error)[:300]}"
        hint = "--format onnx takes every task"
        raise ConfigError(Problem("command line", "--format", message, allowed=hint)) from error


def _write_executorch(path: Path, module: ExportModule, sample: dict[str, Tensor], metadata: str) -> None:
    """Write a ``.pte``: what XNNPACK computes is delegated to it, the rest runs in ExecuTorch's own operators. A second
    method, ``opabinia``, returns the metadata."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program, partitioner = torch.export.export(module, (), sample), [XnnpackPartitioner()]
    edge = to_edge_transform_and_lower(program, partitioner=partitioner, constant_methods={"opabinia": metadata})
    path.write_bytes(edge.to_executorch().buffer)


def _write_litert(path: Path, module: ExportModule, sample: dict[str, Tensor], metadata: str) -> None:
    """Write a ``.tflite``, with the metadata in a zip archive at its end, where those of TensorFlow Lite are."""
    import litert_torch

    with redirect_stdout(StringIO()):  # it prints its progress
        graph = litert_graph(module, sample)
        litert_torch.convert(graph, sample_kwargs=sample, enable_x64=True).export(str(path))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(DESCRIPTION, metadata)


def litert_graph(module: nn.Module, sample: Mapping[str, Tensor]) -> nn.Module:
    """Return a function for inputs with the shapes of ``sample``, of operators that LiteRT has. See
    :class:`_LiteRtOperators`."""
    graph = _LiteRtOperators(torch.export.export(module, (), dict(sample)).module()).transform()
    graph.graph.eliminate_dead_code()
    graph.recompile()
    function: nn.Module = graph.eval()
    return function


class _LiteRtOperators(Transformer):  # type: ignore[misc]  # torch's decorator of it is not typed
    """Changes a graph to operators that LiteRT has.

    Values that do not depend on the inputs are computed, and become constants: the positions of RT-DETR are powers of
    64-bit floats. The largest values are gathered by their indices: where the values alone are used, as in D-FINE,
    litert-torch 0.10 writes an operator that its interpreter lacks. RoIAlign is :func:`sample_regions`.
    """

    def run_node(self, node: Node) -> Any:
        """Return what a node computes: a proxy, or a value that does not depend on the inputs."""
        if node.op == "call_function" and not any(isinstance(self.env[one], Proxy) for one in node.all_input_nodes):
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            return node.target(*args, **kwargs)
        return super().run_node(node)

    def call_function(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the proxy of an operator."""
        if target is torch.ops.torchvision.roi_align.default:
            maps, regions, scale, height, width, samples, aligned = args
            if samples > 0 and aligned:
                return sample_regions(maps, regions, scale, (height, width), samples)
        if target is not aten.topk.default:
            return super().call_function(target, args, kwargs)
        values, _, dim = (*args, -1)[:3]
        indices = super().call_function(target, args, kwargs)[1]
        return super().call_function(aten.gather.default, (values, dim, indices), {}), indices


def sample_regions(maps: Tensor, regions: Tensor, scale: float, size: tuple[int, int], samples: int) -> Tensor:
    """Return what ``torchvision.ops.roi_align`` with ``aligned`` does for regions within the maps (M x C x H x W), by
    ``grid_sample``, which takes more memory.

    Args:
        maps: feature maps (N x C x h x w).
        regions: index of the map, left, top, right and bottom (M x 5).
        scale: factor from units of the regions to those of the maps.
        size: height and width of the result (H, W).
        samples: number of samples in each direction, of which a value is the mean.
    """

    def places(start: Tensor, end: Tensor, length: int, count: int) -> Tensor:
        steps = (torch.arange(count * samples) + 0.5) / (count * samples)
        return (start + (end - start) * steps) * (2 * scale / length) - 1

    height, width = size
    numbers, left, top, right, bottom = (regions[:, column : column + 1] for column in range(5))
    x, y = places(left, right, maps.shape[3], width), places(top, bottom, maps.shape[2], height)
    grid = torch.stack([x[:, None].expand(-1, height * samples, -1), y[:, :, None].expand(-1, -1, width * samples)], -1)
    each = maps.index_select(0, numbers[:, 0].long())
    return F.avg_pool2d(F.grid_sample(each, grid, padding_mode="border", align_corners=False), samples)


def _write_coreml(path: Path, module: ExportModule, sample: dict[str, Tensor], metadata: str) -> None:
    """Write an ``.mlpackage`` in FP32 for iOS 17, macOS 14 and later, with the metadata as ``opabinia`` in its
    user-defined metadata. Its inputs have the types of :class:`CoreMlInputs`, which replace ``dtype``."""
    with redirect_stderr(StringIO()):  # it prints its progress, and that this machine cannot run the file
        import coremltools

        inputs = {name: value.to(_COREML_TYPES[value.dtype]) for name, value in sample.items()}
        program = torch.export.export(CoreMlInputs(module, sample), (), inputs)
        program = program.run_decompositions()
        about = json.loads(metadata) | {"dtype": str(inputs["image"].dtype).removeprefix("torch.")}
        model = coremltools.convert(
            program,
            outputs=[coremltools.TensorType(name=name) for name in json.loads(about["outputs"])],
            minimum_deployment_target=coremltools.target.iOS17,
            compute_precision=coremltools.precision.FLOAT32,
            skip_model_load=True,
        )
        model.user_defined_metadata["opabinia"] = json.dumps(about)
        model.save(str(path))


_COREML_TYPES = {torch.uint8: torch.float32, torch.float32: torch.float32, torch.int64: torch.int32}


class CoreMlInputs(nn.Module):
    """A function that takes the types of Core ML: float32 for images of uint8 (with their values, 0 to 255), int32 for
    int64.

    Args:
        module: the function.
        sample: inputs by name in the types that it takes.
    """

    def __init__(self, module: ExportModule, sample: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.module, self.types = module, {name: value.dtype for name, value in sample.items()}

    def forward(self, **inputs: Tensor) -> Mapping[str, Tensor]:
        """Return predictions by name."""
        typed = {name: inputs[name].to(kind) for name, kind in self.types.items()}
        outputs: Mapping[str, Tensor] = self.module(**typed)
        return outputs


_WRITERS = {"executorch": _write_executorch, "litert": _write_litert, "coreml": _write_coreml}


def _first_cause(error: BaseException) -> str:
    """Return the first line of the error that caused others."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
