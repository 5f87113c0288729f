"""Runtimes of exported graphs, on the CPU: onnxruntime for ONNX files, those of OpenVINO, ExecuTorch and LiteRT for
theirs."""

from __future__ import annotations

import json
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch

DESCRIPTION = "opabinia.json"
"""Name of the file in a .pt2 or .tflite that has the description."""

XML = "model.xml"
"""Name of the graph in a folder of OpenVINO; its weights are in ``model.bin``."""


class GraphRuntime(Protocol):
    """A graph that a library has read.

    Attributes:
        version: name and version of the library.
        shapes: shape of each input by name; a dimension that is no int is dynamic.
        outputs: names of the outputs.
        metadata: texts by name.
    """

    version: str
    shapes: dict[str, Sequence[int | str]]
    outputs: list[str]
    metadata: Mapping[str, str]

    def __call__(self, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the outputs as arrays, in order, for input arrays by name."""
        ...


class OnnxRuntime:
    """An ONNX file in onnxruntime; see :class:`GraphRuntime`."""

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
    """A ``model.xml``, with its ``model.bin``, in OpenVINO, computed in FP32 also where the CPU has BF16; see
    :class:`GraphRuntime`."""

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


class ExecuTorchRuntime:
    """A ``.pte`` in the Python runtime of ExecuTorch; see :class:`GraphRuntime`. Its method ``opabinia`` returns the
    metadata as JSON, with the names of inputs and outputs, which the format does not have."""

    def __init__(self, path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the interface is said to be experimental
            from executorch.runtime import Runtime

            program = Runtime.get().load_program(path)
            if program is None or "opabinia" not in program.method_names:
                raise ValueError("it has no description")
            self._forward = program.load_method("forward")
            (text,) = program.load_method("opabinia").execute([])
        self.version = f"ExecuTorch {version('executorch')}"
        self.metadata: Mapping[str, str] = json.loads(text)
        self.shapes: dict[str, Sequence[int | str]] = json.loads(self.metadata["inputs"])
        self.outputs: list[str] = json.loads(self.metadata["outputs"])

    def __call__(self, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the outputs as arrays, in order, for input arrays by name."""
        results = self._forward.execute([torch.from_numpy(inputs[name]) for name in self.shapes])
        return [result.numpy().copy() for result in results]  # the next call overwrites them


class LiteRtRuntime:
    """A ``.tflite`` in LiteRT; see :class:`GraphRuntime`. Its metadata is a file in the zip archive at its end, as in
    the files of TensorFlow Lite with metadata."""

    def __init__(self, path: Path) -> None:
        from ai_edge_litert.interpreter import Interpreter

        with zipfile.ZipFile(path) as archive:
            self.metadata: Mapping[str, str] = json.loads(archive.read(DESCRIPTION))
        self._run = Interpreter(str(path), num_threads=torch.get_num_threads()).get_signature_runner()
        self.version = f"LiteRT {version('ai-edge-litert')}"
        self.shapes: dict[str, Sequence[int | str]] = json.loads(self.metadata["inputs"])
        self.outputs: list[str] = json.loads(self.metadata["outputs"])

    def __call__(self, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the outputs as arrays, in order, for input arrays by name."""
        results = self._run(**inputs)
        return [results[name] for name in self.outputs]


_RUNTIMES: Mapping[str, Callable[[Path], GraphRuntime]] = {
    ".onnx": OnnxRuntime,
    ".xml": OpenVinoRuntime,
    ".pte": ExecuTorchRuntime,
    ".tflite": LiteRtRuntime,
}


def open_runtime(path: Path) -> GraphRuntime:
    """Open an exported file by the ending of its name; a folder is one of OpenVINO."""
    file = path / XML if path.is_dir() else path
    return _RUNTIMES.get(file.suffix, OnnxRuntime)(file)


def import_openvino() -> Any:
    """Return the library, without its telemetry: where ``openvino_telemetry`` can be imported, importing OpenVINO sends
    an event to its authors."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino
