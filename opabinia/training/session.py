"""A training run, built from the parts of a config. The order of construction matters and is written here alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from opabinia.config import ConfigError, Problem, register
from opabinia.config.build import errors_at
from opabinia.contracts import (
    SINGLE,
    Clock,
    DatasetInfo,
    Hook,
    HookPart,
    LoggerPart,
    OptimizerPart,
    Plan,
    Run,
    Schedule,
    SchedulePart,
    Schedules,
    ShapesPart,
    Task,
    TaskPart,
)
from opabinia.data import Data
from opabinia.data.sampling.batches import StagedPlan
from opabinia.data.strong_views import check_keeps_positions
from opabinia.engine.checkpointing.checkpoint import Snapshot, read_state
from opabinia.engine.hooks.batch_schedule import ApplyBatchSchedule
from opabinia.engine.hooks.bottleneck import Bottleneck
from opabinia.engine.hooks.evaluate import Evaluate
from opabinia.engine.hooks.log_metrics import LogMetrics, LogSamples
from opabinia.engine.hooks.order import order_hooks
from opabinia.engine.hooks.progress import Eta, TrainingBar
from opabinia.engine.hooks.save_checkpoint import SaveCheckpoint
from opabinia.engine.hooks.timer import Timer
from opabinia.engine.loggers.metrics_log import MetricsLogger
from opabinia.engine.loggers.tensorboard import TensorBoard
from opabinia.engine.loggers.terminal import Terminal
from opabinia.engine.loop.trainer import Trainer
from opabinia.models.weights.checkpoints import find_checkpoint
from opabinia.models.weights.class_rows import ClassNames
from opabinia.models.weights.init import Init, initialize
from opabinia.optim.ema import Ema, SavedAverage, slow_average_warning
from opabinia.optim.groups import ParamGroups
from opabinia.optim.schedules import constant
from opabinia.runtime.device import autocast
from opabinia.runtime.durations import Duration
from opabinia.runtime.elastic_agent import is_elastic
from opabinia.runtime.environment import describe_environment
from opabinia.runtime.log import log, log_to_file
from opabinia.runtime.processes import is_rank_zero, rank, world_size
from opabinia.runtime.resources import keep_freed_memory
from opabinia.runtime.seeds import draw_seed, preserve_generators
from opabinia.runtime.signals import Stopped
from opabinia.runtime.text import plural
from opabinia.tasks.distillation import Distill, DistilledTask
from opabinia.tasks.multitask.partial_labels import use_first_view
from opabinia.tasks.semi_supervised.task import SemiSupervised, SemiSupervisedTask
from opabinia.tasks.teachers import build_teacher
from opabinia.tasks.wrapper_base import TaskWrapper
from opabinia.training.compiling import ReportCompiled, compile_modules
from opabinia.training.initial_normalization import warn_of_other_normalization
from opabinia.training.loaders import TrainingBatches, log_device_transforms, splits_norms
from opabinia.training.model import (
    Models,
    check_initial_weights,
    check_model,
    make_optimizer,
    make_step,
    make_task,
    place_models,
    set_up,
)
from opabinia.training.planning import check_streams, plan_training
from opabinia.training.resume_checks import check_same_run, describe_run
from opabinia.training.settings import Checkpointing, Evaluation, Seed, Training
from opabinia.training.summary import (
    align_lines,
    describe_data,
    describe_device,
    describe_length,
    describe_model,
    describe_streams,
)
from opabinia.training.trained_model import load_trained
from opabinia.training.validation import EvaluationPlan, check_validation_samples, make_best, plan_evaluation
from opabinia.training.world_size_scaling import limit_micro_batch


@dataclass(frozen=True)
class Session:
    """The arguments of a training run that are not part of its config.

    Attributes:
        folder: the run folder; it exists.
        resume: the checkpoint to resume from; None begins a new run.
        interrupted: called after every step; returns why the run must stop, or None.
        begin: called with ``resume`` when everything is built and checked, right before the first step.
        skip_batches: batches (by step, from 0) to skip, in addition to those that ``resume`` lists.
        start_time: start time, in seconds of ``time.monotonic``.
        title: description of the run; with it the log begins with a summary.
    """

    folder: Path
    resume: Snapshot | None = None
    interrupted: Callable[[], str | None] = lambda: None
    begin: Callable[[Snapshot | None], None] = lambda resume: None
    skip_batches: frozenset[int] = frozenset()
    start_time: float = field(default_factory=time.monotonic)
    title: str = ""

    def batches_to_skip(self) -> frozenset[int]:
        """Return the batches to skip, those of the checkpoint included."""
        return self.skip_batches.union(self.resume.state.get("left_out", ()) if self.resume else ())


@register.command(name="train")
@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A training run: its fields are the top level of a config.

    Args:
        task: the model and its losses.
        init: pretrained weights to begin with; a resumed run has its own.
        distill: distillation from a teacher, in addition to the losses of the task.
        semi_supervised: unlabeled images to learn from, too, by pseudo-labels; not together with ``distill``.
        data: training and validation data.
        shapes: sizes of batches and images over time; null leaves image sizes to the transforms.
        optimizer: optimizer of the task's parameters.
        param_groups: learning rate factors and weight decay by parameter.
        schedule: multiplies the optimizer's learning rate over time.
        schedules: multiply other options of the optimizer: ``weight_decay``, ``momentum`` (Adam's first beta).
        train: length and settings of the training.
        ema: exponential moving average (EMA) of the weights, evaluated in addition; null: none.
        evaluate: when to evaluate.
        checkpoint: when to save and what to keep.
        hooks: further hooks by key; their state is saved under it.
        loggers: destinations of the metrics log, in addition to metrics.jsonl.
        seed: seed of all random numbers; null draws one, which is logged and saved.
    """

    task: TaskPart
    init: Init | None = None
    distill: Distill | None = None
    semi_supervised: SemiSupervised | None = None
    data: Data
    shapes: ShapesPart | None = None
    optimizer: OptimizerPart
    param_groups: ParamGroups | None = None
    schedule: SchedulePart = constant
    schedules: dict[str, SchedulePart] | None = None
    train: Training
    ema: Ema | None = None
    evaluate: Evaluation
    checkpoint: Checkpointing
    hooks: dict[str, HookPart] | None = None
    loggers: Sequence[LoggerPart] = (Terminal, TensorBoard)
    seed: Seed | None = None

    def __call__(self, session: Session) -> dict[str, float]:
        """Build everything, train, and return the final scores, such as ``{"val/top1": 0.99}``.

        :func:`opabinia.train` calls this, and writes what was built as the config of the run folder.

        Args:
            session: the run folder and, to resume, its checkpoint.

        Raises:
            ConfigError: parts do not fit together; nothing was trained.
            Stopped: the run was asked to stop before its end; it has saved and can be resumed.
        """
        seed = draw_seed() if self.seed is None else self.seed
        device, threads = set_up(self.train)
        if device.type == "cpu":
            keep_freed_memory()
        log.info("rank %d of %d on %s, %s, seed %d", rank(), world_size(), device, plural(threads, "thread"), seed)
        log_to_file("environment", describe_environment(device, threads))

        # Data first: the model and the evaluators need its description.
        batches = plan_training(self.task, self.data, self.train.length, self.shapes, seed, self.semi_supervised)
        warn_of_unusual_lengths(batches, self.schedule, self.ema)
        schedules = all_schedules(self.schedule, self.schedules, batches.plan)
        description = describe_run(batches, threads)
        if session.resume is not None:
            check_same_run(session.resume, description, batches.plan)
        start = Clock.at(batches.plan, session.resume.step if session.resume else 0)

        init = None if session.resume else self.init  # a resumed run has its own weights
        info = batches.dataset_info
        model = build_model(self.task, info, seed, init)
        wrapper = wrap_task(model, self, batches)
        if session.resume is None:
            check_initial_weights(model, init)
        check_model(model, self.train, batches.plan, self.data)
        state = session.resume.state if session.resume else None
        train, description["micro_batch_size"] = limit_micro_batch(self.train, model, self.data.batch_size, state)
        check_streams(model, batches, train.micro_batch_size)
        # Before it is sharded: afterwards a rank holds a part of each parameter only.
        summary = self._summary(session.title, model, batches, device, threads, start) if is_rank_zero() else []
        follows_stages = splits_norms(batches.plan, self.train.sync_batch_norm)
        models = place_models(
            model, self.train, device, ema=self.ema is not None, splits_norms=follows_stages, wrapper=wrapper
        )
        optimizer = make_optimizer(self.optimizer, model, self.param_groups, self.train, self.data.batch_size)
        step = make_step(models, optimizer, schedules, train, seed)
        log_device_transforms(batches, model.size_multiple)
        ema_hook = SavedAverage(models.ema, model, self.ema.weight_at) if self.ema and models.ema else None
        evaluation = plan_evaluation(
            models, self.data, batches.datasets(), self.evaluate, seed, device, self.train.precision, info
        )
        check_validation_samples(model, self.data, device, self.train.precision)
        compiled = compile_modules(models, device) if self.train.compile else None
        hooks = self._hooks(models, batches, evaluation, ema_hook, compiled, device)
        loggers = [logger(session.folder, start) for logger in self.loggers] if is_rank_zero() else []
        metrics_log = MetricsLogger(session.folder / "metrics.jsonl" if is_rank_zero() else None, loggers)
        trainer = Trainer(
            self._run_state(session, model, batches, metrics_log, evaluation.scores, device),
            step=step,
            plan=batches.plan,
            validation=evaluation.validation,
            hooks=hooks,
            keep=self.checkpoint.keep,
            metadata=description,
            interrupted=session.interrupted,
            skip_batches=session.batches_to_skip(),
            sharded=models.parallel is not None and models.parallel.sharded,
        )
        return _run(trainer, session, metrics_log, summary)

    def _run_state(
        self,
        session: Session,
        task: Task,
        batches: TrainingBatches,
        metrics_log: MetricsLogger,
        scores: Mapping[str, str],
        device: torch.device,
    ) -> Run:
        """Return the state that hooks see, as of before the first step."""
        return Run(
            task,
            metrics_log,
            session.folder,
            loader=batches.loader(device, task.size_multiple_of),
            batches=partial(batches.extra_batches, device, self.evaluate.batch_size, task.size_multiple_of),
            available_scores=scores,
            start_time=session.start_time,
            autocast=partial(autocast, device, self.train.precision),
        )

    def _hooks(
        self,
        models: Models,
        batches: TrainingBatches,
        evaluation: EvaluationPlan,
        ema_hook: SavedAverage | None,
        compiled: ReportCompiled | None,
        device: torch.device,
    ) -> dict[str, Hook]:
        """Build all hooks of the run, in the order in which they act."""
        task, plan = models.wrapper or models.task, batches.plan
        own_periods = {val_set.name: val_set.every for val_set in evaluation.validation if val_set.every is not None}
        periods = {val_set.name: val_set.every or self.evaluate.every for val_set in evaluation.validation}
        eta = Eta(device, periods)
        to_terminal = any(getattr(logger, "target", logger) is Terminal for logger in self.loggers)
        with errors_at("hooks"):
            batch_schedule, epochs = None, None
            if isinstance(plan, StagedPlan):
                batch_schedule = ApplyBatchSchedule(plan.stages, norms=models.splits_norms)
                epochs = plan.evaluations
            built_in: dict[str, Hook | None] = {
                "timer": Timer(),
                "batch_schedule": batch_schedule,
                "ema": ema_hook,
                "metrics_log": LogSamples() if self.train.log_samples else LogMetrics(self.train.log_every),
                "compiled": compiled,
                "training_bar": TrainingBar(eta) if to_terminal else None,
                "bottleneck": Bottleneck(
                    self.data.num_workers, self.data.faster_options(device.type == "cuda"), self.train.faster_options()
                ),
                "save": SaveCheckpoint(self.checkpoint.every),
                "evaluate": Evaluate(self.evaluate.every, own_periods, epochs),
                "save_best": make_best(self.checkpoint.best, evaluation.scores),
                "eta": eta,
            }
            of_task = {f"task.{number}": hook for number, hook in enumerate(task.hooks(batches.dataset_info))}
            return order_hooks(built_in, of_task, self.hooks or {})

    def _summary(
        self,
        title: str,
        task: Task,
        batches: TrainingBatches,
        device: torch.device,
        threads: int,
        start: Clock,
    ) -> list[str]:
        """Describe the run in aligned lines; without a title its length alone."""
        plan, dataset_info = batches.plan, batches.dataset_info
        length = describe_length(self.train.length, plan, self.data, dataset_info, world_size(), start.step)
        if not title:
            return [length]
        with preserve_generators():
            shape = plan.global_batch(start.step % plan.total_steps).shape
            sample = batches.first_samples(1, task, shape=shape)
        return align_lines(
            {
                "run": title,
                "model": describe_model(task, use_first_view(sample.get("streams", {}).get(SINGLE, sample))),
                "data": describe_data(self.data, dataset_info),
                **{f"  {name}": text for name, text in describe_streams(batches, task, sample).items()},
                "device": describe_device(device, self.train, world_size(), threads, self.data.num_workers),
                "length": length,
            }
        )


def _run(trainer: Trainer, session: Session, metrics_log: MetricsLogger, summary: Sequence[str]) -> dict[str, float]:
    """Restore the checkpoint of the session, begin, log the summary and train; return the final scores."""
    try:
        if session.resume is not None:
            trainer.restore(session.resume)
        session.begin(session.resume)
        if is_elastic():
            rank_samples = -(-trainer.metadata["global_batch_size"] // world_size())
            sizes = {
                "world_size": world_size(),
                "micro_batch_size": min(rank_samples, trainer.metadata["micro_batch_size"]),
            }
            metrics_log.write(Clock.at(trainer.plan, session.resume.step if session.resume else 0), sizes)
    except BaseException:
        metrics_log.close()
        raise
    for line in summary:
        log.info("%s", line)
    scores = trainer.run()
    if trainer.stopped:
        raise Stopped(trainer.stopped)
    return scores


def training_only(parts: Mapping[str, Any], **hooks: Hook) -> dict[str, Any]:
    """Return the parts of a run that trains with additional hooks, and neither evaluates nor saves nor logs.

    Args:
        parts: the fields of :class:`TrainingRun`.
        hooks: additional hooks by their keys.
    """
    never, data = Duration(0, "ep"), parts["data"]
    return {
        **parts,
        "evaluate": replace(parts["evaluate"], every=never),
        "data": replace(data, val=[replace(stream, every=None) for stream in data.validation] or None),
        "checkpoint": replace(parts["checkpoint"], every=never, best=None),
        "hooks": {**(parts["hooks"] or {}), **hooks},
        "loggers": [],
    }


def all_schedules(schedule: Schedule, schedules: Mapping[str, Schedule] | None, plan: Plan) -> Schedules:
    """Return the schedules by option of the optimizer, with that of the learning rate as ``lr``.

    Raises:
        ConfigError: one of them does not fit the length of the run.
    """
    if "lr" in (schedules or {}):
        raise ConfigError(Problem("", "schedules.lr", "the schedule of the learning rate is the key schedule"))
    all_of_them = {"lr": schedule, **(schedules or {})}
    for option, factor in all_of_them.items():
        with errors_at("schedule" if option == "lr" else f"schedules.{option}"):
            factor(Clock.at(plan, 0))
    return all_of_them


def warn_of_unusual_lengths(batches: TrainingBatches, schedule: Schedule, ema: Ema | None) -> None:
    """Warn of lengths that are seldom meant, except in a short measurement of a long recipe."""
    batch_size, samples, plan = batches.data.batch_size, batches.plan.samples, batches.plan
    if batch_size > samples:
        log.warning(
            "data.batch_size is %d, the data has %s: a batch is all of it", batch_size, plural(samples, "sample")
        )
    warmup = getattr(schedule, "keywords", {}).get("warmup")
    if isinstance(warmup, Duration) and Clock.at(plan, 0).steps(warmup) >= plan.total_steps > 0:
        log.warning("schedule.warmup (%s) is at least as long as the run: lr never reaches its peak", warmup)
    if ema and (warning := slow_average_warning(ema, plan)):
        log.warning("%s", warning)


def build_model(
    task: Callable[[DatasetInfo], Task],
    dataset_info: DatasetInfo,
    seed: int,
    init: Init | None = None,
) -> Task:
    """Build the model and load its initial weights.

    Raises:
        ConfigError: the task refuses the data, or the weights or its teacher do not fit.
    """
    model = make_task(task, dataset_info, seed)
    with errors_at("task.teacher"):
        model.attach_teachers(_load_teacher)
    if init is not None:
        with errors_at("init"):
            log.info("init: %s", initialize(model, init, _class_names(dataset_info, init.weights)))
        warn_of_other_normalization(model, init.weights)
    return model


def _class_names(dataset_info: DatasetInfo, weights: Path) -> ClassNames | None:
    """Return the classes of the data and of the run that weights are of; None for other weights and several tasks."""
    folder = find_checkpoint(weights) if weights.is_dir() else weights.parent
    facts = read_state(folder).get("facts") if (folder / "state.json").is_file() else None
    if facts is None or facts.streams or dataset_info.streams:
        return None
    return ClassNames(dataset_info.classes, facts.classes)


def wrap_task(model: Task, run: TrainingRun, batches: TrainingBatches) -> TaskWrapper | None:
    """Return the task around the model that a step calls in its place; None if it calls the model itself.

    Raises:
        ConfigError: a teacher does not fit, or the task cannot learn from unlabeled images in this way.
    """
    if run.distill is not None:
        return _add_teachers(model, run.distill, batches.dataset_info)
    if run.semi_supervised is not None:
        with errors_at("semi_supervised"):
            labeler = run.semi_supervised.pseudo_labels(model, run.semi_supervised.unlabeled.source)
            if labeler.keeps_positions:
                with errors_at("semi_supervised.strong"):
                    check_keeps_positions(run.semi_supervised.strong, batches.dataset_info.channels)
            return SemiSupervisedTask(model, labeler, run.semi_supervised)
    return None


def _add_teachers(model: Task, distill: Distill, dataset_info: DatasetInfo) -> DistilledTask:
    with errors_at("distill"):
        needs_logits = distill.logits_weight > 0
        teachers = [
            build_teacher(teacher, dataset_info, _load_teacher, logits=needs_logits)
            for teacher in distill.fixed_teachers
        ]
        return DistilledTask(model, teachers, distill)


def _load_teacher(run: Path) -> Task:
    try:
        return load_trained(run, device="cpu").task
    except ConfigError as error:  # its place is not the command line here
        raise ValueError("; ".join(problem.message for problem in error.problems)) from error
