"""Training: the task, the step that updates its weights, and the hooks that observe a run.

Task, Run and Hook refer to each other, so they share a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from opabinia.contracts.clock import Clock
from opabinia.contracts.data import Batch, DatasetInfo
from opabinia.contracts.evaluation import EMBEDDING, Evaluator, Predictions
from opabinia.contracts.plans import Loader, Row

Scalars = Mapping[str, Tensor | float]
"""Named numbers. Those that are 0-d tensors on the device are read by the host only when the journal writes."""


@dataclass(frozen=True)
class StepOptions:
    """How a step computes.

    Attributes:
        seed: of the run; what a model draws comes from (seed, step, micro-batch, rank).
        precision: of forward passes (autocast); weights and their updates are in full precision.
        micro_batch: samples of one process in one forward pass; larger batches are split. None: no limit.
        check_losses: look at every loss before it changes the weights, even if that means waiting for the device.
        skip_non_finite: leave an update out whose losses or gradients are not finite; otherwise that is an error.
    """

    seed: int
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    micro_batch: int | None = None
    check_losses: bool = False
    skip_non_finite: bool = False


class Step(Protocol):
    """How gradients become an update. Owns the optimizer; one call is one optimizer step.

    It is built with the task, or with what runs the task on many processes and is called like it (:class:`ParallelTask`).
    On many processes gradients become their mean, so a process weights the mean over its samples by
    ``len(samples) * world / row.seen(world)``, and what it returns likewise: the journal takes the mean over processes.

    ``after_backward`` is to be called once, when all gradients of the step are there and before they are used.
    The scalars returned stay on the device. The learning rate it used stands in the optimizer's first group.
    """

    optimizer: torch.optim.Optimizer

    def __call__(self, batch: Batch, row: Row, clock: Clock, after_backward: Callable[[], None]) -> Scalars: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ParallelTask(Protocol):
    """A task that learns on many processes: called like the task, with gradients that become the mean over processes.

    Attributes:
        module: the task itself.
        sharded: whether a process holds a part of each parameter only; then a forward pass takes all of them.
    """

    module: Task
    sharded: bool

    def __call__(self, batch: Batch, clock: Clock) -> Any: ...

    def no_sync(self) -> AbstractContextManager[Any]:
        """Forward and backward passes inside it only add up gradients; those of the next one outside are exchanged."""
        ...


class MetricsLog(Protocol):
    """The log of a run's numbers, ``metrics.jsonl``: one JSON object a line, each value once, in the order of steps.

    :class:`opabinia.engine.loggers.metrics_log.MetricsLogger` is the one that a training run has.

    Attributes:
        newest: the newest line that was written: values by name, such as ``{"step": 100, "train/loss": 0.3}``; None
            before the first.
    """

    newest: dict[str, Any] | None

    def add(self, step: int, values: Mapping[str, Tensor | float], ids: Sequence[Any] = ()) -> None:
        """Add the values of one step. Tensors stay on their device until a line is due.

        Args:
            step: optimizer steps done, this one included.
            values: by name.
            ids: ids of the samples of the step.
        """
        ...

    def flush(self, clock: Clock, extra: Mapping[str, Any] | None = None) -> None:
        """Write the pending values as one line.

        Raises:
            NonFinite: one of them is infinite or not a number.
        """
        ...

    def write(self, clock: Clock, values: Mapping[str, Any]) -> None:
        """Write a line of its own, such as the scores of an evaluation."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the byte offset of the file and the pending values, as saved in a checkpoint."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the file at the saved offset and take back the pending values."""
        ...

    def close(self) -> None:
        """Write what is pending and close the file and the loggers."""
        ...


class CheckpointManager(Protocol):
    """Saves the checkpoints of a run and knows which is the best.

    :class:`opabinia.engine.checkpointing.checkpoint.CheckpointManager` is the one that a training run has.
    """

    def save(self) -> Path:
        """Save the state of the run as it is now and return the folder of the checkpoint."""
        ...

    def has(self, step: int) -> bool:
        """Return whether there is a checkpoint of this step."""
        ...

    def mark_best(self, step: int) -> None:
        """Keep the checkpoint of this step as the best one."""
        ...

    def forget_best(self) -> None:
        """Discard the mark of :meth:`mark_best`."""
        ...

    def point_to_best(self, step: int) -> None:
        """Write the pointer file ``best``."""
        ...

    def check(self) -> None:
        """Raise the error of a save that failed in the background."""
        ...


class Stop(NamedTuple):
    """Why a run ends early. ``over``: there is nothing to go on with, so it counts as done (an early stop); otherwise
    it can be resumed (a signal, a time limit)."""

    reason: str
    over: bool = False


@dataclass
class Run:
    """What a hook may see and use: fourteen named things, and not the trainer.

    Attributes:
        task: the model being trained, as the user built it (not a wrapper).
        optimizer: its optimizer.
        loader: the training loader; None in an evaluation-only run.
        journal: takes numbers in; writes them out.
        clock: where the run stands. Inside ``before_step`` and ``after_backward`` the step is not yet counted.
        checkpoints: saves and finds checkpoints; None in an evaluation-only run.
        evaluate: runs one evaluation phase for each validation set whose name it is told to take, and returns the
            scores.
        scores: the newest scores by name (``val/top1``).
        folder: the run folder.
        stop: set to end the run after this step, saved; the first reason stays. On many processes that is a wish, until
            all have agreed on it at the end of the step or the evaluation; one process may set it alone.
        models: every model that is evaluated: ``task``, and an average of its weights if there is one.
        batches: some batches of this process on its device, read anew: of ``train`` or of the validation set with this
            name, that many over all processes. Empty in an evaluation-only run.
        began: when this start of the run began, in seconds of ``time.monotonic``; a rollback does not begin anew.
        offered: the scores that evaluations of this run give, and which way each is better; empty where nobody told.
    """

    task: Task
    optimizer: torch.optim.Optimizer | None
    loader: Loader | None
    metrics_log: MetricsLog
    clock: Clock
    checkpoints: CheckpointManager | None
    evaluate: Callable[[Callable[[str], bool]], dict[str, float]]
    scores: dict[str, float]
    folder: Path
    stop: Stop | None = None
    models: Sequence[Task] = ()
    batches: Callable[[str, int], Iterable[Batch]] = lambda name, count: ()
    offered: Mapping[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)


class Phase(NamedTuple):
    """One training epoch (``kind`` "train") or one evaluation pass ("evaluate", with the ``name`` of the set)."""

    kind: str
    name: str


class Hook:
    """Watches a run at seven named moments. Override what you need::

        start                                  everything is built, a checkpoint is loaded if there is one
        for each phase:
            before_phase                       a training epoch or an evaluation pass begins
                for each batch of a training phase:
                    before_step
                    after_backward             gradients are there, not yet used
                    after_step                 the update is done and counted
            after_phase
        finish                                 always, with how it ended: "done", "stopped" or the exception

    Changes to a batch are data flow (transforms, mix), not events. What ``state_dict`` returns must be JSON
    and is saved under the hook's key in the config; what is large goes through ``tensors``.
    """

    def start(self, run: Run) -> None: ...

    def before_phase(self, run: Run, phase: Phase) -> None: ...

    def before_step(self, run: Run, batch: Batch) -> None: ...

    def after_backward(self, run: Run) -> None: ...

    def after_step(self, run: Run) -> None: ...

    def after_phase(self, run: Run, phase: Phase) -> None: ...

    def finish(self, run: Run, how: str | BaseException) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to be saved in every checkpoint, in a file named after the hook's key."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what :meth:`tensors` gave, as it was saved."""


class Logger(Protocol):
    """Takes a finished line of the journal somewhere: terminal, TensorBoard. Built with the run folder and the clock
    at its start (the first step of a new run, a later one after a resume)."""

    def write(self, line: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Task(nn.Module):
    """Says what a batch means. DDP, FSDP and compile wrap this one object.

    A task is an ``nn.Module`` with the methods below, in this order in every task of the house.

    Attributes:
        whole_batches: whether its losses compare the samples of a batch with each other, so that a batch cannot go
            through in pieces.
        compares_classes: whether they compare samples of a class with others, of which a batch must hold some.
        least: samples of a process that a step needs at least.
        size_multiple: images of a batch may differ in size; they are padded at the right and below to the largest of
            them, rounded up to a multiple of this. None: they may not.
    """

    whole_batches: bool = False
    compares_classes: bool = False
    least: int = 1
    size_multiple: int | None = None

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor] | Tensor | Sequence[Tensor]:
        """Losses of a batch. ``total_loss`` alone is trained if given, else the sum of every key that contains
        ``loss``; the rest is only logged. A bare tensor is the loss; a list is summed."""
        raise NotImplementedError

    def predict(self, batch: Batch) -> Predictions:
        """Batched predictions, read by evaluators and by the predict command."""
        raise NotImplementedError

    def readable(self, prediction: Mapping[str, Tensor]) -> dict[str, Any]:
        """One sample's prediction (a row of each tensor) as plain values for people: names of classes, not numbers.

        Here the ``embedding`` alone, rounded to six digits; where there is none all tensors.
        """
        if EMBEDDING in prediction:
            return {EMBEDDING: [round(value, 6) for value in prediction[EMBEDDING].tolist()]}
        return {name: value.tolist() for name, value in prediction.items()}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """``embedding`` (B x D): what stands before the head. Other layers are listened to by the names of modules."""
        raise NotImplementedError

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Fresh evaluators for one evaluation of a data set with these facts."""
        return []

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Hooks the method itself needs (momentum teachers, prototypes frozen at first)."""
        return []

    def initialised(self, names: Collection[str]) -> None:
        """``init`` has filled the tensors of these names; what began as a copy of them is to be one again."""
