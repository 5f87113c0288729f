"""Evaluation during training: validation sets, evaluators, and the scores they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.config.errors import listing, nearest
from opabinia.contracts import SINGLE, DatasetInfo, Evaluator, Task
from opabinia.data import Data, TrainingStream, ValidationStream
from opabinia.data.decoding.cache import with_cache
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import evaluation_requests
from opabinia.engine.hooks.save_best import SaveBest
from opabinia.engine.loop.evaluate import ValidationSet, evaluation_mode, requested_layers
from opabinia.engine.loop.prefetch import to_device
from opabinia.evaluation.representation.feature_bank import FeatureBankEvaluator
from opabinia.runtime.device import autocast
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import rank, world_size
from opabinia.runtime.seeds import preserve_generators
from opabinia.runtime.weighted_scores import score_weights
from opabinia.training.model import Models
from opabinia.training.samples import batch_errors, first_samples, read_dataset_info
from opabinia.training.settings import Evaluation, EvaluatorRun

MakeEvaluators = Callable[[Task, DatasetInfo], list[Evaluator]]


class EvaluationPlan(NamedTuple):
    """The evaluation of a run.

    Attributes:
        validation: the sets, those of EMA weights first.
        scores: names of all scores, and which way is better ("max" or "min").
    """

    validation: list[ValidationSet]
    scores: dict[str, str]


def plan_evaluation(
    models: Models,
    data: Data,
    streams: Mapping[str, TrainingStream],
    evaluate: Evaluation,
    seed: int,
    device: torch.device,
    precision: str,
    dataset_info: DatasetInfo,
) -> EvaluationPlan:
    """Return the validation sets and the scores of a run.

    Args:
        models: the task, and the copy with its EMA weights.
        data, evaluate: config sections.
        streams: training data, from which some evaluators learn; empty: there is none.
        seed: seed of the run.
        device: device of the models.
        precision: precision of forward passes.
        dataset_info: description of the training data.

    Raises:
        ConfigError: the task cannot be evaluated on a set, or evaluators do not fit together.
    """
    validation = _validation_sets(data, streams, evaluate, seed, device, precision, models.task)
    if models.ema:
        averaged = [
            replace(raw, name=f"{raw.name}_ema", prefix=f"{raw.prefix or raw.name}_ema", task=models.ema)
            for raw in validation
        ]
        # EMA scores come first and select the best checkpoint by default.
        validation = {"both": [*averaged, *validation], "ema": averaged, "raw": validation}[evaluate.weights]
    return EvaluationPlan(validation, available_scores(models.task, validation, dataset_info))


def _validation_sets(
    data: Data,
    training: Mapping[str, TrainingStream],
    evaluate: Evaluation,
    seed: int,
    device: torch.device,
    precision: str,
    task: Task,
) -> list[ValidationSet]:
    """Return the validation sets, read in whole batches in the order of their sources.

    An evaluator with a period of its own makes an evaluation of its own, named ``<prefix>_<evaluator>``.

    Raises:
        ConfigError: an evaluator names a validation set that does not exist, or two evaluations have the same name.
    """
    streams, evaluators = data.validation, evaluate.evaluators or {}
    _check_sets_exist(evaluators, [stream.prefix for stream in streams])
    load = partial(_evaluation_loader, data, evaluate.batch_size or data.batch_size, device)
    validation = []
    for stream in streams:
        reader = _evaluation_reader(stream, data, task, seed)
        with errors_at(f"data.val ({stream.prefix})"):
            learned = training.get(task.stream_of(stream.task) if stream.task else SINGLE)
        training_source = learned.source if learned else stream.source
        validation += [
            ValidationSet(
                name,
                load(reader),
                reader.dataset_info,
                precision=precision,
                prefix=stream.prefix,
                evaluators=make,
                training=load(replace(reader, source=training_source)),
                training_samples=len(training_source),
                every=every,
            )
            for name, make, every in _evaluations(stream, evaluators)
        ]
    names = [val_set.name for val_set in validation]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        message = f"{duplicate!r} is the name of two evaluations; give the evaluator another name"
        raise ConfigError(Problem("", "evaluate.evaluators", message))
    return validation


def _check_sets_exist(evaluators: Mapping[str, EvaluatorRun], prefixes: Sequence[str]) -> None:
    for name, run in evaluators.items():
        if run.on is not None and run.on not in prefixes:
            message, known = f"there is no validation set {run.on!r}", f"sets: {listing(prefixes) or 'none'}"
            raise ConfigError(
                Problem("", f"evaluate.evaluators.{name}.on", message, "", nearest(run.on, prefixes), known)
            )


def _evaluation_reader(stream: ValidationStream, data: Data, task: Task, seed: int) -> BatchReader:
    """Return the reader of a validation set; with ``data.cache`` its images are kept."""
    dataset_info = read_dataset_info(stream, skip=data.on_error == "skip")
    source = stream.source
    if data.cache and source.info.encoded:
        with errors_at("data.cache"):
            source = with_cache(source, data.cache, None, stream.prefix)
    return BatchReader(
        source,
        stream.transforms,
        dataset_info=dataset_info,
        seed=seed,
        rank=rank(),
        on_error=data.on_error,
        size_multiple=task.size_multiple_of(stream.task or ""),
        task=stream.task,
    )


def _evaluations(
    stream: ValidationStream, evaluators: Mapping[str, EvaluatorRun]
) -> list[tuple[str, MakeEvaluators, Duration | None]]:
    """Return name, evaluators and period of the evaluations of a validation set: that of the task with the additional
    evaluators of the same period, and one of each evaluator with a period of its own."""
    chosen = {name: run for name, run in evaluators.items() if run.on in (None, stream.prefix)}
    additional = [run.evaluator for run in chosen.values() if run.every is None]
    return [
        (stream.prefix, partial(_task_and_additional, additional), stream.every),
        *(
            (f"{stream.prefix}_{name}", partial(_only, run.evaluator), run.every)
            for name, run in chosen.items()
            if run.every is not None
        ),
    ]


def validation_key(data: Data, prefix: str) -> str:
    """Return the place of a validation set for messages."""
    return f"data.val ({prefix})" if len(data.validation) > 1 else "data.val"


def check_validation_samples(task: Task, data: Data, device: torch.device, precision: str) -> None:
    """Predict the first samples of each validation set with self-supervised and multi-task models: samples that do not
    fit are reported before the first step, not by the first evaluation.

    Raises:
        ConfigError: the task does not take them.
    """
    if not task.predicts_embedding_only and not any(stream.task for stream in data.validation):
        return
    for stream in (stream for stream in data.validation if len(stream.source)):
        with preserve_generators(), evaluation_mode(task), torch.no_grad(), autocast(device, precision):
            multiple = task.size_multiple_of(stream.task or "")
            batch = first_samples(stream, 2, skip=data.on_error == "skip", size_multiple=multiple)
            with batch_errors(batch, validation_key(data, stream.prefix)):
                task.predict(to_device(batch, device))


def _task_and_additional(
    additional: Sequence[Callable[[DatasetInfo], Evaluator]], task: Task, dataset_info: DatasetInfo
) -> list[Evaluator]:
    """The task's evaluators and the additional ones, which replace those of the task that compute a score of theirs."""
    of_task = _checked(task.evaluators(dataset_info))
    added = _checked([make(dataset_info) for make in additional])
    names = {name for evaluator in added for name in evaluator.better}
    kept = [evaluator for evaluator in of_task if not names & evaluator.better.keys()]
    # The first score of all selects the best checkpoint.
    return [*kept, *added] if kept[:1] == of_task[:1] else [*added, *kept]


def _only(make: Callable[[DatasetInfo], Evaluator], task: Task, dataset_info: DatasetInfo) -> list[Evaluator]:
    return _checked([make(dataset_info)])


def _checked(evaluators: list[Evaluator]) -> list[Evaluator]:
    """Return evaluators that derive from :class:`opabinia.contracts.Evaluator`.

    Raises:
        ConfigError: one does not.
    """
    for evaluator in evaluators:
        if not isinstance(evaluator, Evaluator):
            message = f"{type(evaluator).__name__} does not derive from opabinia.contracts.Evaluator"
            raise ConfigError(Problem("", "evaluate.evaluators", message))
    return evaluators


def _evaluation_loader(data: Data, batch_size: int, device: torch.device, reader: BatchReader) -> Loader:
    """A loader of whole batches, in the order of the source.

    Its workers live until the end of the run: to start them again for each evaluation would cost more than their
    memory, because a fork waits until the checkpoint before the evaluation is written. There are not more of them than
    batches of this rank.
    """
    samples = len(reader.source)
    batches = len(range(rank(), -(-samples // batch_size), world_size()))
    requests = evaluation_requests(samples, batch_size, rank(), world_size())
    workers = min(data.num_workers, batches)
    return Loader(reader, requests, num_workers=workers, pin_memory=device.type == "cuda")


def available_scores(task: Task, validation: Sequence[ValidationSet], training_info: DatasetInfo) -> dict[str, str]:
    """Return the names of the scores that the evaluations compute, and which way each is better.

    Raises:
        ConfigError: the task cannot be evaluated on a set, an evaluator does not derive from
            :class:`opabinia.contracts.Evaluator`, two evaluators compute the same score, or one that learns the classes
            of the training data evaluates a set with others.
    """
    scores: dict[str, str] = {}
    for val_set in validation:
        with errors_at(f"data.val ({val_set.name})" if len(validation) > 1 else "data.val"):
            evaluators = val_set.evaluators(val_set.task or task, val_set.dataset_info)
        with errors_at("evaluate.evaluators"):
            requested_layers(val_set.task or task, evaluators)
        if not evaluators:
            log.warning("the task has no evaluator for %s: it has no scores", val_set.name)
        for score, better in (item for evaluator in evaluators for item in evaluator.better.items()):
            name = f"{val_set.prefix or val_set.name}/{score}"
            if name in scores:
                message = f"two evaluators compute the score {name!r}: remove one of them, or that of the task"
                raise ConfigError(Problem("", "evaluate.evaluators", message, allowed="see task.evaluators"))
            scores[name] = better
        learners = [type(evaluator).__name__ for evaluator in evaluators if isinstance(evaluator, FeatureBankEvaluator)]
        name = val_set.dataset_info.task
        classes = training_info.streams[task.stream_of(name)].classes if name else training_info.classes
        if learners and val_set.dataset_info.classes != classes:
            message = (
                f"{', '.join(learners)}: learns the {len(classes)} classes of the training data, and {val_set.name} "
                f"has {len(val_set.dataset_info.classes)} others, or another order; `on` names the set of an evaluator"
            )
            raise ConfigError(Problem("", "evaluate.evaluators", message))
    return scores


def make_best(metric: str | None, scores: Mapping[str, str]) -> SaveBest | None:
    """Return the hook that keeps the best checkpoint; None where nothing is evaluated.

    Args:
        metric: a score or a weighted sum of scores (:mod:`opabinia.runtime.weighted_scores`); None takes the first.
        scores: those that evaluations compute, with their better direction.

    Raises:
        ConfigError: no evaluator computes a score of ``metric``, or some are to be high and others low.
    """
    if metric is None and not scores:
        return None
    metric = metric or next(iter(scores))
    with errors_at("checkpoint.best"):
        weights = score_weights(metric)
    for name in weights:
        if name not in scores:
            message = f"no evaluation computes the score {name!r}"
            known = f"scores: {listing(list(scores)) or 'none'}"
            raise ConfigError(Problem("", "checkpoint.best", message, "", nearest(name, scores), known))
    directions = {"max" if (scores[name] == "max") == (weight > 0) else "min" for name, weight in weights.items()}
    if len(directions) > 1:
        message = f"{metric}: some of these scores are to be high and others low; subtract the latter"
        raise ConfigError(Problem("", "checkpoint.best", message))
    return SaveBest(metric, directions.pop())
