"""Runtimes of exported graphs, on the CPU: onnxruntime for ONNX files, OpenVINO for its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

XML = "model.xml"
"""Name of the graph in a folder of OpenVINO; its weights are in ``model.bin``."""


class OnnxRuntime:
    """An ONNX file in onnxruntime.

    Attributes:
        version: name and version of the library.
        shapes: shape of each input by name; a dimension that is no int is dynamic.
        outputs: names of the outputs.
        metadata: texts by name.
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.version = f"onnxruntime {onnxruntime.__version__}"
        self.shapes: dict[str, Sequence[int | str]] = {item.name: item.shape for item in self._session.get_inputs()}
        self.outputs: list[str] = [output.name for output in self._session.get_outputs()]
        self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map

    def __call__(self, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the outputs as arrays, in order, for input arrays by name."""
        results: Sequence[Any] = self._session.run(self.outputs, inputs)
        return results


class OpenVinoRuntime:
    """A ``model.xml``, with its ``model.bin``, in OpenVINO, computed in FP32 also where the CPU has BF16; with the
    attributes of :class:`OnnxRuntime`."""

    def __init__(self, path: Path) -> None:
        openvino = import_openvino()
        core = openvino.Core()
        model = core.read_model(path)
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
        self._compiled = core.compile_model(model, "CPU", settings)
        self.version = f"OpenVINO {openvino.__version__.split('-')[0]}"
        self.shapes: dict[str, Sequence[int | str]] = {
            value.any_name: [side.get_length() if side.is_static else "dynamic" for side in value.partial_shape]
            for value in model.inputs
        }
        self.outputs: list[str] = [value.any_name for value in model.outputs]
        self.metadata: Mapping[str, str] = model.get_rt_info(["opabinia"]).value

    def __call__(self, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the outputs as arrays, in order, for input arrays by name."""
        results = self._compiled(inputs)
        return [results[name] for name in self.outputs]


def open_runtime(path: Path) -> OnnxRuntime | OpenVinoRuntime:
    """Open an ONNX file, or OpenVINO's ``model.xml`` or its folder."""
    file = path / XML if path.is_dir() else path
    return OpenVinoRuntime(file) if file.suffix == ".xml" else OnnxRuntime(file)


def import_openvino() -> Any:
    """Return the library, without its telemetry: where ``openvino_telemetry`` can be imported, importing OpenVINO sends
    an event to its authors."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino
