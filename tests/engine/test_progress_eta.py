"""The estimated time to the end of a run: logged once, from measurements."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opabinia.contracts import Clock, Phase, Run
from opabinia.engine.hooks import progress
from opabinia.engine.hooks.progress import Eta, seconds_left
from opabinia.runtime.durations import Duration, format_seconds

EPOCH = Duration(1, "ep")
TRAIN, VAL = Phase("train", "train"), Phase("evaluate", "val")


@pytest.mark.parametrize(
    ("step", "period", "evaluations"),
    [
        (0, Duration(30, "it"), 4),  # after 30, 60, 90 and at the end
        (30, Duration(30, "it"), 3),
        (95, Duration(30, "it"), 1),
        (50, EPOCH, 5),
        (50, Duration(0, "ep"), 1),
        (100, EPOCH, 0),
    ],
)
def test_seconds_left(step: int, period: Duration, evaluations: int) -> None:
    clock = Clock(step=step, total_steps=100, steps_per_epoch=10)
    assert seconds_left(clock, 0.5, {"val": 2.0}, {"val": period}) == (100 - step) * 0.5 + 2.0 * evaluations


class SimulatedRun:
    """A run with steps of 0.5 s and evaluations of 3 s, by a simulated clock."""

    def __init__(self, periods: dict[str, Duration], total: int = 1000) -> None:
        self.time, self.total = 0.0, total
        progress.time = SimpleNamespace(monotonic=lambda: self.time)  # type: ignore[assignment]
        self.hook = Eta(torch.device("cpu"), periods)
        unused: Any = None
        self.run = Run(
            task=unused,
            optimizer=unused,
            loader=unused,
            metrics_log=unused,
            clock=Clock(),
            checkpoints=unused,
            evaluate=lambda accepts: {},
            scores={},
            folder=Path(),
        )

    def steps(self, first: int, last: int, epoch: int = 10) -> None:
        for step in range(first, last + 1):
            self.time += 0.5
            self.run.clock = Clock(step=step, total_steps=self.total, steps_per_epoch=epoch, epoch_step=step % epoch)
            self.hook.after_step(self.run)

    def evaluate(self) -> None:
        self.hook.before_phase(self.run, VAL)
        self.time += 3.0
        self.hook.after_phase(self.run, VAL)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(progress, "time", None)  # a simulated run sets it
    monkeypatch.setattr(logging.getLogger("opabinia"), "propagate", True)
    caplog.set_level(logging.INFO, "opabinia")
    return caplog


def test_it_is_logged_after_the_first_evaluation_with_enough_measurements(logged: pytest.LogCaptureFixture) -> None:
    simulated = SimulatedRun({"val": EPOCH})
    for epoch in range(4):
        simulated.steps(10 * epoch + 1, 10 * epoch + 10)
        simulated.evaluate()
        simulated.hook.after_phase(simulated.run, TRAIN)
    (text,) = logged.messages
    # After 30 steps: 970 steps of 0.5 s and 97 evaluations of 3 s are left.
    remaining = format_seconds(970 * 0.5 + 97 * 3)
    assert text.startswith(f"ETA: about {remaining}, including evaluations (3 s for all sets); peak memory ")
    assert "GB (host)" in text


def test_in_a_long_epoch_it_is_logged_after_a_minute(logged: pytest.LogCaptureFixture) -> None:
    simulated = SimulatedRun({"val": EPOCH})
    simulated.steps(1, 200, epoch=500)
    (text,) = logged.messages
    # The first step does not count: a minute is over after 122 steps.
    assert text.startswith(f"ETA: about {format_seconds((1000 - 122) * 0.5)}, without evaluations")


def test_a_short_run_logs_nothing(logged: pytest.LogCaptureFixture) -> None:
    simulated = SimulatedRun({}, total=20)
    simulated.steps(1, 20)
    simulated.hook.after_phase(simulated.run, TRAIN)
    assert logged.messages == []
