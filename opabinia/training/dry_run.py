"""``config check --build``: a run in small, so that a config is known to work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from opabinia.config.build import errors_at
from opabinia.contracts import Clock
from opabinia.engine.hooks.order import check_hooks
from opabinia.engine.loop.evaluate import requested_layers
from opabinia.engine.loop.layer_outputs import predict_with_layers
from opabinia.training.loaders import log_device_transforms
from opabinia.training.model import Models, check_initial_weights, check_model, make_optimizer, make_step
from opabinia.training.planning import check_streams, plan_training
from opabinia.training.samples import batch_errors, first_samples
from opabinia.training.session import TrainingRun, add_teachers, all_schedules, build_model
from opabinia.training.validation import make_best, plan_evaluation, validation_key

_BATCHED = 16
"""First samples of each dataset that are put into one batch: images of different sizes show there."""


def dry_run(parts: Mapping[str, Any]) -> None:
    """Build everything, put the first samples into a batch, and run two of them on the CPU.

    The model is built on the meta device first: a size that does not fit is reported before memory is allocated.

    Args:
        parts: the fields of :class:`TrainingRun`.

    Raises:
        ConfigError: an error that a run would end with.
    """
    run = TrainingRun(**parts)
    data, training = run.data, run.train
    skip = data.on_error == "skip"
    batches = plan_training(run.task, data, training.length, run.shapes, 0)
    dataset_info, plan = batches.dataset_info, batches.plan
    with errors_at("task"), torch.device("meta"):
        run.task(dataset_info)
    model = build_model(run.task, dataset_info, 0, run.init)
    distilled = add_teachers(model, run.distill, dataset_info)
    check_initial_weights(model, run.init)
    check_model(model, training, plan, data)
    check_streams(model, batches, training.micro_batch_size)
    with errors_at("hooks"):
        check_hooks(run.hooks or {})
    with TemporaryDirectory() as folder:
        for logger in run.loggers:
            logger(Path(folder), Clock()).close()
    optimizer = make_optimizer(run.optimizer, model, run.param_groups, training, data.batch_size)
    models = Models(model, model if run.ema else None, distilled=distilled)
    whole = replace(training, micro_batch_size=None, check_losses=False, on_nonfinite="stop")
    step = make_step(models, optimizer, all_schedules(run.schedule, run.schedules, plan), whole, 0)

    first = plan.row(0)
    batch = batches.first_samples(2, model, shape=first.shape)
    batches.first_samples(min(_BATCHED, data.batch_size), model, shape=first.shape)
    log_device_transforms(batches, model.size_multiple)
    with errors_at("data.mix"):
        for mix in data.mix:
            batch = mix(batch, dataset_info)
    row = replace(first, count=len(batch["id"]))
    with batch_errors(batch, "task"):
        step(batch, row, Clock.at(plan, 0), lambda: None)

    evaluate = replace(run.evaluate, batch_size=None)
    device = torch.device("cpu")
    evaluation = plan_evaluation(
        models, data, batches.datasets(), evaluate, 0, device, training.precision, dataset_info
    )
    make_best(run.checkpoint.best, evaluation.scores)
    evaluators = [
        evaluator for val_set in evaluation.validation for evaluator in val_set.evaluators(model, val_set.dataset_info)
    ]
    for stream in data.validation:
        multiple = model.size_multiple_of(stream.task or "")
        batch = first_samples(stream, 2, skip=skip, size_multiple=multiple)
        first_samples(
            stream, min(_BATCHED, run.evaluate.batch_size or data.batch_size), skip=skip, size_multiple=multiple
        )
        with batch_errors(batch, validation_key(data, stream.prefix)):
            predict_with_layers(model.eval(), batch, requested_layers(model, evaluators))
