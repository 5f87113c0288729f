"""The evaluation loop. Scores are the same for any number of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from typing_extensions import TypedDict

from opabinia.contracts import (
    Batch,
    DataMismatch,
    DatasetInfo,
    Evaluator,
    Loader,
    Phase,
    Predictions,
    Run,
    Task,
)
from opabinia.engine.loop.hook_dispatch import HookDispatcher
from opabinia.engine.loop.layer_outputs import average_outputs, check_layer_names, predict_with_layers
from opabinia.engine.loop.prefetch import PrefetchedBatch, lookahead, prefetch, to_device, to_host, with_bar
from opabinia.evaluation.bootstrap import confidence_interval
from opabinia.runtime.device import autocast
from opabinia.runtime.durations import Duration
from opabinia.runtime.files import write_atomic
from opabinia.runtime.json_files import InvalidFile, read_json, write_json
from opabinia.runtime.large_values import gather_to_rank_zero
from opabinia.runtime.log import log
from opabinia.runtime.processes import all_gather, any_rank, from_rank_zero, is_rank_zero
from opabinia.runtime.progress import PhaseBar, progress_bar


class EvaluationStopped(Exception):
    """The run was asked to stop during an evaluation; its scores are still due after a resume."""


@dataclass(frozen=True)
class ValidationSet:
    """A dataset to evaluate on.

    Attributes:
        name: unique among all evaluations of the run.
        loader: reads its batches for this process.
        dataset_info: description of the dataset.
        task: the model to evaluate, such as an EMA of the weights; None evaluates the trained one.
        precision: precision of its forward passes.
        prefix: prefix of its scores; None uses the name.
        evaluators: builds the evaluators; called for each evaluation.
        training: the training data, read like this set, for evaluators that learn from it.
        training_samples: their number.
        every: period of its evaluation; None uses the period of all sets.
        confidence: add confidence intervals of scores, ``top1_ci_low`` and ``top1_ci_high``.
    """

    name: str
    loader: Loader
    dataset_info: DatasetInfo
    task: Task | None = None
    precision: str = "fp32"
    prefix: str | None = None
    evaluators: Callable[[Task, DatasetInfo], list[Evaluator]] = lambda task, info: task.evaluators(info)
    training: Loader | None = None
    training_samples: int | None = None
    every: Duration | None = None
    confidence: bool = False

    def close(self) -> None:
        """Close the loaders."""
        self.loader.close()
        if self.training is not None:
            self.training.close()


@dataclass(frozen=True)
class EvaluationResult:
    """The result of one evaluation.

    Attributes:
        scores: by full name (``val/top1``).
        details: tables that are too long for the metrics log; on rank 0 only.
        files: JSON-serializable values by file name; on rank 0 only.
    """

    scores: dict[str, float]
    details: dict[str, Any]
    files: dict[str, Any]


@contextmanager
def evaluation_mode(task: Task) -> Iterator[None]:
    """Put a task in evaluation mode. Each of its modules ends in the mode it was in before: frozen norms and teachers
    stay in evaluation mode while the task is in training."""
    modes = [(module, module.training) for module in task.modules()]
    task.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def evaluate(
    task: Task,
    validation: ValidationSet,
    device: torch.device,
    should_stop: Callable[[], object] = lambda: False,
    *,
    sharded: bool = False,
) -> EvaluationResult:
    """Evaluate ``task`` on one dataset; every module ends in the mode (training or evaluation) it was in before.

    Processes take whole batches in turn, so every forward pass sees the same batch with any number of processes. Rank 0
    computes the scores from the states of all; if that fails, all raise the error. If the model is ``sharded``,
    processes that have run out of batches still take part in the forward passes of the others.

    Raises:
        EvaluationStopped: ``should_stop()`` was true between two batches, on any process.
        DataMismatch: the dataset has no scores.
    """
    evaluators = validation.evaluators(task, validation.dataset_info)
    for evaluator in evaluators:
        evaluator.device = device
    learners = [evaluator for evaluator in evaluators if evaluator.learns]
    predict = partial(_predict, task, requested_layers(task, evaluators), device, should_stop, sharded)
    skipped_before = validation.loader.num_skipped
    # Not inference_mode: tensors that a module caches in its first forward pass must be usable for backward later.
    with evaluation_mode(task), torch.no_grad(), autocast(device, validation.precision):
        if learners and validation.training is not None:
            with progress_bar(f"fit {validation.name}", validation.training_samples) as bar:
                for predictions, batch in predict(validation.training, bar):
                    for learner in learners:
                        learner.learn(predictions, batch)
            validation.training.close()  # its workers would idle until the next evaluation
        with progress_bar(f"eval {validation.name}", validation.dataset_info.samples) as bar:
            for predictions, batch in predict(validation.loader, bar):
                for evaluator in evaluators:
                    evaluator.update(predictions, batch)
    result = EvaluationResult({}, {}, {})
    prefix = validation.prefix or validation.name
    for evaluator in evaluators:
        scores = _compute(evaluator, result, validation)
        result.scores.update({f"{prefix}/{name}": value for name, value in scores.items()})
    if skipped := sum(all_gather(validation.loader.num_skipped - skipped_before)):
        result.scores[f"{prefix}/skipped"] = float(skipped)
    return result


def _compute(evaluator: Evaluator, result: EvaluationResult, validation: ValidationSet) -> dict[str, float]:
    """Return the scores, computed on rank 0 from the states of all ranks; it adds tables and files to ``result``.

    If another rank computed the same it would need the same memory, and would be done at the same time at best.
    """
    states = gather_to_rank_zero(evaluator.state)

    def compute() -> dict[str, float]:
        assert states is not None
        try:
            scores = evaluator.compute(states)
        except DataMismatch as error:
            raise DataMismatch(f"{validation.name}: {error}") from error
        result.details.update(evaluator.details(states))
        for resampling in evaluator.resamplings(states) if validation.confidence and scores else ():
            interval = confidence_interval(resampling)
            if interval is not None:
                scores |= {f"{resampling.name}_ci_low": interval.low, f"{resampling.name}_ci_high": interval.high}
                result.details.setdefault("confidence", {})[resampling.name] = asdict(interval)
        result.files.update(evaluator.files(states))
        return scores

    return from_rank_zero(compute, patient=True)


def needs_training_data(task: Task, validation: ValidationSet) -> bool:
    """Return whether an evaluator of this set learns from the training data."""
    evaluators = validation.evaluators(validation.task or task, validation.dataset_info)
    return any(evaluator.learns for evaluator in evaluators)


def requested_layers(task: Task, evaluators: Sequence[Evaluator]) -> list[str]:
    """Return the names of the layers whose outputs evaluators read.

    Raises:
        DataMismatch: the task has no such layer.
    """
    names = dict.fromkeys(name for evaluator in evaluators for name in evaluator.layers)
    check_layer_names(task, names)
    return list(names)


def _predict(
    task: Task,
    layers: Sequence[str],
    device: torch.device,
    should_stop: Callable[[], object],
    sharded: bool,
    loader: Loader,
    bar: PhaseBar,
) -> Iterator[tuple[Predictions, Batch]]:
    """Yield predictions and layer outputs of each batch of this process, on the host, and the batch as loaded.

    On CUDA the forward pass of the next batch is queued before the predictions of this one are waited for, so that
    evaluators run on the host while the GPU computes.
    """

    def launch() -> Iterator[tuple[Callable[[], Predictions], Batch]]:
        batches = with_bar(prefetch(loader, device), bar)
        for loaded, batch, counts in _synchronized_batches(batches, device, should_stop, sharded):
            predictions, outputs = predict_with_layers(task, batch, layers)
            if counts:
                averages = {f"layers/{name}": average_outputs(value) for name, value in outputs.items()}
                yield to_host({**predictions, **averages}), loaded

    for wait, loaded in lookahead(launch()) if device.type == "cuda" else launch():
        yield wait(), loaded


def _synchronized_batches(
    batches: Iterator[PrefetchedBatch], device: torch.device, should_stop: Callable[[], object], sharded: bool
) -> Iterator[tuple[Batch, Batch, bool]]:
    """Yield batches of this process, as loaded and on the device, and whether they count.

    All processes agree before each batch whether to go on. Those that do not count are repeated for a sharded model,
    whose forward passes need all processes.
    """
    substitute: Batch | None = None
    while True:
        item = next(batches, None)
        substitute = item.loaded if item else substitute
        stop, more, any_without = any_rank(bool(should_stop()), item is not None, substitute is None)
        if stop:
            raise EvaluationStopped
        if not more:
            return
        if sharded and any_without:  # in the first round only: there are fewer batches than processes
            substitute = next(batch for batch in all_gather(item and item.loaded) if batch is not None)
        if item is not None:
            yield item.loaded, item.batch, True
        elif sharded:
            assert substitute is not None
            yield substitute, to_device(substitute, device), False


def evaluate_all(
    run: Run,
    hooks: HookDispatcher,
    validation: Sequence[ValidationSet],
    device: torch.device,
    should_stop: Callable[[], object] = lambda: False,
    *,
    sharded: bool = False,
) -> dict[str, float]:
    """Evaluate each dataset in a phase of its own; write a line per dataset and update ``run.scores``.

    Lines are written when all sets are done: an evaluation that is stopped leaves none and is repeated as a whole.
    Tables are written to ``eval/<set>/details.json`` in the run folder, files of evaluators beside them. An
    evaluation-only run keeps those of another step: it writes to ``eval/<set>/step-00000500``.
    """
    lines: list[dict[str, float]] = []
    results: dict[str, EvaluationResult] = {}
    for dataset in validation:
        phase = Phase("evaluate", dataset.name)
        hooks.call(run, "before_phase", phase)
        started = time.perf_counter()
        result = evaluate(dataset.task or run.task, dataset, device, should_stop, sharded=sharded)
        lines.append({**result.scores, f"time/{dataset.name}": time.perf_counter() - started})
        results[dataset.name] = result
        for name, score in result.scores.items():
            run.scores.pop(name, None)  # scores restored from a checkpoint are in another order
            run.scores[name] = score
        hooks.call(run, "after_phase", phase)
    for line in lines:
        run.metrics_log.write(run.clock, line)
    if is_rank_zero():
        for name, result in results.items():
            folder = run.folder / "eval" / name
            saved, step = _saved_step(folder), run.clock.step
            if run.optimizer is None and saved not in (None, step):
                folder = folder / f"step-{step:08d}"
                log.info(
                    "%s keeps the tables of step %s; those of step %d are in %s", folder.parent, saved, step, folder
                )
            if result.details or result.files:
                write_json(folder / "details.json", {"step": run.clock.step, **result.details})
            for file, values in result.files.items():
                if file.endswith(".txt"):
                    write_atomic(folder / file, values)
                else:
                    write_json(folder / file, values, indent=None)
    return {name: score for result in results.values() for name, score in result.scores.items()}


class _Details(TypedDict, total=False):
    step: int


def _saved_step(folder: Path) -> int | None:
    """Return the step of the results in ``eval/<set>``; None if there are none or they are damaged."""
    try:
        return read_json(folder / "details.json", _Details).get("step")
    except InvalidFile:
        return None


def evaluation_run(
    run: Run, hooks: HookDispatcher, validation: Sequence[ValidationSet], device: torch.device
) -> dict[str, float]:
    """Run an evaluation without training: hooks see the start, the evaluation phases and the finish."""
    how: str | BaseException = "done"
    try:
        hooks.start(run)
        return evaluate_all(run, hooks, validation, device)
    except BaseException as error:
        how = error
        raise
    finally:
        for dataset in validation:
            dataset.close()
        hooks.finish(run, how)
