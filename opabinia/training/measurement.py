"""Short runs that measure a recipe and keep nothing: training in a temporary folder, and a single step."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from opabinia.config.build import errors_at
from opabinia.contracts import Batch, Clock, GlobalBatch, Hook, LoggerPart, ParallelTask, Scalars, Step, Task
from opabinia.data.sampling.batches import StagedPlan
from opabinia.models.weights.download import replacing_weights
from opabinia.models.weights.init import Init
from opabinia.runtime.log import silence
from opabinia.tasks.wrapper_base import TaskWrapper
from opabinia.training.loaders import TrainingBatches
from opabinia.training.model import Models, check_model, make_optimizer, make_step, place
from opabinia.training.planning import plan_training
from opabinia.training.session import Session, TrainingRun, all_schedules, build_model, training_only, wrap_task

CPU = torch.device("cpu")
SAMPLES = 16
"""Training samples of a batch; images of different sizes are padded to the largest of them."""


class MeasurementDone(Exception):
    """Everything is measured: the run ends."""


class RepeatableStep:
    """A step that can be repeated with its last batch.

    Args:
        step: the step.

    Attributes:
        last: the last batch, on its device, and the other arguments of the step.
    """

    last: tuple[Batch, GlobalBatch, Clock]

    def __init__(self, step: Step) -> None:
        self._step, self.optimizer = step, step.optimizer
        self.state_dict, self.load_state_dict = step.state_dict, step.load_state_dict

    def __call__(
        self, batch: Batch, global_batch: GlobalBatch, clock: Clock, after_backward: Callable[[], None]
    ) -> Scalars:
        self.last = batch, global_batch, clock
        return self._step(batch, global_batch, clock, after_backward)

    def repeat(self) -> None:
        """Make another step with the last batch."""
        self._step(*self.last, lambda: None)


class Measurement(Hook):
    """A hook that measures a run from within, and wraps its step."""

    def make_step(self, make: Callable[..., Step], task: Task | ParallelTask, *others: Any) -> Step:
        """Build the step of the run with ``make``; return the step to call instead."""
        raise NotImplementedError


def run_measurement(
    parts: Mapping[str, Any], measurement: Measurement, loggers: Sequence[LoggerPart] = (), **training: Any
) -> None:
    """Train in a temporary folder until the measurement raises :class:`MeasurementDone`; nothing is logged, since the
    run itself logs the same.

    Args:
        parts: the fields of :class:`opabinia.training.session.TrainingRun`.
        measurement: takes part in the run.
        loggers: receive the lines of its metrics log.
        training: values of the section ``train`` that differ.
    """
    step = partial(measurement.make_step, parts["train"].step)
    train = replace(parts["train"], step=step, log_samples=False, **training)
    parts = {**training_only(parts, measurement=measurement), "train": train, "loggers": loggers}
    with silence(), tempfile.TemporaryDirectory() as folder, suppress(MeasurementDone):
        TrainingRun(**parts)(Session(Path(folder)))


@dataclass(frozen=True)
class StepParts:
    """The parts of a training step, on the CPU.

    Attributes:
        run: the run.
        batches: its training data.
        model: its model.
        wrapper: the task around it that a step calls instead, if there is one.
    """

    run: TrainingRun
    batches: TrainingBatches
    model: Task
    wrapper: TaskWrapper | None

    @classmethod
    def of(cls, run: TrainingRun, init: Init | None = None) -> StepParts:
        """Build the parts of a run.

        The model is built on the meta device first: a size that does not fit is reported before memory is allocated.

        Args:
            run: the run.
            init: pretrained weights to load.

        Raises:
            ConfigError: they do not fit together, or the data cannot be read.
        """
        batches = plan_training(run.task, run.data, run.train.length, run.shapes, 0, run.semi_supervised)
        with errors_at("task"), torch.device("meta"), replacing_weights():
            run.task(batches.dataset_info)
        model = place(build_model(run.task, batches.dataset_info, 0, init), run.train, CPU)
        wrapper = wrap_task(model, run, batches)
        check_model(model, run.train, batches.plan, run.data)
        return cls(run, batches, model, wrapper)

    def make(self, models: Models, **training: Any) -> Step:
        """Build the step of these models; ``training``: values of the section ``train`` that differ."""
        run, train = self.run, replace(self.run.train, check_losses=False, on_nonfinite="stop", **training)
        optimizer = make_optimizer(run.optimizer, models.task, run.param_groups, train, run.data.batch_size)
        return make_step(models, optimizer, all_schedules(run.schedule, run.schedules, self.batches.plan), train, 0)

    def first_batch(self, samples: int, global_batch: GlobalBatch) -> Batch:
        """Return the first samples as a batch, in the shape of ``global_batch``, after the transforms and the mixing;
        those of several streams are not mixed.

        Raises:
            ConfigError: a sample cannot be read, or not be mixed.
        """
        batch = self.batches.first_samples(samples, self.model, shape=global_batch.shape)
        if self.batches.is_joint:
            return batch
        with errors_at("data.mix"):
            for mix in self.run.data.mix:
                batch = mix(batch, self.batches.dataset_info)
        return batch

    @cached_property
    def largest(self) -> tuple[GlobalBatch, Batch]:
        """The global batch with most pixels, and samples in its shape; of several streams the first batch."""
        plan = self.batches.plan
        global_batch = plan.global_batch(0)
        if self.batches.is_joint:
            return next(iter(self.batches.loader(CPU, self.model.size_multiple_of).iterate(0)))
        if isinstance(plan, StagedPlan):
            shapes = [shape for stage in plan.stages for shape in stage.cycle]
            largest = max(shapes, key=lambda shape: shape.samples * math.prod(shape.shape or (1,)))
            global_batch = replace(global_batch, count=largest.samples, shape=largest.shape)
        return global_batch, self.first_batch(SAMPLES, global_batch)
