"""Exported files whose score is measured: FP32 and, if asked for, FP16 and INT8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from torch import Tensor

from opabinia.inference.export.evaluate import Evaluation, Row, measure_file, measure_original
from opabinia.inference.export.files import onnx_source, write_openvino
from opabinia.inference.export.job import ExportJob
from opabinia.inference.export.precision import layer_names, output_layers, write_fp16, write_int8

MAX_DROP = {"exported": 0.001, "fp16": 0.001, "int8": 0.02}
"""Largest allowed drop of the score, by row of the table."""

EvaluatedForm = Literal["onnx", "openvino", "executorch", "litert"]
EVALUATED = get_args(EvaluatedForm)
"""Formats of graphs that are evaluated."""


@dataclass(frozen=True)
class Measured:
    """Options of an evaluated export.

    Attributes:
        precisions: ``fp16`` and ``int8``, written as well as FP32.
        max_drop: largest allowed drop of the score; None: :data:`MAX_DROP`.
        calibration_images: number of training images from which INT8 takes the ranges of activations.
        exclude: patterns of layers that stay in FP32.
    """

    precisions: Sequence[str] = ()
    max_drop: float | None = None
    calibration_images: int = 128
    exclude: Sequence[str] = ()

    @property
    def reduced(self) -> bool:
        """Whether an option is about other precisions."""
        return bool(self.precisions or self.exclude)


@dataclass(frozen=True)
class MeasuredFiles:
    """Files that were written and measured.

    Attributes:
        rows: rows of the table, the original first.
        files: within the tolerance, by name of the row.
        errors: messages about the others.
    """

    rows: list[Row]
    files: dict[str, Path]
    errors: list[str]


def measure_files(
    form: EvaluatedForm,
    exported: Path,
    job: ExportJob,
    evaluations: Sequence[Evaluation],
    options: Measured,
    calibration: Sequence[Mapping[str, Tensor]],
) -> MeasuredFiles:
    """Write the asked-for precisions of an FP32 file, evaluate all, and compare their scores with the original.

    INT8 that drops by more than allowed is written again with the output layers in FP32.

    Args:
        form: format of the files.
        exported: the FP32 file; the others are written in its folder.
        job: the model.
        evaluations: evaluations on the first validation set, or on that of each task.
        options: see :class:`Measured`.
        calibration: inputs for INT8.
    """
    original, source = measure_original(evaluations, job), onnx_source(form, exported)
    found = {"exported": _measure("exported", exported, evaluations, job, original, options.max_drop)}
    for name in options.precisions:
        assert form == "onnx" or form == "openvino"
        path = exported.with_name(f"{name}{exported.suffix}")
        for patterns in [options.exclude, [*options.exclude, *output_layers(source)]]:
            write_reduced(name, form, source, path, patterns, calibration)
            found[name] = _measure(name, path, evaluations, job, original, options.max_drop)
            if not found[name].error:
                break
    hint = "; keep layers in FP32 with --exclude: "
    return MeasuredFiles(
        [original, *(file.row for file in found.values())],
        {name: file.path for name, file in found.items() if not file.error},
        [
            file.error if name == "exported" else f"{file.error}{hint}{', '.join(layer_names(source).values())}"
            for name, file in found.items()
            if file.error
        ],
    )


class _MeasuredFile(NamedTuple):
    """A file with its row of the table, and the message if its score drops by more than allowed."""

    path: Path
    row: Row
    error: str


def _measure(
    name: str, path: Path, evaluations: Sequence[Evaluation], job: ExportJob, original: Row, max_drop: float | None
) -> _MeasuredFile:
    """Evaluate a file, and compare its scores with those of the original."""
    row = measure_file(name, path, evaluations, job)
    allowed = MAX_DROP[name] if max_drop is None else max_drop
    drops = [
        evaluation.sign * (before - after)
        for evaluation, before, after in zip(evaluations, original.scores, row.scores, strict=True)
    ]
    worst = drops.index(max(drops))
    error = (
        f"{name}: {evaluations[worst].metric} is {row.scores[worst]:.4f}, {drops[worst]:.4f} worse than the original; "
        f"allowed is {allowed:g} (--max-drop)"
    )
    return _MeasuredFile(path, row, error if drops[worst] > allowed else "")


def write_reduced(
    precision: str,
    form: Literal["onnx", "openvino"],
    source: Path,
    target: Path,
    patterns: Sequence[str],
    calibration: Sequence[Mapping[str, Tensor]],
) -> None:
    """Write an ONNX file in ``fp16`` or ``int8``, as ONNX or for OpenVINO, which has its own rule for FP16.

    Args:
        precision: see above.
        form: likewise.
        source: the FP32 file.
        target: the file or folder to write.
        patterns: see :func:`opabinia.inference.export.precision.excluded_nodes`; not for OpenVINO in FP16.
        calibration: inputs for INT8.
    """
    if form == "openvino" and precision == "fp16":
        write_openvino(source, target, half=True)
        return
    file = target if form == "onnx" else target.with_name(f"{precision}.onnx")
    if precision == "fp16":
        write_fp16(source, file, patterns)
    else:
        write_int8(source, file, patterns, calibration)
    if form == "openvino":
        write_openvino(file, target)
