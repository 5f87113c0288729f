"""Training: where parts come together, and where the order of construction matters."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch

from opabinia.config import ConfigError, Problem, register
from opabinia.config.build import errors_at
from opabinia.contracts import (
    Clock,
    DatasetInfo,
    HookPart,
    LoggerPart,
    OptimizerPart,
    Plan,
    SchedulePart,
    ShapesPart,
    StepOptions,
    Task,
    TaskPart,
)
from opabinia.data import Data
from opabinia.data.sampling.batches import StagedPlan
from opabinia.engine.checkpointing.checkpoint import Snapshot
from opabinia.engine.hooks import (
    Bottleneck,
    EmaHook,
    Eta,
    Evaluate,
    LogMetrics,
    LogSamples,
    SaveCheckpoint,
    Timer,
    in_order,
)
from opabinia.engine.hooks.batch_schedule import ApplyBatchSchedule
from opabinia.engine.loggers.metrics_log import MetricsLogger
from opabinia.engine.loggers.terminal import TensorBoard, Terminal
from opabinia.engine.loop.trainer import Trainer
from opabinia.models.norms import split_norms
from opabinia.models.weights.init import Init, initialise
from opabinia.optim.ema import Ema
from opabinia.optim.groups import Groups
from opabinia.optim.schedules import constant
from opabinia.runtime.environment import describe_environment, library_versions
from opabinia.runtime.log import log, log_in_full
from opabinia.runtime.processes import is_rank_zero, rank, world_size
from opabinia.runtime.seeds import draw_seed, generators_kept
from opabinia.runtime.signals import Stopped
from opabinia.tasks.distillation import Distill, distilled, make_teacher, own_average
from opabinia.training.loaders import (
    fresh_batches,
    make_plan,
    make_sampler,
    make_training_loader,
    order_fingerprint,
    tell_work,
)
from opabinia.training.model import (
    compile_modules,
    make_optimizer,
    make_task,
    prepared,
    refuse_pieces,
    refuse_small_batches,
    set_up,
    spread,
)
from opabinia.training.resume_checks import check_same_run, splits_norms, warn_of_odd_lengths
from opabinia.training.samples import fingerprint, first_samples, read_dataset_info
from opabinia.training.settings import Checkpointing, Evaluation, Seed, Training
from opabinia.training.summary import lines_of, one_sample, told_data, told_device, told_length, told_model
from opabinia.training.trained_model import load_trained
from opabinia.training.validation import (
    make_best,
    make_validation,
    own_periods,
    refuse_other_classes,
    scores_offered,
    with_average,
)


@dataclass(frozen=True)
class Session:
    """What a run is given that is not config.

    Attributes:
        folder: the run folder; it exists.
        resume: the checkpoint to go on from.
        interrupted: asked after every step why to stop; None to go on.
        begin: called with ``resume`` when everything is built and fits together, right before the first step.
        left_out: numbers of batches that are not trained, beside those that ``resume`` knows.
        began: when it began, in seconds of ``time.monotonic``.
        title: what it is, in words; with it the log begins with a summary.
    """

    folder: Path
    resume: Snapshot | None = None
    interrupted: Callable[[], str | None] = lambda: None
    begin: Callable[[Snapshot | None], None] = lambda resume: None
    left_out: frozenset[int] = frozenset()
    began: float = field(default_factory=time.monotonic)
    title: str = ""


@register.command
def train(
    session: Session,
    /,
    *,
    task: TaskPart,
    init: Init | None = None,
    distill: Distill | None = None,
    data: Data,
    shapes: ShapesPart | None = None,
    optimizer: OptimizerPart,
    groups: Groups | None = None,
    schedule: SchedulePart = constant,
    schedules: dict[str, SchedulePart] | None = None,
    train: Training,
    ema: Ema | None = None,
    evaluate: Evaluation,
    checkpoint: Checkpointing,
    hooks: dict[str, HookPart] | None = None,
    writers: list[LoggerPart] = [Terminal, TensorBoard],  # noqa: B006 (never changed)
    seed: Seed | None = None,
) -> dict[str, float]:
    """Train a task and return its final scores, such as ``{"val/top1": 0.99}``.

    Args:
        task: what a batch means.
        init: weights to begin with; a resumed run has its own.
        distill: a teacher to learn from, beside the data.
        data: where samples come from.
        shapes: size of the batches over time; null leaves it to the transforms.
        optimizer: of the task's parameters.
        groups: which parameters learn at another rate, or decay differently.
        schedule: multiplies the optimizer's learning rate over time.
        schedules: multiply other options of the optimizer, by name: ``weight_decay``, ``momentum`` (Adam's first beta).
        train: how long and how to train.
        ema: an average of the weights to keep and to evaluate beside them; null keeps none.
        evaluate: when to evaluate.
        checkpoint: when to save and what to keep.
        hooks: further hooks by key; their state is saved under it.
        writers: where the journal goes beside metrics.jsonl.
        seed: of everything random; null draws one, which is logged and saved.

    Raises:
        ConfigError: something does not fit together; nothing was trained.
        Stopped: it was asked to stop before its end; it has saved and can be resumed.
    """
    seed = draw_seed() if seed is None else seed
    if "lr" in (schedules or {}):
        raise ConfigError(Problem("", "schedules.lr", "the learning rate's schedule is the key schedule"))
    device, threads = set_up(train)
    log.info("rank %d of %d on %s, %d threads, seed %d", rank(), world_size(), device, threads, seed)
    log_in_full("environment", describe_environment(device, threads))

    # Data first: the plan, the model and the evaluators need its facts.
    dataset_info = read_dataset_info(data.train, skip=data.on_error == "skip")
    with errors_at("data"):
        sampler = make_sampler(data, seed)
        plan = make_plan(data, sampler, train.length, shapes)
    warn_of_odd_lengths(plan, schedule, data.batch_size, len(sampler))
    if not plan.total_steps:
        raise ConfigError(Problem("", "train.length", f"{train.length} is a run without a single step"))
    every_schedule = {"lr": schedule, **(schedules or {})}
    for option, one in every_schedule.items():
        with errors_at("schedule" if option == "lr" else f"schedules.{option}"):
            one(Clock.at(plan, 0))
    about = {
        "seed": seed,
        "global_batch_size": data.batch_size,
        "data": fingerprint(data.train.source),
        "shuffle": data.shuffle,
        "order": order_fingerprint(sampler),
        "facts": asdict(dataset_info),
        "source_channels": data.train.source.channels,
        "world_size": world_size(),
        "threads": threads,
        "versions": library_versions(),
    }
    if session.resume is not None:
        check_same_run(session.resume, about, plan)
    start = Clock.at(plan, session.resume.step if session.resume else 0)

    # The model moves to its device before the optimizer sees its parameters.
    model = make_task(task, dataset_info, seed)
    if init is not None and session.resume is None:
        with errors_at("init"):
            log.info("init: %s", initialise(model, init))
    if distill is not None:
        with errors_at("distill"):
            model = distilled(model, teachers_of(distill, dataset_info), distill)
    refuse_pieces(model, train, data.batch_size)
    refuse_small_batches(model, plan)
    if model.compares_classes and data.sampler is None:
        log.warning("data.sampler: losses compare samples of a class, of which a batch may hold few; see `identities`")
    if splits := splits_norms(plan, train):
        split_norms(model, 1)  # from here on others hold on to the norms
    model = prepared(model, train, device)
    twin = copy.deepcopy(model) if ema else None
    averages = [one for one in (twin, own_average(model)) if one is not None]
    said = (
        summary_of(session.title, model, data, plan, dataset_info, train, device, threads, start)
        if is_rank_zero()
        else []
    )
    together = spread([model, *averages], train, device)
    log_in_full("model", str(model))
    optimizing = make_optimizer(optimizer, model, groups, train, data.batch_size)
    with errors_at("train.step"):
        skips = train.on_nonfinite == "skip"
        arithmetic = StepOptions(seed, train.precision, train.micro_batch, train.check_losses, skips)
        step = train.step(together or model, optimizing, every_schedule, arithmetic)

    tell_work(data, model.size_multiple)
    average = EmaHook(model, ema, data.batch_size, twin) if ema else None
    validation = make_validation(data, evaluate, seed, device, train.precision, model.size_multiple)
    if average:
        validation = with_average(validation, average.task, evaluate.weights)
    offered = scores_offered(model, validation)
    refuse_other_classes(model, validation, dataset_info.classes)
    if train.compile:
        compile_modules(model, device)

    with errors_at("hooks"):
        acting = in_order(
            task={f"task.{number}": hook for number, hook in enumerate(model.hooks(dataset_info))},
            user=hooks or {},
            flush=LogSamples() if train.log_samples else LogMetrics(train.log_every),
            save=SaveCheckpoint(checkpoint.every),
            evaluate=Evaluate(evaluate.every, own_periods(validation)),
            best=make_best(checkpoint.best, offered),
            average=average,
            timer=Timer(),
            bottleneck=Bottleneck(data.workers, data.cheaper(device.type == "cuda"), train.faster()),
            stages=ApplyBatchSchedule(plan.stages, norms=splits) if isinstance(plan, StagedPlan) else None,
            estimate=Eta(device, {one.name: one.every or evaluate.every for one in validation}),
        )
    lines = [writer(session.folder, start) for writer in writers] if is_rank_zero() else []
    metrics_log = MetricsLogger(session.folder / "metrics.jsonl" if is_rank_zero() else None, lines, by=train.log_by)
    trainer = Trainer(
        task=model,
        step=step,
        plan=plan,
        loader=make_training_loader(data, plan, sampler, dataset_info, seed, device, model.size_multiple),
        validation=validation,
        metrics_log=metrics_log,
        hooks=acting,
        folder=session.folder,
        device=device,
        keep=checkpoint.keep,
        about=about,
        interrupted=session.interrupted,
        left_out=session.left_out.union(session.resume.state.get("left_out", ()) if session.resume else ()),
        sharded=together is not None and together.sharded,
        batches=partial(fresh_batches, data, dataset_info, seed, device, evaluate.batch_size, model.size_multiple),
        offered=offered,
        began=session.began,
    )
    try:
        if session.resume is not None:
            trainer.restore(session.resume)
        session.begin(session.resume)
    except BaseException:
        metrics_log.close()
        raise
    for line in said:
        log.info("%s", line)
    scores = trainer.run()
    if trainer.stopped:
        raise Stopped(trainer.stopped)
    return scores


def summary_of(
    title: str,
    model: Task,
    data: Data,
    plan: Plan,
    dataset_info: DatasetInfo,
    train: Training,
    device: torch.device,
    threads: int,
    start: Clock,
) -> list[str]:
    """What the run is, in aligned lines; without a title its length alone."""
    length = told_length(train.length, plan, data, dataset_info, world_size(), start.step)
    if not title:
        return [length]
    with generators_kept():
        shape, skip = plan.row(start.step % plan.total_steps).shape, data.on_error == "skip"
        sample = first_samples(data.train, 1, skip=skip, size_multiple=model.size_multiple, shape=shape)
    return lines_of(
        {
            "run": title,
            "model": told_model(model, one_sample(sample)),
            "data": told_data(data, dataset_info),
            "device": told_device(device, train, world_size(), threads, data.workers),
            "length": length,
        }
    )


def teachers_of(distill: Distill, dataset_info: DatasetInfo) -> list[torch.nn.Module]:
    """Who teaches beside the student's own average: models of runs, or backbones with their classifiers.

    Raises:
        ValueError: nobody does, or one does not know what is to be learned.
    """
    logits = distill.logits_weight > 0
    return [make_teacher(one, dataset_info, _model_of, logits=logits) for one in distill.others]


def _model_of(run: Path) -> torch.nn.Module:
    return load_trained(run, device="cpu").task
