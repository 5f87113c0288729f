"""Exported files whose score is measured: FP32 and, if asked for, FP16 and INT8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from torch import Tensor

from opabinia.inference.export.evaluate import Evaluation, Row, measure_file, measure_original
from opabinia.inference.export.files import onnx_source, write_openvino
from opabinia.inference.export.job import ExportJob
from opabinia.inference.export.precision import layer_names, write_fp16, write_int8
from opabinia.inference.export.sensitivity import rank_layers, smallest_number
from opabinia.runtime.progress import progress_bar

MAX_DROP = {"exported": 0.001, "fp16": 0.001, "int8": 0.01}
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
        notes: lines about layers that INT8 leaves in FP32.
    """

    rows: list[Row]
    files: dict[str, Path]
    errors: list[str]
    notes: list[str]


def measure_files(
    form: EvaluatedForm,
    exported: Path,
    job: ExportJob,
    evaluations: Sequence[Evaluation],
    options: Measured,
    calibration: Sequence[Mapping[str, Tensor]],
) -> MeasuredFiles:
    """Write the asked-for precisions of an FP32 file, evaluate all, and compare their scores with the original.

    INT8 that drops by more than allowed is written again with the most sensitive layers in FP32, as few as are enough.

    Args:
        form: format of the files.
        exported: the FP32 file; the others are written in its folder.
        job: the model.
        evaluations: evaluations on the first validation set, or on that of each task.
        options: see :class:`Measured`.
        calibration: inputs for INT8.
    """
    original, source = measure_original(evaluations, job), onnx_source(form, exported)
    measure = partial(_measure, evaluations=evaluations, job=job, original=original, max_drop=options.max_drop)
    found = {"exported": measure("exported", exported)}
    for name in options.precisions:
        assert form == "onnx" or form == "openvino"
        path = exported.with_name(f"{name}{exported.suffix}")
        write = partial(write_reduced, name, form, source, calibration=calibration)
        write(path, options.exclude)
        found[name] = measure(name, path)
        if name == "int8" and found[name].error:
            layers = rank_layers(source, options.exclude, calibration)
            found[name] = _with_sensitive_layers(found[name], layers, options.exclude, write, partial(measure, name))
    hint = "; keep layers in FP32 with --exclude: "
    return MeasuredFiles(
        [original, *(file.row for file in found.values())],
        {name: file.path for name, file in found.items() if not file.error},
        [
            file.error if name == "exported" else f"{file.error}{hint}{', '.join(layer_names(source).values())}"
            for name, file in found.items()
            if file.error
        ],
        [file.note for file in found.values() if file.note],
    )


class _MeasuredFile(NamedTuple):
    """A file with its row of the table, the drop of its score, the message if that is more than allowed, and a line
    about layers in FP32."""

    path: Path
    row: Row
    drop: float
    error: str
    note: str = ""


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
    drop = max(drops)
    worst = drops.index(drop)
    error = (
        f"{name}: {evaluations[worst].metric} is {row.scores[worst]:.4f}, {drop:.4f} worse than the original; "
        f"allowed is {allowed:g} (--max-drop)"
    )
    return _MeasuredFile(path, row, drop, error if drop > allowed else "")


def _with_sensitive_layers(
    file: _MeasuredFile,
    layers: Sequence[str],
    exclude: Sequence[str],
    write: Callable[[Path, Sequence[str]], None],
    measure: Callable[[Path], _MeasuredFile],
) -> _MeasuredFile:
    """Return the INT8 file with the fewest sensitive layers in FP32 whose drop is allowed; ``file`` if one layer in
    INT8 is too much.

    Args:
        file: the INT8 file without them.
        layers: its modules in INT8, the most sensitive first.
        exclude: patterns of layers that stay in FP32 in any case.
        write: writes a file with the layers of these patterns in FP32.
        measure: measures a file.
    """

    @cache
    def trial(count: int) -> _MeasuredFile:
        path = file.path.with_stem(f"{file.path.stem}-{count}")
        with progress_bar(f"INT8, {count} of {len(layers)} layers in FP32", 1, unit="trials") as bar:
            write(path, [*exclude, *layers[:count]])
            result = measure(path)
            bar.update(1, metrics=[f"drop {result.drop:.4f}"])
        return result

    count = smallest_number(len(layers) - 1, lambda count: not trial(count).error)
    if count is None:
        return file
    options = " ".join(f"--exclude {layer}" for layer in [*exclude, *layers[:count]])
    note = f"int8: {count} of {len(layers)} layers stay in FP32; with all in INT8 the score drops by {file.drop:.4f}"
    return trial(count)._replace(note=f"{note}. The same without a search: {options}")


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
