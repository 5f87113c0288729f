"""The composition root: the one place where parts come together and where the order of construction matters.

The parameters of :func:`train` are the top level of a config. Importing this module registers every built-in part.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from opabinia.config import ConfigError, Problem, register
from opabinia.config.build import blamed
from opabinia.contracts import (
    Arithmetic,
    Batch,
    Clock,
    Facts,
    HookPart,
    OptimizerPart,
    Plan,
    Run,
    Schedule,
    SchedulePart,
    ShapesPart,
    Task,
    TaskPart,
    TransformPart,
    Unfit,
    WriterPart,
)
from opabinia.data import Data, detection_samplers, identity_samplers, mix, samplers, shard_order, sources, transforms
from opabinia.data import shapes as shape_parts
from opabinia.data.batches import StagedPlan
from opabinia.engine import trackers
from opabinia.engine.checkpoint import Snapshot
from opabinia.engine.evaluate import Validation, evaluation_run, layers_of, learns
from opabinia.engine.hooks import (
    Bottleneck,
    Estimate,
    Evaluate,
    Flush,
    FlushSamples,
    KeepAverage,
    Save,
    Timer,
    early_stop,
    expected,
    freeze,
    in_order,
    limit,
    precise_norm,
    refuse_wrong,
    watch,
)
from opabinia.engine.hooks.stages import FollowStages
from opabinia.engine.journal import Journal
from opabinia.engine.layers import with_layers
from opabinia.engine.moments import Moments
from opabinia.engine.trainer import Trainer
from opabinia.engine.writers import TensorBoard, Terminal
from opabinia.evaluation import clusters, coco, collapse, knn, low_shot, lvis, probe, searches, svm, voc
from opabinia.loading import load
from opabinia.losses import binary, cross_entropy, metric
from opabinia.models import backbones, detectors, heads, necks, pooling, resnets, video, vits
from opabinia.models.norms import split_norms
from opabinia.models.weights import Init, initialise
from opabinia.optim import lars, optimizers
from opabinia.optim import schedules as schedule_parts
from opabinia.optim.ema import Ema
from opabinia.optim.groups import Groups
from opabinia.optim.schedules import constant
from opabinia.pieces import (
    compile_modules,
    facts_of,
    fingerprint,
    first_samples,
    fresh_batches,
    make_best,
    make_optimizer,
    make_plan,
    make_sampler,
    make_task,
    make_training_loader,
    make_validation,
    order_fingerprint,
    own_periods,
    placed,
    prepared,
    refuse_other_classes,
    refuse_pieces,
    refuse_small_batches,
    scores_offered,
    spread,
    tell_work,
    with_average,
)
from opabinia.predictor import Predictor
from opabinia.runtime.device import choose_device, set_arithmetic
from opabinia.runtime.durations import Duration
from opabinia.runtime.environment import describe_environment, library_versions
from opabinia.runtime.log import log, log_in_full
from opabinia.runtime.processes import is_first, rank, world_size
from opabinia.runtime.seeds import draw_seed, generators_kept
from opabinia.runtime.signals import Stopped
from opabinia.settings import Checkpointing, Evaluation, Seed, Training
from opabinia.summary import lines_of, one_sample, told_data, told_device, told_length, told_model
from opabinia.tasks import classification, detection, reid, selfsup
from opabinia.tasks import video as video_task
from opabinia.tasks.distill import Distill, distilled, make_teacher, own_average, student_weights

PARTS = (
    backbones,
    binary,
    classification,
    clusters,
    coco,
    collapse,
    cross_entropy,
    detection,
    detection_samplers,
    detectors,
    early_stop,
    expected,
    freeze,
    heads,
    identity_samplers,
    knn,
    lars,
    limit,
    low_shot,
    lvis,
    metric,
    mix,
    necks,
    optimizers,
    pooling,
    precise_norm,
    probe,
    reid,
    resnets,
    samplers,
    schedule_parts,
    searches,
    selfsup,
    shape_parts,
    shard_order,
    sources,
    svm,
    trackers,
    transforms,
    video,
    video_task,
    vits,
    voc,
    watch,
)
"""The modules whose import registers the built-in parts that nothing here names."""


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


# --- commands -------------------------------------------------------------------------------------------------------


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
    writers: list[WriterPart] = [Terminal, TensorBoard],  # noqa: B006 (never changed)
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
    facts = facts_of(data.train, skip=data.on_error == "skip")
    with blamed("data"):
        sampler = make_sampler(data, seed)
        plan = make_plan(data, sampler, train.length, shapes)
    warn_of_odd_lengths(plan, schedule, data.batch_size, len(sampler))
    if not plan.total_steps:
        raise ConfigError(Problem("", "train.length", f"{train.length} is a run without a single step"))
    every_schedule = {"lr": schedule, **(schedules or {})}
    for option, one in every_schedule.items():
        with blamed("schedule" if option == "lr" else f"schedules.{option}"):
            one(Clock.at(plan, 0))
    about = {
        "seed": seed,
        "global_batch_size": data.batch_size,
        "data": fingerprint(data.train.source),
        "shuffle": data.shuffle,
        "order": order_fingerprint(sampler),
        "facts": asdict(facts),
        "source_channels": data.train.source.channels,
        "world_size": world_size(),
        "threads": threads,
        "versions": library_versions(),
    }
    if session.resume is not None:
        check_same_course(session.resume, about, plan)
    start = Clock.at(plan, session.resume.step if session.resume else 0)

    # The model moves to its device before the optimizer sees its parameters.
    model = make_task(task, facts, seed)
    if init is not None and session.resume is None:
        with blamed("init"):
            log.info("init: %s", initialise(model, init))
    if distill is not None:
        with blamed("distill"):
            model = distilled(model, teachers_of(distill, facts), distill)
    refuse_pieces(model, train, data.batch_size)
    refuse_small_batches(model, plan)
    if model.compares_classes and data.sampler is None:
        log.warning("data.sampler: losses compare samples of a class, of which a batch may hold few; see `identities`")
    if splits := splits_norms(plan, train):
        split_norms(model, 1)  # from here on others hold on to the norms
    model = prepared(model, train, device)
    twin = copy.deepcopy(model) if ema else None
    averages = [one for one in (twin, own_average(model)) if one is not None]
    said = summary_of(session.title, model, data, plan, facts, train, device, threads, start) if is_first() else []
    together = spread([model, *averages], train, device)
    log_in_full("model", str(model))
    optimizing = make_optimizer(optimizer, model, groups, train, data.batch_size)
    with blamed("train.step"):
        skips = train.on_nonfinite == "skip"
        arithmetic = Arithmetic(seed, train.precision, train.micro_batch, train.check_losses, skips)
        step = train.step(together or model, optimizing, every_schedule, arithmetic)

    tell_work(data, model.size_multiple)
    average = KeepAverage(model, ema, data.batch_size, twin) if ema else None
    validation = make_validation(data, evaluate, seed, device, train.precision, model.size_multiple)
    if average:
        validation = with_average(validation, average.task, evaluate.weights)
    offered = scores_offered(model, validation)
    refuse_other_classes(model, validation, facts.classes)
    if train.compile:
        compile_modules(model, device)

    with blamed("hooks"):
        acting = in_order(
            task={f"task.{number}": hook for number, hook in enumerate(model.hooks(facts))},
            user=hooks or {},
            flush=FlushSamples() if train.log_samples else Flush(train.log_every),
            save=Save(checkpoint.every),
            evaluate=Evaluate(evaluate.every, own_periods(validation)),
            best=make_best(checkpoint.best, offered),
            average=average,
            timer=Timer(),
            bottleneck=Bottleneck(data.workers, data.cheaper(device.type == "cuda"), train.faster()),
            stages=FollowStages(plan.stages, norms=splits) if isinstance(plan, StagedPlan) else None,
            estimate=Estimate(device, {one.name: one.every or evaluate.every for one in validation}),
        )
    lines = [writer(session.folder, start) for writer in writers] if is_first() else []
    journal = Journal(session.folder / "metrics.jsonl" if is_first() else None, lines, by=train.log_by)
    trainer = Trainer(
        task=model,
        step=step,
        plan=plan,
        loader=make_training_loader(data, plan, sampler, facts, seed, device, model.size_multiple),
        validation=validation,
        journal=journal,
        hooks=acting,
        folder=session.folder,
        device=device,
        keep=checkpoint.keep,
        about=about,
        interrupted=session.interrupted,
        left_out=session.left_out.union(session.resume.state.get("left_out", ()) if session.resume else ()),
        sharded=together is not None and together.sharded,
        batches=partial(fresh_batches, data, facts, seed, device, evaluate.batch_size, model.size_multiple),
        offered=offered,
        began=session.began,
    )
    try:
        if session.resume is not None:
            trainer.restore(session.resume)
        session.begin(session.resume)
    except BaseException:
        journal.close()
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
    facts: Facts,
    train: Training,
    device: torch.device,
    threads: int,
    start: Clock,
) -> list[str]:
    """What the run is, in aligned lines; without a title its length alone."""
    length = told_length(train.length, plan, data, facts, world_size(), start.step)
    if not title:
        return [length]
    with generators_kept():
        shape, skip = plan.row(start.step % plan.total_steps).shape, data.on_error == "skip"
        sample = first_samples(data.train, 1, skip=skip, size_multiple=model.size_multiple, shape=shape)
    return lines_of(
        {
            "run": title,
            "model": told_model(model, one_sample(sample)),
            "data": told_data(data, facts),
            "device": told_device(device, train, world_size(), threads, data.workers),
            "length": length,
        }
    )


def teachers_of(distill: Distill, facts: Facts) -> list[torch.nn.Module]:
    """Who teaches beside the student's own average: models of runs, or backbones with their classifiers.

    Raises:
        ValueError: nobody does, or one does not know what is to be learned.
    """
    logits = distill.logits_weight > 0
    return [make_teacher(one, facts, _model_of, logits=logits) for one in distill.others]


def _model_of(run: Path) -> torch.nn.Module:
    return load(run, device="cpu").task


def set_up(train: Training) -> tuple[torch.device, int]:
    """The device, and the number of CPU threads.

    Raises:
        ConfigError: this machine has no such device, or two settings exclude each other.
    """
    if train.deterministic and train.cudnn_benchmark:
        raise ConfigError(Problem("", "train.cudnn_benchmark", "cannot be true when train.deterministic is"))
    with blamed("train.device"):
        device = choose_device(train.device)
    threads = set_arithmetic(
        deterministic=train.deterministic, cudnn_benchmark=train.cudnn_benchmark, threads=train.threads
    )
    return device, threads


def splits_norms(plan: Plan, train: Training) -> bool:
    """Whether batch norms are to see a process's share of the batch in parts, or with those of other processes, at some
    time of the run. Those that are synchronised take their statistics over the whole batch."""
    stages = plan.stages if isinstance(plan, StagedPlan) else ()
    return not train.sync_batch_norm and any(stage.splits > 1 or stage.processes > 1 for stage in stages)


def warn_of_odd_lengths(plan: Plan, schedule: Schedule, batch_size: int, samples: int) -> None:
    """What can be meant, as in a short trial of a long recipe, but seldom is."""
    if batch_size > samples:
        log.warning("data.batch_size is %d, but there are %d samples: a batch is all of them", batch_size, samples)
    warmup = getattr(schedule, "keywords", {}).get("warmup")
    if isinstance(warmup, Duration) and Clock.at(plan, 0).steps(warmup) >= plan.total_steps > 0:
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
    if all(snapshot.state.get(key) == about[key] for key in keys):
        keys = {"order": "data.sampler"}
    problems = [
        Problem(
            "", path, f"a resumed run keeps its course: the checkpoint has {snapshot.state.get(key)!r}, the config "
            f"gives {about[key]!r}; go on with the former or begin a new run"
        )
        for key, path in keys.items()
        if snapshot.state.get(key) != about[key]
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


def evaluate(
    folder: Path, parts: Mapping[str, Any], snapshot: Snapshot, training_data: Callable[[], Data]
) -> dict[str, float]:
    """Scores of a trained model.

    Args:
        folder: the run folder.
        parts: the built parameters of :func:`train`.
        snapshot: the checkpoint; it holds the facts of the training data, too.
        training_data: opens the data with that of training, asked only where an evaluator learns from it.

    Raises:
        ConfigError: there is nothing to evaluate on, or the weights do not fit the model.
    """
    training, data = parts["train"], parts["data"]
    if not data.validation:
        raise ConfigError(Problem("", "data.val", "there is no data to evaluate on"))
    # cuDNN's trials pay in long trainings only.
    device, _ = set_up(replace(training, cudnn_benchmark=False))
    seed = snapshot.state["seed"]
    model = placed(trained_task(parts["task"], snapshot), training, device)
    averaged = trained_task(parts["task"], snapshot, "ema") if "ema" in snapshot.tensors else None
    average = placed(averaged, training, device) if averaged else None

    def sets(data: Data) -> list[Validation]:
        made = make_validation(data, parts["evaluate"], seed, device, training.precision, model.size_multiple)
        return with_average(made, average, parts["evaluate"].weights) if average else made

    validation = sets(data)
    scores_offered(model, validation)
    if any(learns(model, one) for one in validation):
        data = replace(data, train=training_data().train)
        refuse_other_classes(model, validation, data.train.source.classes)
        validation = sets(data)
    session = Run(
        task=model,
        optimizer=None,
        loader=None,
        journal=Journal(None),
        clock=Clock(),
        checkpoints=None,
        evaluate=lambda takes: {},
        scores={},
        folder=folder,
    )
    return evaluation_run(session, Moments(parts["hooks"] or {}), validation, device)


@register.command
def predictor(
    snapshot: Snapshot,
    device: Literal["auto", "cpu", "cuda", "mps"] | None,
    /,
    *,
    task: TaskPart,
    transforms: Sequence[TransformPart] = (),
    views: tuple[int, int] | None = None,
    train: Training,
    evaluate: Evaluation,
) -> Predictor:
    """A trained task that takes pictures.

    Args:
        task: what a batch means.
        transforms: of the validation data.
        views: how many clips and crops of a film the validation data sees.
        train: how it was trained; of it the device and the precision.
        evaluate: of it the batch size.

    Raises:
        ConfigError: the weights do not fit, or there is no such device.
    """
    where, _ = set_up(replace(train, device=device or train.device, cudnn_benchmark=False))
    return Predictor(
        placed(trained_task(task, snapshot, best_weights(snapshot, evaluate)), train, where),
        transforms,
        facts_from(snapshot),
        channels=snapshot.state.get("source_channels", 3),
        device=where,
        precision=train.precision,
        batch_size=evaluate.batch_size or 32,
        views=views,
    )


def facts_from(snapshot: Snapshot) -> Facts:
    """The facts of the data that a checkpoint was trained on."""
    facts = snapshot.state["facts"]
    saved: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in facts.items()}
    return Facts(**saved)


def best_weights(snapshot: Snapshot, evaluate: Evaluation) -> str:
    """Which weights of a checkpoint to use: the averaged ones, if there are some and they are what is evaluated."""
    return "ema" if "ema" in snapshot.tensors and evaluate.weights != "raw" else "model"


def trained_task(task: Callable[[Facts], Task], snapshot: Snapshot, weights: str = "model") -> Task:
    """The task with the weights of a checkpoint: ``model``, or ``ema``, their average.

    Raises:
        ConfigError: they do not fit.
    """
    model = make_task(task, facts_from(snapshot), snapshot.state["seed"])
    try:
        model.load_state_dict(student_weights(snapshot.tensors[weights]))
    except RuntimeError as error:
        raise ConfigError(Problem("", "task", f"the weights do not fit: {error}")) from error
    return model


def rehearse(parts: Mapping[str, Any]) -> None:
    """Build everything and push one tiny batch through on the CPU, so that a config is known to work before it is run.

    The model is built on the meta device first: a size that does not fit is told before memory is taken.

    Raises:
        ConfigError: what a run would meet.
    """
    data, training = parts["data"], parts["train"]
    skip = data.on_error == "skip"
    facts = facts_of(data.train, skip=skip)
    plan = make_plan(data, make_sampler(data, 0), training.length, parts["shapes"])
    with blamed("task"), torch.device("meta"):
        parts["task"](facts)
    model = make_task(parts["task"], facts, 0)
    if parts["init"] is not None:
        with blamed("init"):
            log.info("init: %s", initialise(model, parts["init"]))
    if parts["distill"] is not None:
        with blamed("distill"):
            model = distilled(model, teachers_of(parts["distill"], facts), parts["distill"])
    refuse_pieces(model, training, data.batch_size)
    if plan.total_steps:
        refuse_small_batches(model, plan)
    with blamed("hooks"):
        refuse_wrong(parts["hooks"] or {})
    optimizer = make_optimizer(parts["optimizer"], model, parts["groups"], training, data.batch_size)
    with blamed("train.step"):
        every = {"lr": parts["schedule"], **(parts["schedules"] or {})}
        step = training.step(model, optimizer, every, Arithmetic(0, training.precision))
    clock = Clock.at(plan, 0)
    first = plan.row(0)
    batch = first_samples(data.train, 2, skip=skip, size_multiple=model.size_multiple, shape=first.shape)
    tell_work(data, model.size_multiple)
    with blamed("data.mix"):
        for mixing in data.mix:
            batch = mixing(batch, facts)
    row = replace(first, count=len(batch["id"]))
    _push(lambda: step(batch, row, clock, lambda: None), batch)
    validation = make_validation(
        data, replace(parts["evaluate"], batch_size=None), 0, torch.device("cpu"), training.precision
    )
    if parts["ema"] is not None:
        validation = with_average(validation, model, parts["evaluate"].weights)
    make_best(parts["checkpoint"].best, scores_offered(model, validation))
    refuse_other_classes(model, validation, facts.classes)
    judges = [judge for one in validation for judge in one.evaluators(model, one.facts)]
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
        said = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
        raise ConfigError(Problem("", "task", f"a batch of shape {shape} does not go through: {said}")) from error
