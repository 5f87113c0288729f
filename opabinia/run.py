"""The composition root: the one place where parts come together and where the order of construction matters.

The parameters of :func:`train` are the top level of a config. Importing this module registers every built-in part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Interval

from opabinia.config import ConfigError, Problem, register
from opabinia.config.build import blamed
from opabinia.config.errors import listing, nearest
from opabinia.contracts import (
    Batch,
    Clock,
    Count,
    Facts,
    HookPart,
    OptimizerPart,
    Plan,
    Row,
    Run,
    Schedule,
    SchedulePart,
    Source,
    StepPart,
    Task,
    TaskPart,
    WriterPart,
)
from opabinia.data import Data, Stream, mix, sources, transforms
from opabinia.data.batches import ConstantPlan
from opabinia.data.loader import Loader, Reader, Request, evaluation_requests, training_requests
from opabinia.data.order import order
from opabinia.engine.checkpoint import Snapshot
from opabinia.engine.evaluate import Validation, evaluation_run
from opabinia.engine.hooks import Evaluate, Flush, Save, SaveBest, in_order, limit, refuse_wrong
from opabinia.engine.journal import Journal
from opabinia.engine.moments import Moments
from opabinia.engine.step import Standard
from opabinia.engine.trainer import Trainer
from opabinia.engine.writers import TensorBoard, Terminal
from opabinia.losses import cross_entropy
from opabinia.models import backbones
from opabinia.optim import optimizers, schedules
from opabinia.runtime.device import choose_device, set_arithmetic
from opabinia.runtime.durations import Duration, Units
from opabinia.runtime.environment import describe_environment, library_versions
from opabinia.runtime.log import log, log_in_full
from opabinia.runtime.processes import is_first, rank, world_size
from opabinia.runtime.seeds import INIT, draw_seed, hash32, seed_sample
from opabinia.runtime.signals import Stopped
from opabinia.tasks import classification

PARTS = (backbones, classification, cross_entropy, limit, mix, optimizers, schedules, sources, transforms)
"""The modules whose import registers the built-in parts that nothing here names."""

Seed = Annotated[int, Interval(ge=0, lt=2**63)]

# --- sections of a config -------------------------------------------------------------------------------------------


@register.section(name="train")
@dataclass(frozen=True, kw_only=True)
class Training:
    """How long and how to train.

    Args:
        length: of the run, such as ``90ep`` or ``5000it``.
        step: how a batch becomes an update.
        device: ``auto`` takes the GPU of the local rank if there is one.
        deterministic: only operations that give the same bits again; slower on GPUs.
        cudnn_benchmark: let cuDNN try which convolution is fastest; results may differ in the last bits.
        threads: CPU threads of each process; null leaves it to torch. Other numbers change last bits.
        log_every: steps in one line of the journal.
        log_samples: a line for every step, with the ids of its samples.
    """

    length: Duration
    step: StepPart = Standard
    device: Literal["auto", "cpu", "cuda"] = "auto"
    deterministic: bool = False
    cudnn_benchmark: bool = False
    threads: Count | None = None
    log_every: Count = 20
    log_samples: bool = False


@register.section(name="evaluate")
@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When and how to evaluate during training.

    Args:
        every: the period; the end of the run is always evaluated, and 0ep means only that.
        batch_size: samples of one forward pass; null takes ``data.batch_size``.
    """

    every: Duration = Duration(1, "ep")
    batch_size: Count | None = None


@register.section(name="checkpoint")
@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When to save, and what to keep.

    Args:
        every: the period, in hours too; the end of the run is always saved.
        keep: how many of the newest to keep; the best is kept beside them.
        best: the score that decides which is best; null takes the first score of the task.
    """

    every: Annotated[Duration, Units("ep", "it", "h")] = Duration(1, "ep")
    keep: Count = 2
    best: str | None = None


@dataclass(frozen=True)
class Session:
    """What a run is given that is not config.

    Attributes:
        folder: the run folder; it exists.
        resume: the checkpoint to go on from.
        interrupted: asked after every step why to stop; None to go on.
        begin: called when everything is built and fits together, right before the first step.
    """

    folder: Path
    resume: Snapshot | None = None
    interrupted: Callable[[], str | None] = lambda: None
    begin: Callable[[], None] = lambda: None


# --- pieces that every command puts together in the same way --------------------------------------------------------


def first_samples(stream: Stream, count: int) -> Batch:
    """The first samples of a data set as a batch, as they come out of the transforms.

    Raises:
        DataError: one of them cannot be read.
    """
    numbers = np.arange(min(count, len(stream.source)))
    row = Row(step=0, epoch=0, first=0, count=len(numbers))
    return Reader(stream.source, stream.transforms).batch(Request(row, numbers, numbers))


def facts_of(stream: Stream) -> Facts:
    """What parts may know of a data set. Channels are those of its first sample, as it comes out of the transforms."""
    source = stream.source
    channels = first_samples(stream, 1)["image"].shape[1] if len(source) else source.channels
    return Facts(samples=len(source), channels=channels, classes=tuple(source.classes))


def make_task(task: Callable[[Facts], Task], facts: Facts, seed: int, device: torch.device) -> Task:
    """The model with the weights that ``seed`` gives, on ``device``."""
    seed_sample(hash32(INIT, seed))
    with blamed("task"):
        return task(facts).to(device)


def make_validation(
    name: str, stream: Stream, batch_size: int, data: Data, seed: int, device: torch.device
) -> Validation:
    """A data set to evaluate on, read in whole batches in the order of its source."""
    facts = facts_of(stream)
    reader = Reader(stream.source, stream.transforms, facts=facts, seed=seed, rank=rank())
    requests = evaluation_requests(len(stream.source), batch_size, rank(), world_size())
    return Validation(name, Loader(reader, requests, workers=data.workers, pin_memory=device.type == "cuda"), facts)


def make_training_loader(data: Data, plan: Plan, facts: Facts, seed: int, device: torch.device) -> Loader:
    """This process's slice of the batches of ``plan``."""
    stream = data.train
    reader = Reader(stream.source, stream.transforms, data.mix, facts, seed, rank())
    orders = partial(order, seed, n=len(stream.source), shuffle=data.shuffle)
    requests = training_requests(plan, orders, rank(), world_size())
    return Loader(reader, requests, workers=data.workers, pin_memory=device.type == "cuda")


def scores_offered(task: Task, name: str, facts: Facts) -> dict[str, str]:
    """The scores that ``task`` gives on the set ``name``, and which way is better.

    Raises:
        ConfigError: the task cannot be evaluated on a set with these facts.
    """
    with blamed(f"data.{name}"):
        evaluators = task.evaluators(facts)
    if not evaluators:
        log.warning("the task has no evaluator for data.%s: it gives no scores", name)
    return {f"{name}/{score}": better for evaluator in evaluators for score, better in evaluator.better.items()}


def make_best(metric: str | None, offered: Mapping[str, str]) -> SaveBest | None:
    """The hook that keeps the best checkpoint.

    Raises:
        ConfigError: no evaluator gives ``metric``.
    """
    if metric is None and not offered:
        return None
    metric = metric or next(iter(offered))
    if metric not in offered:
        message = f"no evaluation gives the score {metric!r}"
        raise ConfigError(
            Problem(
                "",
                "checkpoint.best",
                message,
                "",
                nearest(metric, offered),
                f"scores: {listing(list(offered)) or 'none'}",
            )
        )
    return SaveBest(metric, offered[metric])


def fingerprint(source: Source) -> str:
    """Tells whether two sources hold the same samples in the same order, as far as the source can say."""
    own = getattr(source, "fingerprint", None)
    return str(own() if callable(own) else f"{len(source)} samples, {len(source.classes)} classes")


# --- commands -------------------------------------------------------------------------------------------------------


@register.command
def train(
    session: Session,
    /,
    *,
    task: TaskPart,
    data: Data,
    optimizer: OptimizerPart,
    schedule: SchedulePart = schedules.constant,
    train: Training,
    evaluate: Evaluation,
    checkpoint: Checkpointing,
    hooks: dict[str, HookPart] | None = None,
    writers: list[WriterPart] = [Terminal, TensorBoard],  # noqa: B006 (never changed)
    seed: Seed | None = None,
) -> dict[str, float]:
    """Train a task and return its final scores, such as ``{"val/top1": 0.99}``.

    Args:
        task: what a batch means.
        data: where samples come from.
        optimizer: of the task's parameters.
        schedule: multiplies the optimizer's learning rate over time.
        train: how long and how to train.
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
    if train.deterministic and train.cudnn_benchmark:
        raise ConfigError(Problem("", "train.cudnn_benchmark", "cannot be true when train.deterministic is"))
    with blamed("train.device"):
        device = choose_device(train.device)
    threads = set_arithmetic(
        deterministic=train.deterministic, cudnn_benchmark=train.cudnn_benchmark, threads=train.threads
    )
    log.info("rank %d of %d on %s, %d threads, seed %d", rank(), world_size(), device, threads, seed)
    log_in_full("environment", describe_environment(device, threads))

    # Data first: the plan, the model and the evaluators need its facts.
    facts = facts_of(data.train)
    with blamed("data"):
        plan = ConstantPlan(facts.samples, data.batch_size, train.length, data.drop_last)
    warn_of_odd_lengths(plan, schedule, data.batch_size)
    if not plan.total_steps:
        raise ConfigError(Problem("", "train.length", f"{train.length} is a run without a single step"))
    about = {
        "seed": seed,
        "global_batch_size": data.batch_size,
        "data": fingerprint(data.train.source),
        "shuffle": data.shuffle,
        "facts": asdict(facts),
        "world_size": world_size(),
        "threads": threads,
        "versions": library_versions(),
    }
    if session.resume is not None:
        check_same_course(session.resume, about, plan)
    start = Clock.at(plan, session.resume.step if session.resume else 0)

    # The model moves to its device before the optimizer sees its parameters.
    model = make_task(task, facts, seed, device)
    log_in_full("model", str(model))
    with blamed("optimizer"):
        optimizing = optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
    step = train.step(model, optimizing, schedule, seed)

    validation = []
    if data.val is not None:
        validation.append(make_validation("val", data.val, evaluate.batch_size or data.batch_size, data, seed, device))
    offered: dict[str, str] = {}
    for one in validation:
        offered.update(scores_offered(model, one.name, one.facts))

    flush = Flush(train.log_every, samples=train.log_samples)
    with blamed("hooks"):
        acting = in_order(
            task={f"task.{number}": hook for number, hook in enumerate(model.hooks(facts))},
            user=hooks or {},
            flush=flush,
            save=Save(checkpoint.every),
            evaluate=Evaluate(evaluate.every),
            best=make_best(checkpoint.best, offered),
        )
    lines = [writer(session.folder, start) for writer in writers] if is_first() else []
    journal = Journal(session.folder / "metrics.jsonl" if is_first() else None, lines)
    trainer = Trainer(
        task=model,
        step=step,
        plan=plan,
        loader=make_training_loader(data, plan, facts, seed, device),
        validation=validation,
        journal=journal,
        hooks=acting,
        folder=session.folder,
        device=device,
        keep=checkpoint.keep,
        about=about,
        interrupted=session.interrupted,
    )
    try:
        if session.resume is not None:
            trainer.restore(session.resume)
        session.begin()
    except BaseException:
        journal.close()
        raise
    log.info(
        "%d samples, %d steps of %d (%d an epoch); from step %d",
        facts.samples, plan.total_steps, data.batch_size, plan.steps_per_epoch, start.step,
    )  # fmt: skip
    scores = trainer.run()
    if trainer.stopped:
        raise Stopped(trainer.stopped)
    return scores


def warn_of_odd_lengths(plan: ConstantPlan, schedule: Schedule, batch_size: int) -> None:
    """What can be meant, as in a short trial of a long recipe, but seldom is."""
    if batch_size > plan.samples:
        log.warning("data.batch_size is %d, but there are %d samples: a batch is all of them", batch_size, plan.samples)
    warmup = getattr(schedule, "keywords", {}).get("warmup")
    if isinstance(warmup, Duration) and warmup.steps(plan.steps_per_epoch) >= plan.total_steps > 0:
        log.warning("schedule.warmup (%s) is not over before the run is: lr never reaches its peak", warmup)


def check_same_course(snapshot: Snapshot, about: Mapping[str, Any], plan: Plan) -> None:
    """What must not change between a checkpoint and its continuation, because the order of the data hangs on it.

    Raises:
        ConfigError: seed, batches or data differ, or the run would be over before.
    """
    keys = {
        "seed": "seed",
        "global_batch_size": "data.batch_size",
        "data": "data.train.source",
        "shuffle": "data.shuffle",
    }
    problems = [
        Problem(
            "", path, f"a resumed run keeps its course: the checkpoint has {snapshot.state[key]!r}, the config gives "
            f"{about[key]!r}; go on with the former or begin a new run"
        )
        for key, path in keys.items()
        if snapshot.state[key] != about[key]
    ]  # fmt: skip
    clock = Clock.at(plan, min(snapshot.step, plan.total_steps))
    if clock.step < snapshot.step:
        message = f"the checkpoint is at step {snapshot.step}, and the run would end at step {plan.total_steps}"
        problems.append(Problem("", "train.length", message))
    elif not problems and (clock.epoch, clock.samples) != (snapshot.state["epoch"], snapshot.state["samples"]):
        message = f"step {snapshot.step} would not be where it was in the data: the batches of an epoch are others"
        problems.append(Problem("", "data", message))
    if problems:
        raise ConfigError(problems)
    for key in ("world_size", "threads", "versions"):
        if snapshot.state[key] != about[key]:
            log.warning("%s: %s when saved, %s now; the last bits may differ", key, snapshot.state[key], about[key])


def evaluate(folder: Path, parts: Mapping[str, Any], snapshot: Snapshot) -> dict[str, float]:
    """Scores of a trained model.

    Args:
        folder: the run folder.
        parts: the built parameters of :func:`train`.
        snapshot: the checkpoint; it holds the facts of the training data, too.

    Raises:
        ConfigError: there is nothing to evaluate on, or the weights do not fit the model.
    """
    training, data = parts["train"], parts["data"]
    if data.val is None:
        raise ConfigError(Problem("", "data.val", "there is no data to evaluate on"))
    with blamed("train.device"):
        device = choose_device(training.device)
    # cuDNN's trials pay in long trainings only.
    set_arithmetic(deterministic=training.deterministic, cudnn_benchmark=False, threads=training.threads)
    seed = snapshot.state["seed"]
    facts = Facts(**{**snapshot.state["facts"], "classes": tuple(snapshot.state["facts"]["classes"])})
    model = make_task(parts["task"], facts, seed, device)
    try:
        model.load_state_dict(dict(snapshot.tensors["model"]))
    except RuntimeError as error:
        raise ConfigError(Problem("", "task", f"the weights do not fit: {error}")) from error
    batch_size = parts["evaluate"].batch_size or data.batch_size
    validation = make_validation("val", data.val, batch_size, data, seed, device)
    scores_offered(model, validation.name, validation.facts)
    session = Run(
        task=model,
        optimizer=None,
        loader=None,
        journal=Journal(None),
        clock=Clock(),
        checkpoints=None,
        evaluate=dict,
        scores={},
        folder=folder,
    )
    return evaluation_run(session, Moments(parts["hooks"] or {}), [validation], device)


def rehearse(parts: Mapping[str, Any]) -> None:
    """Build everything and push one tiny batch through on the CPU, so that a config is known to work before it is run.

    The model is built on the meta device first: a size that does not fit is told before memory is taken.

    Raises:
        ConfigError: what a run would meet.
    """
    data = parts["data"]
    facts = facts_of(data.train)
    with blamed("data"):
        plan = ConstantPlan(facts.samples, data.batch_size, parts["train"].length, data.drop_last)
    with blamed("task"), torch.device("meta"):
        parts["task"](facts)
    cpu = torch.device("cpu")
    model = make_task(parts["task"], facts, 0, cpu)
    with blamed("hooks"):
        refuse_wrong(parts["hooks"] or {})
    with blamed("optimizer"):
        optimizer = parts["optimizer"]([parameter for parameter in model.parameters() if parameter.requires_grad])
    step = parts["train"].step(model, optimizer, parts["schedule"], 0)
    clock = Clock.at(plan, 0)
    batch = first_samples(data.train, 2)
    for mixing in data.mix:
        batch = mixing(batch, facts)
    _push(lambda: step(batch, plan.row(0), clock, lambda: None), batch)
    if data.val is not None:
        make_best(parts["checkpoint"].best, scores_offered(model, "val", facts_of(data.val)))
        val_batch = first_samples(data.val, 2)
        _push(lambda: model.eval().predict(val_batch), val_batch)


def _push(action: Callable[[], object], batch: Batch) -> None:
    """Run a model; what it cannot take is told with the shape of the batch."""
    try:
        action()
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        shape = tuple(batch["image"].shape) if "image" in batch else "?"
        raise ConfigError(
            Problem("", "task", f"a batch of shape {shape} does not go through: {type(error).__name__}: {error}")
        ) from error
