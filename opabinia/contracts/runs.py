"""The engine: how a step computes, what a run shows, and who watches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from opabinia.contracts.clock import Clock
from opabinia.contracts.data import Batch
from opabinia.contracts.plans import Loader, Row
from opabinia.contracts.tasks import Task

if TYPE_CHECKING:
    from opabinia.engine.checkpointing.checkpoint import CheckpointManager
    from opabinia.engine.loggers.metrics_log import MetricsLogger


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
    metrics_log: MetricsLogger
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
