"""``config check --build``: a run in small, so that a config is known to work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from opabinia.config.build import errors_at
from opabinia.contracts import Clock
from opabinia.engine.hooks.order import check_hooks
from opabinia.engine.loop.evaluate import requested_layers
from opabinia.engine.loop.layer_outputs import predict_with_layers
from opabinia.training.loaders import log_device_transforms
from opabinia.training.measurement import CPU, SAMPLES, StepParts
from opabinia.training.model import Models, check_initial_weights
from opabinia.training.planning import check_streams
from opabinia.training.samples import batch_errors, first_samples
from opabinia.training.session import TrainingRun
from opabinia.training.validation import make_best, plan_evaluation, validation_key


def dry_run(parts: Mapping[str, Any]) -> None:
    """Build everything, put the first samples into a batch, and run two of them on the CPU.

    Args:
        parts: the fields of :class:`TrainingRun`.

    Raises:
        ConfigError: an error that a run would end with.
    """
    run = TrainingRun(**parts)
    data = run.data
    skip = data.on_error == "skip"
    step_parts = StepParts.of(run, run.init)
    model, batches = step_parts.model, step_parts.batches
    check_initial_weights(model, run.init)
    check_streams(model, batches, run.train.micro_batch_size)
    with errors_at("hooks"):
        check_hooks(run.hooks or {})
    with TemporaryDirectory() as folder:
        for logger in run.loggers:
            logger(Path(folder), Clock()).close()
    models = Models(model, model if run.ema else None, wrapper=step_parts.wrapper)
    step = step_parts.make(models, micro_batch_size=None)

    global_batch = batches.plan.global_batch(0)
    batches.first_samples(min(SAMPLES, data.batch_size), model, shape=global_batch.shape)
    log_device_transforms(batches, model.size_multiple)
    batch = step_parts.first_batch(2, global_batch)
    with batch_errors(batch, "task"):
        step(batch, replace(global_batch, count=len(batch["id"])), Clock.at(batches.plan, 0), lambda: None)

    evaluate = replace(run.evaluate, batch_size=None)
    evaluation = plan_evaluation(
        models, data, batches.datasets(), evaluate, 0, CPU, run.train.precision, batches.dataset_info
    )
    make_best(run.checkpoint.best, evaluation.scores)
    evaluators = [
        evaluator for val_set in evaluation.validation for evaluator in val_set.evaluators(model, val_set.dataset_info)
    ]
    for stream in data.validation:
        multiple = model.size_multiple_of(stream.task or "")
        batch = first_samples(stream, 2, skip=skip, size_multiple=multiple)
        first_samples(
            stream, min(SAMPLES, run.evaluate.batch_size or data.batch_size), skip=skip, size_multiple=multiple
        )
        with batch_errors(batch, validation_key(data, stream.prefix)):
            predict_with_layers(model.eval(), batch, requested_layers(model, evaluators))
