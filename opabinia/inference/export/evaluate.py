"""Evaluation of exported files: the score on a whole validation set, file size, latency and throughput."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from rich.table import Table

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.config.datasets import subtasks
from opabinia.contracts import SINGLE, DatasetInfo, Evaluator, Task
from opabinia.data import TrainingStream
from opabinia.engine.checkpointing.checkpoint import read_state
from opabinia.engine.loop.evaluate import ValidationSet, evaluate, needs_training_data
from opabinia.inference.export.exported_task import ExportedTask
from opabinia.inference.export.files import total_size
from opabinia.inference.export.job import ExportJob
from opabinia.inference.export.speed import Speed, measure_speed
from opabinia.inference.predictor import Predictor
from opabinia.inference.splits import select_split, sets_for, task_of
from opabinia.runtime.weighted_scores import weighted_score
from opabinia.tasks.multitask import Multitask
from opabinia.training.model import Models
from opabinia.training.run_folder import build_parts
from opabinia.training.streams import training_streams
from opabinia.training.validation import make_best, plan_evaluation


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a run's first validation set, or of the first one of a task of a multi-task run.

    Attributes:
        task: the original.
        validation: the set.
        metric: the run's main score, or a weighted sum of scores.
        sign: 1 if high values are better, else -1.
    """

    task: Task
    validation: ValidationSet
    metric: str
    sign: int

    def score(self, task: Task) -> float:
        """Return the score of a task, the original or an exported one.

        Raises:
            ConfigError: the score is not one of predictions.
        """
        device = torch.device("cpu")
        value = weighted_score(self.metric, evaluate(task, self.validation, device).scores)
        if value is None:
            message = f"{self.metric} is not computed from predictions; an exported file has no other scores"
            raise ConfigError(Problem("command line", "--evaluate", message, "", "checkpoint.best=SCORE"))
        return value


def open_evaluations(
    resolved: Resolved, checkpoint: Path, predictor: Predictor, outputs: Collection[str], tasks: Sequence[str]
) -> list[Evaluation]:
    """Open the first validation set of a run, or that of each of these tasks; see :func:`open_evaluation`.

    Raises:
        ConfigError: there is none, or it cannot be evaluated.
    """
    prefixes = sets_for(resolved, tasks)
    if not prefixes:
        raise ConfigError(Problem("", "data.val", "there is no validation set to evaluate the exported file on"))
    return [open_evaluation(resolved, checkpoint, predictor, outputs, prefix) for prefix in prefixes]


def open_evaluation(
    resolved: Resolved, checkpoint: Path, predictor: Predictor, outputs: Collection[str], prefix: str
) -> Evaluation:
    """Open a validation set of a run, for the task and for what is exported of it.

    Evaluators that read layers are omitted, unless these are outputs of the graph (``embedding``).

    Args:
        resolved: the run's config.
        checkpoint: its folder.
        predictor: has the trained task, on the CPU.
        outputs: names of the graph's outputs.
        prefix: prefix of the validation set.

    Raises:
        ConfigError: its data does not exist, or it has no scores.
    """
    task = predictor.task
    selected = select_split(resolved, prefix)
    if not isinstance(task, Multitask):
        selected.config["data"]["val"]["task"] = None
    parts = build_parts(selected).keywords
    evaluators = {
        name: replace(evaluator, every=None)
        for name, evaluator in (parts["evaluate"].evaluators or {}).items()
        if evaluator.on in (None, prefix)
    }
    settings = replace(parts["evaluate"], evaluators=evaluators)

    def plan(streams: Mapping[str, TrainingStream], classes: Sequence[str]) -> tuple[ValidationSet, dict[str, str]]:
        info = replace(predictor.dataset_info, classes=tuple(classes))
        seed = read_state(checkpoint)["seed"]
        planned = plan_evaluation(
            Models(task), parts["data"], streams, settings, seed, torch.device("cpu"), "fp32", info
        )
        return planned.validation[0], planned.scores

    validation, scores = plan({}, predictor.classes)
    if needs_training_data(task, validation):
        opened = build_parts(resolved).keywords
        streams = training_streams(opened["task"], opened["data"])
        if not isinstance(task, Multitask) and SINGLE not in streams:
            name = task_of(resolved, prefix)
            streams = {SINGLE: streams[subtasks(resolved.config)[name]["stream"] or name]}
        validation, scores = plan(streams, streams[SINGLE].source.classes if SINGLE in streams else ())

    all_evaluators = validation.evaluators

    def evaluators_of_predictions(_: Task, dataset_info: DatasetInfo) -> list[Evaluator]:
        found = all_evaluators(task, dataset_info)
        exported = {name.removeprefix(f"{dataset_info.task}/") for name in outputs}
        return [evaluator for evaluator in found if set(evaluator.layers) <= exported]

    metric = (parts["checkpoint"].best or "").replace("_ema/", "/")
    best = make_best(metric if weighted_score(metric, dict.fromkeys(scores, 0.0)) is not None else None, scores)
    if best is None:
        raise ConfigError(Problem("", "data.val", f"{prefix} has no scores to compare exported files by"))
    validation = replace(validation, evaluators=evaluators_of_predictions)
    return Evaluation(task, validation, best.metric, 1 if best.better == "max" else -1)


class Row(NamedTuple):
    """A model in the table: its score in each evaluation, size in bytes and speed."""

    name: str
    scores: Sequence[float]
    size: int
    speed: Speed


def measure_original(evaluations: Sequence[Evaluation], job: ExportJob) -> Row:
    """Measure the trained task, computed by torch on the CPU."""
    size = sum(value.nbytes for value in evaluations[0].task.state_dict().values())
    speed = measure_speed(lambda **inputs: job.module.expected(inputs), job.inputs)
    return Row("original", [evaluation.score(evaluation.task) for evaluation in evaluations], size, speed)


def measure_file(name: str, path: Path, evaluations: Sequence[Evaluation], job: ExportJob) -> Row:
    """Measure an ONNX file or a folder of OpenVINO, computed by its runtime on the CPU."""
    task = ExportedTask(path)
    scores = [evaluation.score(task) for evaluation in evaluations]
    return Row(name, scores, total_size(path), measure_speed(task.run, job.inputs))


def score_table(rows: Sequence[Row], evaluations: Sequence[Evaluation]) -> Table:
    """Return a table with a column for each model; differences are from the first."""
    result = Table("", *(row.name for row in rows))
    for evaluation, *scores in zip(evaluations, *(row.scores for row in rows), strict=True):
        result.add_row(evaluation.metric, *(f"{score:.4f}" for score in scores))
        result.add_row("difference", "", *(f"{score - scores[0]:+.4f}" for score in scores[1:]))
    result.add_row("MB", *(f"{row.size / 1e6:.2f}" for row in rows))
    result.add_row("p50 ms", *(f"{row.speed.p50 * 1e3:.2f}" for row in rows))
    result.add_row("p95 ms", *(f"{row.speed.p95 * 1e3:.2f}" for row in rows))
    result.add_row("samples/s", *(f"{row.speed.throughput:.0f}" for row in rows))
    return result
