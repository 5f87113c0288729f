"""A run in small, so that a config is known to work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.contracts import Batch, Clock, DataMismatch, StepOptions
from opabinia.engine.hooks import refuse_wrong
from opabinia.engine.loop.evaluate import layers_of
from opabinia.engine.loop.layer_outputs import with_layers
from opabinia.models.weights.init import initialise
from opabinia.runtime.log import log
from opabinia.tasks.distillation import distilled
from opabinia.training.loaders import make_plan, make_sampler, tell_work
from opabinia.training.model import make_optimizer, make_task, refuse_pieces, refuse_small_batches
from opabinia.training.samples import first_samples, read_dataset_info
from opabinia.training.session import teachers_of
from opabinia.training.validation import make_best, make_validation, refuse_other_classes, scores_offered, with_average


def dry_run(parts: Mapping[str, Any]) -> None:
    """Build everything and push one tiny batch through on the CPU, so that a config is known to work before it is run.

    The model is built on the meta device first: a size that does not fit is told before memory is taken.

    Raises:
        ConfigError: what a run would meet.
    """
    data, training = parts["data"], parts["train"]
    skip = data.on_error == "skip"
    dataset_info = read_dataset_info(data.train, skip=skip)
    plan = make_plan(data, make_sampler(data, 0), training.length, parts["shapes"])
    with errors_at("task"), torch.device("meta"):
        parts["task"](dataset_info)
    model = make_task(parts["task"], dataset_info, 0)
    if parts["init"] is not None:
        with errors_at("init"):
            log.info("init: %s", initialise(model, parts["init"]))
    if parts["distill"] is not None:
        with errors_at("distill"):
            model = distilled(model, teachers_of(parts["distill"], dataset_info), parts["distill"])
    refuse_pieces(model, training, data.batch_size)
    if plan.total_steps:
        refuse_small_batches(model, plan)
    with errors_at("hooks"):
        refuse_wrong(parts["hooks"] or {})
    optimizer = make_optimizer(parts["optimizer"], model, parts["groups"], training, data.batch_size)
    with errors_at("train.step"):
        every = {"lr": parts["schedule"], **(parts["schedules"] or {})}
        step = training.step(model, optimizer, every, StepOptions(0, training.precision))
    clock = Clock.at(plan, 0)
    first = plan.row(0)
    batch = first_samples(data.train, 2, skip=skip, size_multiple=model.size_multiple, shape=first.shape)
    tell_work(data, model.size_multiple)
    with errors_at("data.mix"):
        for mixing in data.mix:
            batch = mixing(batch, dataset_info)
    row = replace(first, count=len(batch["id"]))
    _push(lambda: step(batch, row, clock, lambda: None), batch)
    validation = make_validation(
        data, replace(parts["evaluate"], batch_size=None), 0, torch.device("cpu"), training.precision
    )
    if parts["ema"] is not None:
        validation = with_average(validation, model, parts["evaluate"].weights)
    make_best(parts["checkpoint"].best, scores_offered(model, validation))
    refuse_other_classes(model, validation, dataset_info.classes)
    judges = [judge for one in validation for judge in one.evaluators(model, one.dataset_info)]
    for stream in data.validation:
        val_batch = first_samples(stream, 2, skip=skip, size_multiple=model.size_multiple)
        _push(partial(with_layers, model.eval(), val_batch, layers_of(model, judges)), val_batch)


def _push(action: Callable[[], object], batch: Batch) -> None:
    """Run a model; what it cannot take is told with the shape of the batch."""
    try:
        action()
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        images = [batch["image"]] if "image" in batch else batch.get("views", ())
        shape = " and ".join(dict.fromkeys(str(tuple(one.shape)) for one in images)) or "?"
        said = str(error) if isinstance(error, DataMismatch) else f"{type(error).__name__}: {error}"
        raise ConfigError(Problem("", "task", f"a batch of shape {shape} does not go through: {said}")) from error
