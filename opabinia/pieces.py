"""Pieces that every command puts together in the same way: facts, model, loaders, scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import torch

from opabinia import contracts
from opabinia.config import ConfigError, Problem
from opabinia.config.build import blamed
from opabinia.config.errors import listing, nearest
from opabinia.contracts import (
    Backbone,
    Batch,
    Course,
    Evaluator,
    Facts,
    Layout,
    Plan,
    Row,
    Sampler,
    Source,
    Task,
    Together,
)
from opabinia.data import Data, Stream, ValidationStream
from opabinia.data.batches import ConstantPlan, StagedPlan
from opabinia.data.cache import cached
from opabinia.data.loader import DataError, Loader, Reader, Request, evaluation_requests, training_requests
from opabinia.data.on_device import OnDevice, noting, work_shared
from opabinia.data.order import EachOnce
from opabinia.engine.evaluate import Validation, layers_of
from opabinia.engine.feeding import Feeding
from opabinia.engine.hooks import SaveBest
from opabinia.evaluation.banks import Learner
from opabinia.models.norms import synchronise
from opabinia.optim.groups import Groups, apply_factors, parameter_groups
from opabinia.optim.optimizers import fuse
from opabinia.optim.schedules import scaled
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import rank, world_size
from opabinia.runtime.seeds import FRESH, INIT, hash32, seed_sample
from opabinia.settings import Evaluation, Measure, Training

# --- data -----------------------------------------------------------------------------------------------------------


def first_samples(
    stream: Stream,
    count: int,
    *,
    skip: bool = False,
    size_multiple: int | None = None,
    shape: tuple[int, ...] | None = None,
) -> Batch:
    """The first samples of a data set as a batch, as they come out of the transforms.

    Args:
        stream: the data set; it is not empty.
        count: how many.
        skip: pass over samples that cannot be read.
        size_multiple: as in :class:`opabinia.contracts.Task`.
        shape: as in :class:`opabinia.contracts.Row`.

    Raises:
        DataError: one of them cannot be read; with ``skip``, none of all can.
    """
    on_error: Literal["raise", "leave_out"] = "leave_out" if skip else "raise"
    reader = Reader(stream.source, stream.transforms, on_error=on_error, size_multiple=size_multiple)
    samples = len(stream.source)
    for first in range(0, samples, count):
        numbers = np.arange(first, min(first + count, samples))
        row = Row(step=0, epoch=0, first=first, count=len(numbers), shape=shape)
        batch = reader.read(Request(row, numbers, numbers)).batch
        if batch is not None:
            return batch
    raise DataError(f"none of the {samples} samples can be read")


def facts_of(stream: Stream, *, skip: bool = False) -> Facts:
    """What parts may know of a data set. Channels are those of its first sample, as it comes out of the transforms."""
    source = stream.source
    _refuse_wrong_labels(source)
    channels = source.channels
    if len(source):
        first = first_samples(stream, 1, skip=skip)
        image = first["views"][0] if "views" in first else first.get("image")
        channels = image.shape[-3 if image.ndim > 3 else 1] if image is not None else channels
    return Facts(
        samples=len(source),
        channels=channels,
        classes=tuple(source.classes),
        multi_label=bool(getattr(source, "multi_label", False)),
        cameras=int(getattr(source, "camera_count", 0)),
        views=int(getattr(source, "view_count", 0)),
        queries=len(np.unique(getattr(source, "queries", ()))) == 2,  # all are queries, or none: nothing is set apart
        boxes=bool(getattr(source, "has_boxes", False)),
        masks=bool(getattr(source, "has_masks", False)),
        keypoints=tuple(getattr(source, "keypoints", ())),
        category_ids=tuple(getattr(source, "category_ids", ())),
        frequencies=tuple(getattr(source, "frequencies", ())),
    )


def _refuse_wrong_labels(source: Source) -> None:
    """Tell labels that are no class, where a source tells its labels.

    Raises:
        ConfigError: there are some; the first of them is named.
    """
    labels = np.asarray(getattr(source, "labels", ()))
    classes = len(source.classes)
    if not labels.size or not classes:
        return
    right = (labels >= 0) & (labels < classes) if labels.ndim == 1 else (labels == 0) | (labels == 1)
    if labels.ndim == 2 and labels.shape[1] != classes:
        message = f"its samples have {labels.shape[1]} labels each, there are {classes} classes"
        raise ConfigError(Problem("", "data", f"{type(source).__name__}: {message}"))
    if not right.all():
        at = tuple(int(place) for place in np.argwhere(~right)[0])
        expected = f"0 to {classes - 1} for {classes} classes" if labels.ndim == 1 else "0 or 1"
        message = f"sample {at[0]} has the label {labels[at]}, expected {expected} ({int((~right).sum())} are wrong)"
        raise ConfigError(Problem("", "data", f"{type(source).__name__}: {message}"))


def fingerprint(source: Source) -> str:
    """Tells whether two sources hold the same samples in the same order, as far as the source can say."""
    own = getattr(source, "fingerprint", None)
    return str(own() if callable(own) else f"{len(source)} samples, {len(source.classes)} classes")


def order_fingerprint(sampler: Sampler) -> str:
    """Changes with the order of the data: what the sampler gives at the beginning of the first two epochs."""
    positions = np.arange(min(1000, len(sampler)))
    content = b"".join(sampler.order(epoch)(positions).tobytes() for epoch in (0, 1))
    return f"{len(sampler)} positions, {blake2b(content, digest_size=8).hexdigest()}"


def make_sampler(data: Data, seed: int) -> Sampler:
    """What says which samples make up an epoch."""
    if data.sampler is None:
        return EachOnce(len(data.train.source), seed, data.shuffle)
    with blamed("data.sampler"):
        return data.sampler(data.train.source, seed, data.batch_size)


def make_training_loader(
    data: Data,
    plan: Plan,
    sampler: Sampler,
    facts: Facts,
    seed: int,
    device: torch.device,
    size_multiple: int | None = None,
) -> Feeding:
    """This process's slice of the batches of ``plan``, on ``device``; ``size_multiple`` as in
    :class:`opabinia.contracts.Task`."""
    reader = Reader(
        *(_kept_decoded(data), data.train.transforms, data.mix, facts, seed, rank()),
        on_error="replace" if data.on_error == "skip" else "raise",
        size_multiple=size_multiple,
        reduced=data.decode == "reduced" or data.cache is not None,
    )
    requests = training_requests(plan, sampler.order, rank(), world_size())
    load = partial(Loader, requests=requests, workers=data.workers, pin_memory=device.type == "cuda")
    if data.augment_on == "workers":
        return Feeding(load(reader), device)
    return Feeding(load(noting(reader)), device, OnDevice(reader))


def _kept_decoded(data: Data) -> Source:
    """The samples to train on, with decoded pictures kept if that is wanted."""
    if data.cache is None:
        return data.train.source
    with blamed("data.cache"):
        return cached(data.train.source, data.cache, data.cache_size, "train")


def tell_work(data: Data, size_multiple: int | None = None) -> None:
    """Tell where training pictures are changed, if that is not only in the workers."""
    if data.augment_on == "device":
        reader = Reader(data.train.source, data.train.transforms, data.mix, size_multiple=size_multiple)
        log.info("data.augment_on: %s", work_shared(reader))


def make_validation(
    data: Data,
    evaluate: Evaluation,
    seed: int,
    device: torch.device,
    precision: str,
    size_multiple: int | None = None,
) -> list[Validation]:
    """The data sets to evaluate on, read in whole batches in the order of their sources; ``size_multiple`` as in
    :class:`opabinia.contracts.Task`.

    Raises:
        ConfigError: a measure is of a set that is not there, or two evaluations would have one name.
    """
    with blamed("data"):
        streams = data.validation
    measures = evaluate.measures or {}
    _refuse_other_sets(measures, [stream.prefix for stream in streams])
    found = []
    for stream in streams:
        facts = facts_of(stream, skip=data.on_error == "skip")
        load = partial(_evaluation_loader, data, stream, facts, evaluate.batch_size, seed, device, size_multiple)
        own = {name: one for name, one in measures.items() if one.on in (None, stream.prefix)}
        beside = [one.evaluator for one in own.values() if one.every is None]
        judges: list[tuple[str, Judges, Duration | None]] = [
            (stream.prefix, partial(_judged, beside), stream.every),
            *(
                (f"{stream.prefix}_{name}", partial(_measured, one.evaluator), one.every)
                for name, one in own.items()
                if one.every is not None
            ),
        ]
        found += [
            Validation(
                name,
                load(stream.source),
                facts,
                precision=precision,
                prefix=stream.prefix,
                evaluators=evaluators,
                training=load(data.train.source),
                every=every,
            )
            for name, evaluators, every in judges
        ]
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            message = f"{name!r} is the name of two evaluations; call the measure otherwise"
            raise ConfigError(Problem("", "evaluate.measures", message))
    return found


Judges = Callable[[Task, Facts], list[Evaluator]]


def _judged(measures: Sequence[Callable[[Facts], Evaluator]], task: Task, facts: Facts) -> list[Evaluator]:
    """The task's evaluators and the measures; a measure that gives a score of one of them stands in its place."""
    own, asked = task.evaluators(facts), [measure(facts) for measure in measures]
    names = {name for one in asked for name in one.better}
    kept = [one for one in own if not names & one.better.keys()]
    # The first score of all decides which checkpoint is the best.
    return [*kept, *asked] if kept[:1] == own[:1] else [*asked, *kept]


def _measured(measure: Callable[[Facts], Evaluator], task: Task, facts: Facts) -> list[Evaluator]:
    return [measure(facts)]


def _evaluation_loader(
    data: Data,
    stream: ValidationStream,
    facts: Facts,
    batch_size: int | None,
    seed: int,
    device: torch.device,
    size_multiple: int | None,
    source: Source,
) -> Loader:
    """A source read in whole batches, in its order, with the transforms of ``stream``."""
    if data.cache and source is stream.source and hasattr(source, "encoded"):
        with blamed("data.cache"):
            source = cached(source, data.cache, None, stream.prefix)
    reader = Reader(
        *(source, stream.transforms, (), facts, seed, rank()),
        on_error="leave_out" if data.on_error == "skip" else "raise",
        size_multiple=size_multiple,
    )
    requests = evaluation_requests(len(source), batch_size or data.batch_size, rank(), world_size())
    return Loader(reader, requests, workers=data.workers, pin_memory=device.type == "cuda")


def _refuse_other_sets(measures: Mapping[str, Measure], prefixes: Sequence[str]) -> None:
    for name, one in measures.items():
        if one.on is not None and one.on not in prefixes:
            message, known = f"there is no validation set {one.on!r}", f"sets: {listing(prefixes) or 'none'}"
            raise ConfigError(
                Problem("", f"evaluate.measures.{name}.on", message, "", nearest(one.on, prefixes), known)
            )


def fresh_batches(
    data: Data,
    facts: Facts,
    seed: int,
    device: torch.device,
    batch_size: int | None,
    size_multiple: int | None,
    name: str,
    count: int,
) -> Iterator[Batch]:
    """Batches of this process that belong to no epoch, the same every time: of ``train``, unmixed and in an order of
    their own, or of the validation set with this prefix, as far as it goes.

    Raises:
        ConfigError: there is no such set; told before any batch is asked for.
    """
    sets = {one.prefix: one for one in data.validation}
    if name != "train" and name not in sets:
        known = listing(["train", *sets])
        raise ConfigError(Problem("", "hooks", f"there is no data set {name!r}; data sets: {known}"))
    return _fresh(data, sets.get(name), facts, seed, device, batch_size, size_multiple, count)


def _fresh(
    data: Data,
    other: Stream | None,
    facts: Facts,
    seed: int,
    device: torch.device,
    batch_size: int | None,
    size_multiple: int | None,
    count: int,
) -> Iterator[Batch]:
    own = hash32(FRESH, seed)
    if other is None:
        sampler, size = make_sampler(data, own), data.batch_size
    else:
        data = replace(data, train=other, drop_last=False, cache=None, cache_size=None)
        sampler, size = EachOnce(len(data.train.source), own, False), batch_size or data.batch_size
        count = min(count, -(-len(sampler) // size))
    # Shares of whole batches: every process has as many, which layers that meet the others' need.
    plan = ConstantPlan(len(sampler), size, Duration(count, "it"), data.drop_last)
    loader: contracts.Loader = make_training_loader(
        replace(data, mix=()), plan, sampler, facts, own, device, size_multiple
    )
    try:
        for row, batch in loader.iterate():
            if row.step >= count:
                break
            yield batch
    finally:
        loader.close()


def with_average(validation: Sequence[Validation], average: Task, weights: str) -> list[Validation]:
    """The sets once more for averaged weights; whose scores come first, as they are what one trains for."""
    averaged = [
        replace(one, name=of_average(one.name), prefix=of_average(one.prefix or one.name), task=average)
        for one in validation
    ]
    return {"both": [*averaged, *validation], "ema": averaged, "raw": list(validation)}[weights]


def of_average(name: str) -> str:
    """What a set is called when averaged weights are evaluated on it."""
    return f"{name}_ema"


def own_periods(validation: Sequence[Validation]) -> dict[str, Duration]:
    """Periods of the evaluations that have one of their own, by name."""
    return {one.name: one.every for one in validation if one.every is not None}


def make_plan(
    data: Data, sampler: Sampler, length: Duration, shapes: Callable[[Course], Layout] | None
) -> ConstantPlan | StagedPlan:
    """All batches of the run."""
    with blamed("data"):
        plan = ConstantPlan(len(sampler), data.batch_size, length, data.drop_last)
    if shapes is None:
        return plan
    with blamed("shapes"):
        layout = shapes(Course(len(sampler), data.batch_size, length, world_size(), data.drop_last))
        others = sorted({one.samples for stage in layout.stages for one in stage.cycle} - {data.batch_size})
        if others and data.sampler is not None:
            log.warning(
                "data.sampler may group samples in batches of data.batch_size (%d); shapes takes batches of %s",
                *(data.batch_size, listing([str(one) for one in others])),
            )
        return StagedPlan(len(sampler), layout.stages, layout.length, data.drop_last)


# --- model ----------------------------------------------------------------------------------------------------------


def make_task(task: Callable[[Facts], Task], facts: Facts, seed: int) -> Task:
    """The model with the weights that ``seed`` gives."""
    seed_sample(hash32(INIT, seed))
    with blamed("task"):
        return task(facts)


def prepared(task: Task, train: Training, device: torch.device) -> Task:
    """The model on its device, as the settings want it there.

    Raises:
        ConfigError: nothing in it can compute its activations again.
    """
    if train.checkpoint_activations:
        with blamed("train.checkpoint_activations"):
            backbones = [module for module in task.modules() if isinstance(module, Backbone)]
            if not backbones:
                raise ValueError("this task has no backbone that could compute its activations again")
            for backbone in backbones:
                backbone.checkpoint_activations()
    return placed(task, train, device)


def refuse_pieces(task: Task, train: Training, batch_size: int) -> None:
    """Refuse micro-batches where the losses compare the samples of a batch with each other.

    Raises:
        ConfigError: a process's share of the batch would go through in pieces.
    """
    share = -(-batch_size // world_size())
    if task.whole_batches and train.micro_batch is not None and train.micro_batch < share:
        message = f"{train.micro_batch}: the losses of this task compare the {share} samples of a process's batch with "
        remedy = "each other, so they cannot go through in pieces; train.checkpoint_activations saves memory, too"
        raise ConfigError(Problem("", "train.micro_batch", message + remedy))


def refuse_small_batches(task: Task, plan: Plan) -> None:
    """Refuse batches, such as what is left at the end of an epoch, that have too few samples for the task.

    Raises:
        ConfigError: a process would get too few of one.
    """
    ends = {min(plan.epoch_start(epoch + 1), plan.total_steps) - 1 for epoch in range(plan.epochs)}
    smallest = min((plan.row(step) for step in {0, *ends}), key=lambda row: row.count)
    share = min(len(smallest.share(rank, world_size())) for rank in range(world_size()))
    if share < task.least:
        message = (
            f"{type(task).__name__} learns from {task.least} samples or more for each process, and of the batch of "
            f"{smallest.count} at step {smallest.step + 1} one would get {share}: raise data.batch_size, or leave out "
            "the incomplete batch of an epoch with data.drop_last"
        )
        raise ConfigError(Problem("", "data.batch_size", message))


def spread(models: Sequence[Task], train: Training, device: torch.device) -> Together | None:
    """Spread models over processes and return what trains the first of them; nothing to do for one process."""
    if world_size() == 1:
        return None
    if train.sync_batch_norm:
        for model in models:
            synchronise(model)
    with blamed("train.parallel"):
        return train.parallel(models, device)


def placed(task: Task, train: Training, device: torch.device) -> Task:
    """The model on its device in the memory layout of training, so that an evaluation computes the same digits."""
    task.to(device)
    if train.channels_last:
        for tensor in (*task.parameters(), *task.buffers()):
            if tensor.ndim in CHANNELS_LAST:
                tensor.data = tensor.data.to(memory_format=CHANNELS_LAST[tensor.ndim])
    return task


CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By the number of dimensions: of images, and of clips."""


def compile_modules(task: Task, device: torch.device) -> None:
    """Compile the modules a task is made of, in place; without a working compiler tell it and leave them."""
    try:
        torch.compile(torch.neg)(torch.ones(1, device=device))
    except Exception as error:  # many kinds: no compiler, no headers, a broken cache
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        log.warning("train.compile: this machine cannot compile (%s); going on without", reason)
        return
    for module in task.children():
        module.compile()


def make_optimizer(
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer],
    task: Task,
    groups: Groups | None,
    train: Training,
    batch_size: int,
) -> torch.optim.Optimizer:
    """The optimizer of the task's trainable parameters, with its rates as groups and batch want them."""
    with blamed("groups"):
        found = parameter_groups(task, groups)
    if not found:
        raise ConfigError(Problem("", "task", "no parameter of it is to be trained"))
    with blamed("optimizer"):
        made = optimizer(found)
        fuse(made)
    per = train.lr_batch_size
    apply_factors(made, scaled(1.0, batch_size, per, train.lr_scaling) if per else 1.0)
    if per or groups:
        for group in made.param_groups:
            log.info(
                "%d parameters: lr %g, weight decay %g",
                *(len(group["params"]), group["lr"], group.get("weight_decay", 0.0)),
            )
    return made


# --- scores ---------------------------------------------------------------------------------------------------------


def scores_offered(task: Task, validation: Sequence[Validation]) -> dict[str, str]:
    """The scores that an evaluation gives, and which way is better.

    Raises:
        ConfigError: the task cannot be evaluated on a set, or two evaluators give the same score.
    """
    offered: dict[str, str] = {}
    for one in validation:
        with blamed(f"data.val ({one.name})" if len(validation) > 1 else "data.val"):
            evaluators = one.evaluators(one.task or task, one.facts)
        with blamed("evaluate.measures"):
            layers_of(one.task or task, evaluators)
        if not evaluators:
            log.warning("the task has no evaluator for %s: it gives no scores", one.name)
        for score, better in ((name, way) for evaluator in evaluators for name, way in evaluator.better.items()):
            name = f"{one.prefix or one.name}/{score}"
            if name in offered:
                message = f"two evaluators give the score {name!r}: leave the measure out, or the task's own one"
                raise ConfigError(Problem("", "evaluate.measures", message, allowed="see task.evaluators"))
            offered[name] = better
    return offered


def refuse_other_classes(task: Task, validation: Sequence[Validation], known: Sequence[str]) -> None:
    """Tell evaluators that learn the labels of the training data, of classes ``known``, to judge a set of others.

    Raises:
        ConfigError: there are some.
    """
    for one in validation:
        judges = one.evaluators(one.task or task, one.facts)
        learners = [type(judge).__name__ for judge in judges if isinstance(judge, Learner)]
        if learners and one.facts.classes != tuple(known):
            message = (
                f"{', '.join(learners)}: learns the {len(known)} classes of the training data, and {one.name} has "
                f"{len(one.facts.classes)} others, or in another order; `on` says which set a measure is for"
            )
            raise ConfigError(Problem("", "evaluate.measures", message))


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
        known = f"scores: {listing(list(offered)) or 'none'}"
        raise ConfigError(Problem("", "checkpoint.best", message, "", nearest(metric, offered), known))
    return SaveBest(metric, offered[metric])
