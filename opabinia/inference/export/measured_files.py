"""Exported files whose score is measured: FP32 and, if asked for, FP16 and INT8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from opabinia.inference.export.evaluate import Evaluation, Row, measure_file, measure_original
from opabinia.inference.export.files import onnx_source, write_openvino
from opabinia.inference.export.job import ExportJob
from opabinia.inference.export.precision import layer_names, output_layers, write_fp16, write_int8

MAX_DROP = {"exported": 0.001, "fp16": 0.001, "int8": 0.02}
"""Largest allowed drop of the score, by row of the table."""


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
    form: Literal["onnx", "openvino"],
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
    result = MeasuredFiles([measure_original(evaluations, job)], {}, [])
    original, source = result.rows[0].scores, onnx_source(form, exported)
    for name in ("exported", *options.precisions):
        path = exported if name == "exported" else exported.with_name(f"{name}{exported.suffix}")
        allowed = MAX_DROP[name] if options.max_drop is None else options.max_drop
        for patterns in [options.exclude, [*options.exclude, *output_layers(source)]]:
            if name != "exported":
                write_reduced(name, form, source, path, patterns, calibration)
            row = measure_file(name, path, evaluations, job)
            drops = [
                evaluation.sign * (before - after)
                for evaluation, before, after in zip(evaluations, original, row.scores, strict=True)
            ]
            if max(drops) <= allowed or name == "exported":
                break
        result.rows.append(row)
        if max(drops) <= allowed:
            result.files[name] = path
            continue
        worst = drops.index(max(drops))
        message = (
            f"{name}: {evaluations[worst].metric} is {row.scores[worst]:.4f}, {drops[worst]:.4f} worse than the "
            f"original; allowed is {allowed:g} (--max-drop)"
        )
        hint = f"; keep layers in FP32 with --exclude: {', '.join(layer_names(source).values())}"
        result.errors.append(message if name == "exported" else message + hint)
    return result


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
