"""Evaluation: the same scores on any number of processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from opabinia.contracts import Batch, DataMismatch, DatasetInfo, Evaluator, Loader, Phase, Predictions, Run, Task
from opabinia.engine.loop.hook_dispatch import HookDispatcher
from opabinia.engine.loop.layer_outputs import averaged, refuse_unknown, with_layers
from opabinia.engine.loop.prefetch import one_batch_ahead, prefetch, to_device, to_host
from opabinia.runtime.device import autocast
from opabinia.runtime.durations import Duration
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.runtime.processes import any_rank, gather, is_rank_zero


class EvaluationStopped(Exception):
    """The run was asked to stop in the middle of an evaluation; its scores are still due."""


@dataclass(frozen=True)
class Validation:
    """A data set to evaluate on.

    Attributes:
        name: of the set among all evaluations; no other has it.
        loader: its batches of this process.
        facts: of the set.
        task: the model to evaluate, such as an average of weights; None takes the one that is trained.
        precision: of its forward passes.
        prefix: of its scores; None takes the name.
        evaluators: who judges what a task says of it; made anew for each evaluation.
        training: the training data, read as this set is, for evaluators that learn from it.
        every: the period of its evaluation; None takes that of all sets.
    """

    name: str
    loader: Loader
    dataset_info: DatasetInfo
    task: Task | None = None
    precision: str = "fp32"
    prefix: str | None = None
    evaluators: Callable[[Task, DatasetInfo], list[Evaluator]] = lambda task, dataset_info: task.evaluators(
        dataset_info
    )
    training: Loader | None = None
    every: Duration | None = None

    def close(self) -> None:
        """End what reads it."""
        self.loader.close()
        if self.training is not None:
            self.training.close()


@dataclass(frozen=True)
class Found:
    """What an evaluation found.

    Attributes:
        scores: by full name (``val/top1``).
        details: tables that are too long for the journal.
        files: plain values by name of the file that they are written to; of the first process only.
    """

    scores: dict[str, float]
    details: dict[str, Any]
    files: dict[str, Any]


def evaluate(
    task: Task,
    validation: Validation,
    device: torch.device,
    stopped: Callable[[], object] = lambda: False,
    *,
    sharded: bool = False,
) -> Found:
    """Scores of ``task``; every module is left in the mode it was found in.

    Processes take whole batches in turn, so every forward pass sees the same batch on any number of them, and
    evaluators put together what the processes have seen. If the model is ``sharded`` those that have run out of batches
    take part in the forward passes of the others.

    Raises:
        EvaluationStopped: ``stopped()`` became true between two batches, in any process.
        Unfit: there are no scores of this set.
    """
    evaluators = validation.evaluators(task, validation.dataset_info)
    for each in evaluators:
        if hasattr(each, "device"):
            each.device = device
    learners: list[Any] = [evaluator for evaluator in evaluators if hasattr(evaluator, "learn")]
    seen = partial(_predictions, task, layers_of(task, evaluators), device, stopped, sharded)
    skipped_before = validation.loader.passed_over
    # Not all parts need to be in the mode of the whole: a frozen norm or a teacher stays as it was.
    modes = [(module, module.training) for module in task.modules()]
    task.eval()
    try:
        # Not inference_mode: what a module caches in its first forward pass must be fit for the backward pass later.
        with torch.no_grad(), autocast(device, validation.precision):
            if learners and validation.training is not None:
                for predictions, batch in seen(validation.training):
                    for learner in learners:
                        learner.learn(predictions, batch)
                validation.training.close()  # until the next time its workers would only wait
            for predictions, batch in seen(validation.loader):
                for evaluator in evaluators:
                    evaluator.update(predictions, batch)
    finally:
        for module, training in modes:
            module.training = training
    scores: dict[str, float] = {}
    details: dict[str, Any] = {}
    files: dict[str, Any] = {}
    for evaluator in evaluators:
        states = gather(evaluator.state())
        try:
            scores.update(evaluator.compute(states))
        except DataMismatch as error:
            raise DataMismatch(f"{validation.name}: {error}") from error
        if hasattr(evaluator, "details"):
            details.update(evaluator.details(states))
        if is_rank_zero() and hasattr(evaluator, "files"):
            files.update(evaluator.files(states))
    if skipped := sum(gather(validation.loader.passed_over - skipped_before)):
        scores["skipped"] = float(skipped)
    prefix = validation.prefix or validation.name
    return Found({f"{prefix}/{name}": value for name, value in scores.items()}, details, files)


def needs_training_data(task: Task, validation: Validation) -> bool:
    """Whether an evaluator of this set learns from the training data."""
    return any(hasattr(one, "learn") for one in validation.evaluators(validation.task or task, validation.dataset_info))


def layers_of(task: Task, evaluators: Sequence[Evaluator]) -> list[str]:
    """Names of the layers that evaluators read.

    Raises:
        Unfit: the task has no such layer.
    """
    names = dict.fromkeys(name for evaluator in evaluators for name in getattr(evaluator, "layers", ()))
    refuse_unknown(task, names)
    return list(names)


def _predictions(
    task: Task,
    layers: Sequence[str],
    device: torch.device,
    stopped: Callable[[], object],
    sharded: bool,
    loader: Loader,
) -> Iterator[tuple[Predictions, Batch]]:
    """What the task says of each batch of this process, with what the named layers give, on the host; and the batch as
    the loader gave it. On CUDA a batch goes through the model while the one before it is judged."""
    launched = _launched(task, layers, device, stopped, sharded, loader)
    for arrived, batch in one_batch_ahead(launched) if device.type == "cuda" else launched:
        yield arrived(), batch


def _launched(
    task: Task,
    layers: Sequence[str],
    device: torch.device,
    stopped: Callable[[], object],
    sharded: bool,
    loader: Loader,
) -> Iterator[tuple[Callable[[], Predictions], Batch]]:
    for loaded, batch, counts in _rounds(loader, device, stopped, sharded):
        predictions, given = with_layers(task, batch, layers)
        if counts:
            found = {**predictions, **{f"layers/{name}": averaged(value) for name, value in given.items()}}
            yield to_host(found), loaded


def _rounds(
    loader: Loader, device: torch.device, stopped: Callable[[], object], sharded: bool
) -> Iterator[tuple[Batch, Batch, bool]]:
    """Batches of this process, as loaded and on the device, and whether they count: the others only keep a sharded
    model's processes together."""
    batches = prefetch(loader, device)
    stand_in: Batch | None = None
    while True:
        one = next(batches, None)
        stand_in = one.loaded if one else stand_in
        stop, more, helpless = any_rank(bool(stopped()), one is not None, stand_in is None)
        if stop:
            raise EvaluationStopped
        if not more:
            return
        if sharded and helpless:  # in the first round only: there are fewer batches than processes
            stand_in = next(each for each in gather(one and one.loaded) if each is not None)
        if one is not None:
            yield one.loaded, one.batch, True
        elif sharded:
            assert stand_in is not None
            yield stand_in, to_device(stand_in, device), False


def evaluate_all(
    run: Run,
    moments: HookDispatcher,
    validation: Sequence[Validation],
    device: torch.device,
    stopped: Callable[[], object] = lambda: False,
    *,
    sharded: bool = False,
) -> dict[str, float]:
    """One phase for each data set; its scores are a line of the journal and go into ``run.scores``.

    Lines are written when all sets are done: an evaluation that is stopped leaves none, and is done again as a whole.
    Tables go to ``eval/<set>/details.json`` in the run folder, files of evaluators beside them.
    """
    scores: dict[str, float] = {}
    lines: list[dict[str, float]] = []
    results: dict[str, Found] = {}
    for one in validation:
        phase = Phase("evaluate", one.name)
        moments.call(run, "before_phase", phase)
        began = time.perf_counter()
        found = evaluate(one.task or run.task, one, device, stopped, sharded=sharded)
        lines.append({**found.scores, f"time/{one.name}": time.perf_counter() - began})
        results[one.name] = found
        for name, score in found.scores.items():
            run.scores.pop(name, None)  # those of a checkpoint come in another order
            run.scores[name] = score
        scores.update(found.scores)
        moments.call(run, "after_phase", phase)
    for line in lines:
        run.metrics_log.write(run.clock, line)
    for name, found in results.items():
        if is_rank_zero():
            _write_tables(run.folder / "eval" / name, found, run.clock.step)
    return scores


def _write_tables(folder: Path, found: Found, step: int) -> None:
    if found.details:
        write_json(folder / "details.json", {"step": step, **found.details})
    for name, values in found.files.items():
        write_json(folder / name, values, indent=None)


def write_json(path: Path, values: Any, *, indent: int | None = 1) -> None:
    """Write plain values aside and rename them into place.

    Args:
        path: of the file.
        values: to write.
        indent: spaces a level; None writes one line, which is many times faster.

    Raises:
        DiskError: the file cannot be written.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(values, indent=indent) + "\n")


def evaluation_run(
    run: Run, moments: HookDispatcher, validation: Sequence[Validation], device: torch.device
) -> dict[str, float]:
    """A run that only evaluates: hooks see its start, its evaluation phases and its finish."""
    how: str | BaseException = "done"
    try:
        moments.start(run)
        return evaluate_all(run, moments, validation, device)
    except BaseException as error:
        how = error
        raise
    finally:
        for one in validation:
            one.close()
        moments.finish(run, how)
