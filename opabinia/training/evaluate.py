"""Evaluation of a trained model on the validation sets of its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.contracts import SINGLE, Clock, DatasetInfo, Run, Task
from opabinia.data import TrainingStream
from opabinia.engine.checkpointing.checkpoint import Snapshot
from opabinia.engine.loggers.metrics_log import MetricsLogger
from opabinia.engine.loop.evaluate import ValidationSet, evaluation_run, needs_training_data
from opabinia.engine.loop.hook_dispatch import HookDispatcher
from opabinia.training.model import Models, place, set_up
from opabinia.training.streams import training_streams
from opabinia.training.trained_model import trained_task
from opabinia.training.validation import plan_evaluation


def evaluate(
    folder: Path,
    parts: Mapping[str, Any],
    snapshot: Snapshot,
    training_parts: Callable[[], Mapping[str, Any]],
    *,
    confidence: bool = False,
    ensemble: Task | None = None,
) -> dict[str, float]:
    """Return the scores of a trained model.

    Args:
        folder: the run folder.
        parts: the built fields of :class:`opabinia.training.session.TrainingRun`.
        snapshot: the checkpoint; it also holds the description of the training data.
        training_parts: builds those of the run with its training data; called only where an evaluator learns from it.
        confidence: add confidence intervals, see :class:`opabinia.engine.loop.evaluate.ValidationSet`.
        ensemble: the model to evaluate, if it is not that of the checkpoint.

    Raises:
        ConfigError: there is nothing to evaluate on, or the weights do not fit the model.
    """
    training, data, settings = parts["train"], parts["data"], parts["evaluate"]
    if not data.validation:
        raise ConfigError(Problem("", "data.val", "there is no data to evaluate on"))
    # cuDNN's benchmark pays off in long runs only.
    device, _ = set_up(replace(training, cudnn_benchmark=False))
    seed = snapshot.state["seed"]
    task = ensemble or place(trained_task(parts["task"], snapshot), training, device)
    has_ema = ensemble is None and "ema" in snapshot.tensors
    models = Models(task, place(trained_task(parts["task"], snapshot, "ema"), training, device) if has_ema else None)

    def plan(streams: Mapping[str, TrainingStream], dataset_info: DatasetInfo) -> list[ValidationSet]:
        planned = plan_evaluation(models, data, streams, settings, seed, device, training.precision, dataset_info)
        return [replace(val_set, confidence=confidence) for val_set in planned.validation]

    dataset_info = snapshot.state["facts"]
    validation = plan({}, dataset_info)
    if any(needs_training_data(task, val_set) for val_set in validation):
        opened = training_parts()
        streams = training_streams(opened["task"], opened["data"])
        classes = tuple(streams[SINGLE].source.classes) if SINGLE in streams else ()
        validation = plan(streams, replace(dataset_info, classes=classes))
    run = Run(task, MetricsLogger(None), folder, clock=Clock(step=snapshot.step))
    return evaluation_run(run, HookDispatcher(parts["hooks"] or {}), validation, device)
