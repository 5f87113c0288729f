"""What a run is judged by: data sets, evaluators and their scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.config.errors import listing, nearest
from opabinia.contracts import DatasetInfo, Evaluator, Source, Task
from opabinia.data import Data, ValidationStream
from opabinia.data.decoding.cache import cached
from opabinia.data.loader import Loader, Reader, evaluation_requests
from opabinia.engine.hooks import SaveBest
from opabinia.engine.loop.evaluate import Validation, layers_of
from opabinia.evaluation.representation.feature_bank import Learner
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import rank, world_size
from opabinia.training.samples import read_dataset_info
from opabinia.training.settings import Evaluation, Measure


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
    with errors_at("data"):
        streams = data.validation
    measures = evaluate.measures or {}
    _refuse_other_sets(measures, [stream.prefix for stream in streams])
    found = []
    for stream in streams:
        dataset_info = read_dataset_info(stream, skip=data.on_error == "skip")
        load = partial(_evaluation_loader, data, stream, dataset_info, evaluate.batch_size, seed, device, size_multiple)
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
                dataset_info,
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


Judges = Callable[[Task, DatasetInfo], list[Evaluator]]


def _judged(
    measures: Sequence[Callable[[DatasetInfo], Evaluator]], task: Task, dataset_info: DatasetInfo
) -> list[Evaluator]:
    """The task's evaluators and the measures; a measure that gives a score of one of them stands in its place."""
    own, asked = task.evaluators(dataset_info), [measure(dataset_info) for measure in measures]
    names = {name for one in asked for name in one.better}
    kept = [one for one in own if not names & one.better.keys()]
    # The first score of all decides which checkpoint is the best.
    return [*kept, *asked] if kept[:1] == own[:1] else [*asked, *kept]


def _measured(measure: Callable[[DatasetInfo], Evaluator], task: Task, dataset_info: DatasetInfo) -> list[Evaluator]:
    return [measure(dataset_info)]


def _evaluation_loader(
    data: Data,
    stream: ValidationStream,
    dataset_info: DatasetInfo,
    batch_size: int | None,
    seed: int,
    device: torch.device,
    size_multiple: int | None,
    source: Source,
) -> Loader:
    """A source read in whole batches, in its order, with the transforms of ``stream``."""
    if data.cache and source is stream.source and hasattr(source, "encoded"):
        with errors_at("data.cache"):
            source = cached(source, data.cache, None, stream.prefix)
    reader = Reader(
        *(source, stream.transforms, (), dataset_info, seed, rank()),
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


def scores_offered(task: Task, validation: Sequence[Validation]) -> dict[str, str]:
    """The scores that an evaluation gives, and which way is better.

    Raises:
        ConfigError: the task cannot be evaluated on a set, or two evaluators give the same score.
    """
    offered: dict[str, str] = {}
    for one in validation:
        with errors_at(f"data.val ({one.name})" if len(validation) > 1 else "data.val"):
            evaluators = one.evaluators(one.task or task, one.dataset_info)
        with errors_at("evaluate.measures"):
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
        judges = one.evaluators(one.task or task, one.dataset_info)
        learners = [type(judge).__name__ for judge in judges if isinstance(judge, Learner)]
        if learners and one.dataset_info.classes != tuple(known):
            message = (
                f"{', '.join(learners)}: learns the {len(known)} classes of the training data, and {one.name} has "
                f"{len(one.dataset_info.classes)} others, or in another order; `on` says which set a measure is for"
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
