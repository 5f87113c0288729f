"""Models as graphs: ONNX, OpenVINO, torch.export's .pt2, ExecuTorch, LiteRT and Core ML; each is read back and compared
with the original, but for Core ML, which computes on Apple's devices alone."""

from __future__ import annotations

import json
import logging
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram

from opabinia.config import ConfigError, Problem
from opabinia.contracts import ExportModule
from opabinia.inference.export.description import Description
from opabinia.inference.export.exported_task import ExportedTask
from opabinia.inference.export.job import ExportJob, check_difference
from opabinia.inference.export.mobile import MobileForm, write_mobile
from opabinia.inference.export.runtimes import DESCRIPTION, XML, OnnxRuntime, import_openvino
from opabinia.runtime.progress import PhaseBar

GraphForm = Literal["onnx", "openvino", "torch", MobileForm]

_ONNX = ("onnx", "onnxruntime", "onnxscript")


class Needs(NamedTuple):
    """Requirements of a format: its title, the extra that it needs, and the libraries in that."""

    title: str
    extra: str
    libraries: Sequence[str]


LIBRARIES = {
    "onnx": Needs("ONNX", "export", _ONNX),
    "openvino": Needs("OpenVINO", "openvino", (*_ONNX, "openvino")),
    "executorch": Needs("ExecuTorch", "executorch", ("executorch",)),
    "litert": Needs("LiteRT", "litert", ("litert_torch", "ai_edge_litert")),
    "coreml": Needs("Core ML", "coreml", ("coremltools",)),
}
"""Requirements of the formats that need an extra."""


def check_libraries(form: str) -> None:
    """Check for the libraries that a format needs, before anything is computed.

    Raises:
        ConfigError: one is missing.
    """
    needs = LIBRARIES.get(form, Needs("", "", ()))
    for name in needs.libraries:
        if find_spec(name) is None:
            message = f"{needs.title} needs {name.replace('_', '-')}: pip install 'opabinia[{needs.extra}]'"
            raise ConfigError(Problem("command line", "--format", message))


def write_file(form: GraphForm, path: Path, job: ExportJob, tolerance: float, origin: str, bar: PhaseBar) -> list[str]:
    """Write the graph, read it back and compare it; return lines to print.

    The graph takes any number of samples, or one if torch cannot trace the model otherwise. OpenVINO's is converted
    from an ONNX file, which stays next to it (:func:`onnx_source`).

    Args:
        form: format of the file.
        path: path of the file, or of OpenVINO's folder.
        job: the model, with inputs of two samples or more: torch would take a batch size of one for a constant.
        tolerance: see :func:`opabinia.inference.export.export`.
        origin: description of the inputs.
        bar: moved when the file is written.

    Raises:
        ExportMismatch: the model that was read back differs by more.
    """
    expected = job.module.expected(job.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch and onnxscript warn their own developers here
        if form == "executorch" or form == "litert" or form == "coreml":
            reason = f"{LIBRARIES[form].title} files take one sample"
            about = replace(job.description, batch_size="1")
            write_mobile(form, path, job.module, _first(job.inputs, 1), list(expected), about)
        else:
            program, reason = _trace_any_batch(job)
            about = replace(job.description, batch_size="1") if reason else job.description
            _write(form, path, program, about, list(expected))
    sizes = [1] if reason else [1, len(job.inputs["image"])]
    bar.advance()
    shapes = [_shape_line("inputs", job.inputs), _shape_line("outputs", expected)]
    shapes += [f"batch: 1; {reason}"] if reason else []
    if form == "coreml":
        types = "inputs in the file: uint8 as float32 with the same values, int64 as int32"
        return [*shapes, types, "not run here: Core ML needs an Apple device; compare the outputs there"]
    run: Callable[..., Mapping[str, Tensor]]
    if form == "torch":
        reader, run = f"torch {torch.__version__}", torch.export.load(path).module()
    else:
        task = ExportedTask(path)
        reader, run = task.runtime.version, task.run
    difference = max(job.module.difference(_first(expected, size), run(**_first(job.inputs, size))) for size in sizes)
    check_difference(difference, tolerance, reader)
    batches = " and ".join(map(str, sizes))
    return [
        *shapes,
        f"{reader} and the original on {origin}, in batches of {batches}: largest difference {difference:.1e} (at most "
        f"{tolerance:.0e})",
    ]


def _trace_any_batch(job: ExportJob) -> tuple[ExportedProgram, str]:
    """Trace a model for any number of samples; if torch cannot, for one, with the reason."""
    try:
        return trace(job.module, job.inputs, Dim("batch", min=1)), ""
    except UserError:
        program = trace(job.module, _first(job.inputs, 1), None)
        return program, "torch cannot trace the model for any number of samples"


def trace(module: ExportModule, inputs: Mapping[str, Tensor], batch: Dim | None) -> ExportedProgram:
    """Trace a model with ``batch`` as its number of samples; None: that of the inputs."""
    shapes = {name: {0: batch} if batch else None for name in inputs}
    return torch.export.export(module.eval(), (), dict(inputs), dynamic_shapes=shapes)


def _write(
    form: Literal["onnx", "openvino", "torch"],
    path: Path,
    program: ExportedProgram,
    about: Description,
    outputs: list[str],
) -> None:
    """Write the graph with its description; ``outputs``: their names."""
    if form == "torch":
        text = json.dumps(about.metadata(), ensure_ascii=False, indent=1)
        torch.export.save(program, path, extra_files={DESCRIPTION: text})
        return
    _write_onnx(onnx_source(form, path), program, about, outputs)
    if form == "openvino":
        write_openvino(onnx_source(form, path), path)


def _write_onnx(path: Path, program: ExportedProgram, description: Description, outputs: list[str]) -> None:
    """Write an ONNX file, with the description among its properties (``metadata_props``)."""
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it warns of calls in torch's code
    exported: Any = torch.onnx.export(program, dynamo=True, output_names=outputs, verbose=False)
    exported.model.producer_name, exported.model.producer_version = "opabinia", description.version
    exported.model.metadata_props.update(description.metadata())
    exported.save(path, external_data=False)


def onnx_source(form: str, path: Path) -> Path:
    """Return the ONNX file that OpenVINO's folder at ``path`` is converted from; for ``onnx`` the path itself."""
    return path if form == "onnx" else path.with_name("source.onnx")


def write_openvino(source: Path, folder: Path, *, half: bool = False) -> None:
    """Write an ONNX file as OpenVINO's ``model.xml`` and ``model.bin``, with its properties in ``rt_info/opabinia``.

    Args:
        source: the ONNX file.
        folder: is made, or its files are replaced.
        half: store weights in FP16; OpenVINO selects the precision of the computation when it loads them.
    """
    import onnx

    openvino = import_openvino()
    model = openvino.Core().read_model(source)
    for item in onnx.load(source).metadata_props:
        model.set_rt_info(item.value, ["opabinia", item.key])
    folder.mkdir(exist_ok=True)
    openvino.save_model(model, folder / XML, compress_to_fp16=half)


def trtexec_command(path: Path) -> str:
    """Return the command of TensorRT that builds an engine in FP16 from an ONNX file: for batches of 1 to 32, fastest
    for 8, if the graph takes any number of samples."""
    shapes = OnnxRuntime(path).shapes
    ranges = {"min": 1, "opt": 8, "max": 32} if isinstance(shapes["image"][0], str) else {}
    words = ["trtexec", f"--onnx={path}", f"--saveEngine={path.with_suffix('.engine')}", "--fp16"]
    for name, batch in ranges.items():
        sides = (f"{key}:{'x'.join(map(str, [batch, *shape[1:]]))}" for key, shape in shapes.items())
        words.append(f"--{name}Shapes={','.join(sides)}")
    return shlex.join(words)


def total_size(path: Path) -> int:
    """Return the size of a file, or of all files in a folder, in bytes."""
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())


def _first(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    return {name: value[:count] for name, value in tensors.items()}


def _shape_line(kind: str, tensors: Mapping[str, Tensor]) -> str:
    shapes = (
        f"{name} ({str(value.dtype).removeprefix('torch.')}, {' x '.join(map(str, ['batch', *value.shape[1:]]))})"
        for name, value in tensors.items()
    )
    return f"{kind}: {', '.join(shapes)}"
