"""Phases of a run, by which events of the device are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from opabinia.contracts import Hook, Phase, Run, Stop
from opabinia.engine.loggers.metrics_log import MetricsLogger
from opabinia.engine.loop import evaluate
from opabinia.training.session import Session, TrainingRun
from tests.device.records import RECORD

END = "end"
EVALUATION = "evaluation"
SCORES = "scores"
LOG = "log"


def step_phase(number: int) -> str:
    """Return the phase of the step of this number, from 1."""
    return f"step {number}"


_last_step: int | None = None


@contextmanager
def stopping_after(step: int | None) -> Iterator[None]:
    """Within the context runs stop after this step, if any, as if they were interrupted."""
    global _last_step
    _last_step = step
    try:
        yield
    finally:
        _last_step = None


class RecordPhases(Hook):
    """Sets the phase of the record: ``step 1``, ``step 2`` ..., ``log`` for lines of the metrics log, ``evaluation``
    for its batches, ``scores`` for what follows them, and ``end`` for what follows the last step, such as a checkpoint.

    A step begins at the end of the one before, so loading of its batch is part of it. So are the hooks that act before
    the user's: those of the task and the moving average of the weights.
    """

    def before_phase(self, run: Run, phase: Phase) -> None:
        if phase.kind == "train":
            RECORD.phase = step_phase(run.clock.step + 1)

    def after_phase(self, run: Run, phase: Phase) -> None:
        RECORD.phase = END

    def after_step(self, run: Run) -> None:
        RECORD.phase = step_phase(run.clock.step + 1)
        if run.clock.step in (run.clock.total_steps, _last_step):
            RECORD.phase = END
        if run.clock.step == _last_step:
            run.stop = Stop("enough steps")


def record_phases() -> None:
    """Let every training run of this process record its phases."""
    train, predict, flush = TrainingRun.__call__, evaluate._predict, MetricsLogger.flush

    def train_with_phases(run: TrainingRun, session: Session) -> dict[str, float]:
        hooks: Any = {**(run.hooks or {}), "phases": RecordPhases()}
        return train(replace(run, hooks=hooks), session)

    def predict_with_phases(*args: Any) -> Iterator[Any]:
        RECORD.phase = EVALUATION
        yield from predict(*args)
        RECORD.phase = SCORES

    def flush_in_own_phase(log: MetricsLogger, *args: Any) -> None:
        with RECORD.during(LOG):
            flush(log, *args)

    MetricsLogger.flush = flush_in_own_phase  # type: ignore[method-assign]
    TrainingRun.__call__ = train_with_phases  # type: ignore[method-assign]
    evaluate._predict = predict_with_phases
