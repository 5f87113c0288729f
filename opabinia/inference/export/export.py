"""The work of ``opabinia export``: write a trained model, read it back and compare it with the original."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.contracts import ExportModule, Sample
from opabinia.inference.export import predict_script
from opabinia.inference.export.description import describe
from opabinia.inference.export.evaluate import Evaluation, open_evaluations, score_table
from opabinia.inference.export.files import GraphForm, check_libraries, total_size, trtexec_command, write_file
from opabinia.inference.export.hugging_face import write_layout
from opabinia.inference.export.job import ExportJob, ExportMismatch
from opabinia.inference.export.measured_files import EVALUATED, Measured, MeasuredFiles, measure_files
from opabinia.inference.export.samples import COMPARED, calibration_inputs, fitting_tasks, select_samples
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.models.lora import merge_adapters
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.runtime.log import logging_to
from opabinia.runtime.progress import progress_bar
from opabinia.tasks.multitask import Multitask
from opabinia.training.run_folder import chosen_checkpoint, resolve
from opabinia.training.trained_model import Weights

Form = Literal[GraphForm, "huggingface"]
NAMES: Mapping[Form, str] = {
    "onnx": "model.onnx",
    "openvino": "openvino",
    "torch": "model.pt2",
    "executorch": "model.pte",
    "litert": "model.tflite",
    "coreml": "model.mlpackage",
    "huggingface": "hugging_face",
}


def export(
    run: Path,
    out: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    form: Form = "onnx",
    tolerance: float = 1e-4,
    checkpoint: str = "best",
    weights: Weights | None = None,
    measured: Measured | None = None,
    license: str = "",
    task: Sequence[str] = (),
) -> Path:
    """Write a run's model for use elsewhere, and return its path. First it is read back and compared with the original.

    ``onnx`` and ``torch`` write one file: the function from images, as the validation transforms give them, to
    predictions by name (:meth:`opabinia.contracts.Task.export_module`). ``openvino`` writes the same as a folder with
    ``model.xml`` and ``model.bin``, ``executorch``, ``litert`` and ``coreml`` (which is not read back) for one sample.
    ``huggingface`` writes a folder: weights, config, model card; it is also a run folder for :func:`opabinia.load` and
    the commands.

    Args:
        run: the run folder.
        out: the file (``onnx``: ``.onnx``, ``torch``: ``.pt2``, ``executorch``: ``.pte``, ``litert``: ``.tflite``,
            ``coreml``: ``.mlpackage``) or folder (others) to write, which must not exist; None: ``export/model.onnx``
            (and so on) in the run folder, with the names of ``task`` before it.
        overrides: ``key=value`` of the run's config.
        form: see above.
        tolerance: largest allowed difference, relative to the largest magnitude of an output where that is above 1.
        checkpoint, weights: see :func:`opabinia.load`.
        measured: evaluate the exported model on the first validation set (of each task of a multi-task run), and write
            other precisions (ONNX and OpenVINO); files whose score drops by more than allowed are not kept.
        license: license in the model card, by its name on the hub, such as ``apache-2.0``; empty leaves it open.
        task: tasks of a multi-task run to export, of which one alone is exported as a run of its own; empty: all
            that predict something for an image and whose validation images have the size of the first one's.

    Raises:
        ConfigError: there is no such run or checkpoint, ``out`` exists, a library is missing, or the task is refused.
        ExportMismatch: the model that was read back differs from the original by more.
    """
    paths = target_paths(out or run / "export" / "-".join([*task, NAMES[form]]), form, measured)
    path = paths["exported"]
    check_libraries(form)
    folder = chosen_checkpoint(run, checkpoint)
    with logging_to(None):
        model = prepare(RunModel(run, overrides, str(folder), weights, task=task), form, measured)
    job, resolved, names = model.job, model.resolved, model.names
    evaluations, calibration = list[Evaluation](), list[dict[str, Tensor]]()
    if measured:
        evaluations = open_evaluations(resolved, folder, model.predictor, job.module.expected(job.inputs), names)
    if measured and "int8" in measured.precisions:
        calibration = calibration_inputs(resolved, job.module, model.samples, measured.calibration_images, names)
    with disk_errors(path), torch.no_grad():
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".", dir=path.parent) as temporary_folder:
            temporary = Path(temporary_folder) / f"exported{path.suffix}"
            with progress_bar(f"export {form}", 2, unit="steps") as bar:
                if form == "huggingface":
                    lines = write_layout(temporary, folder, resolved.config, job, tolerance, license)
                else:
                    lines = write_file(form, temporary, job, tolerance, model.origin, bar)
                bar.update(2)
            results = MeasuredFiles([], {"exported": temporary}, [], [])
            if measured and form != "torch" and form != "coreml" and form != "huggingface":
                results = measure_files(form, temporary, job, evaluations, measured, calibration)
                Console(highlight=False).print(score_table(results.rows, evaluations))
            move_files(results.files, paths, form)
    lines = [*lines, *results.notes, *usage_notes(form, paths, results.files, job), *model.notes]
    print_written([paths[name] for name in results.files], lines)
    if results.errors:
        raise ExportMismatch("\n".join(results.errors) + "\nno such file was written")
    return path


def usage_notes(form: Form, paths: Mapping[str, Path], files: Collection[str], job: ExportJob) -> list[str]:
    """Return lines about the use of the files (names of ``paths``) that were written."""
    notes = list[str]()
    if job.description.thresholds is not None and form in EVALUATED:
        notes.append("predict.py takes the thresholds of the classes that an evaluation has chosen, or --score")
    if form == "onnx" and "exported" in files:
        notes.append(f"TensorRT (not run here: it needs an NVIDIA GPU): {trtexec_command(paths['exported'])}")
    return notes


class PreparedModel(NamedTuple):
    """A run's model to be exported.

    Attributes:
        predictor: the model.
        job: the function that is exported, with inputs and description.
        resolved: the run's config.
        samples: samples that the original and the exported model are compared on.
        origin: description of these.
        names: tasks of the model of a multi-task run.
        notes: lines about tasks that are skipped.
    """

    predictor: Predictor
    job: ExportJob
    resolved: Resolved
    samples: list[Sample]
    origin: str
    names: list[str]
    notes: list[str]


def prepare(model: RunModel, form: Form, measured: Measured | None = None) -> PreparedModel:
    """Load a run's model on the CPU, with samples for the comparison; see :func:`export`.

    Raises:
        ConfigError: there is no such run or checkpoint, or the task is refused.
    """
    folder = chosen_checkpoint(model.run, model.checkpoint)
    resolved = resolve(model.run, model.overrides)
    tasks = [model.task] if isinstance(model.task, str) and model.task else list(model.task)
    open_tasks = replace(model, checkpoint=str(folder), device="cpu", task=()).load
    predictor, names, notes = load_tasks(open_tasks, resolved, form, tasks, measured)
    samples, origin = select_samples(resolved, predictor, COMPARED, names)
    merge_adapters(predictor.task)
    module = predictor.task.export_module()
    inputs = export_inputs(module, samples, static=form != "huggingface")
    job = ExportJob(module, inputs, describe(model.run, folder, resolved, predictor, inputs["image"], names))
    return PreparedModel(predictor, job, resolved, samples, origin, names, notes)


def load_tasks(
    load_model: Callable[..., Predictor],
    resolved: Resolved,
    form: Form,
    tasks: Sequence[str],
    measured: Measured | None,
) -> tuple[Predictor, list[str], list[str]]:
    """Return the model to export, its tasks if the run has several, and a line about each one that is skipped.

    Args:
        load_model: loads the run with the tasks that are given as ``task``.
        resolved: the run's config.
        form: a folder for the hub has all tasks.
        tasks: the wanted ones; empty: see :func:`export`.
        measured: tasks that cannot be evaluated with the others are refused.

    Raises:
        ConfigError: the wanted tasks cannot be exported together.
    """
    if form == "huggingface" and resolved.config["task"]["name"] == "multitask":
        if tasks:
            raise ConfigError(Problem("command line", "--task", "a folder for the hub has all tasks of the run"))
        every = list(resolved.config["task"]["tasks"])
        return load_model(task=every), every, []
    predictor = load_model(task=tasks)
    if not isinstance(predictor.task, Multitask):
        return predictor, list(tasks), []
    samples, _ = select_samples(resolved, predictor, COMPARED, list(predictor.task.tasks))
    size = export_inputs(predictor.task.export_module(), samples, static=False)["image"].shape[-2:]
    fitting, others = fitting_tasks(resolved, predictor.task, size)
    if others and tasks:
        if measured:
            raise ConfigError([Problem("command line", "--task", f"{line}; export it alone") for line in others])
        return predictor, list(tasks), []
    notes = [f"skipped: {line} (--task {line.partition(':')[0]} exports it alone)" for line in others]
    return load_model(task=fitting), fitting, notes


def move_files(files: Mapping[str, Path], paths: Mapping[str, Path], form: Form) -> None:
    """Give files, by precision, their paths, and write ``predict.py`` next to them, or in a folder of OpenVINO, unless
    it is there."""
    for name, file in files.items():
        path = file.rename(paths[name])
        script = (path if path.is_dir() else path.parent) / "predict.py"
        if form in EVALUATED and not script.exists():
            write_atomic(script, inspect.getsource(predict_script))


def target_paths(path: Path, form: Form, measured: Measured | None) -> dict[str, Path]:
    """Return the paths to write: of ``exported``, which is ``path``, and by precision.

    Raises:
        ConfigError: one of them exists, a file is named as something else, or the format has no other precisions.
    """
    paths = {"exported": path}
    suffix = Path(NAMES[form]).suffix
    if suffix and path.suffix != suffix:
        raise ConfigError(Problem("command line", "--out", f"{path} is to be one file: end its name with {suffix}"))
    for precision in measured.precisions if measured else ():
        paths[precision] = path.with_suffix(f".{precision}{path.suffix}")
    for existing in filter(Path.exists, paths.values()):
        message = f"{existing} exists already; remove it, or give another path"
        raise ConfigError(Problem("command line", "--out", message))
    if measured and form not in EVALUATED:
        message = f"--format {form} is not evaluated; formats that are: {', '.join(EVALUATED)}"
        raise ConfigError(Problem("command line", "--evaluate", message))
    if measured and measured.reduced and form not in ("onnx", "openvino"):
        message = "only ONNX and OpenVINO models are written in other precisions: --format onnx"
        raise ConfigError(Problem("command line", "--precision", message))
    return paths


def export_inputs(module: ExportModule, samples: Sequence[Sample], *, static: bool) -> dict[str, Tensor]:
    """Return transformed samples as inputs of the function that is exported; ``static`` checks that it can be a graph.

    Raises:
        ConfigError: it cannot, or the samples differ in size.
    """
    try:
        if static:
            module.check_static()
        return module.inputs(samples)
    except ValueError as error:
        raise ConfigError(Problem("", "", str(error))) from error


def print_written(paths: Sequence[Path], lines: Sequence[str]) -> None:
    """Print the paths that were written, with their sizes, and further lines."""
    console = Console(highlight=False)
    for path in paths:
        console.print(f"{path} ({total_size(path) / 1e6:.1f} MB)", soft_wrap=True)
    console.print(*lines, sep="\n", soft_wrap=True)
