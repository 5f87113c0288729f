"""How long a run will take to its end: told once, from what was measured."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from opabinia.contracts import Clock, Phase, Run
from opabinia.engine.hooks.eta import Eta, seconds_left
from opabinia.runtime.durations import Duration, clock_time

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
def test_the_rest_of_a_run(step: int, period: Duration, evaluations: int) -> None:
    clock = Clock(step=step, total_steps=100, steps_per_epoch=10)
    assert seconds_left(clock, 0.5, {"val": 2.0}, {"val": period}) == (100 - step) * 0.5 + 2.0 * evaluations


class Course:
    """A run whose steps take half a second, and whose evaluations take three, by a clock of its own."""

    def __init__(self, periods: dict[str, Duration], total: int = 1000) -> None:
        self.time, self.total = 0.0, total
        self.hook = Eta(torch.device("cpu"), periods, lambda: self.time)
        nothing: Any = None
        self.run = Run(
            task=nothing,
            optimizer=nothing,
            loader=nothing,
            metrics_log=nothing,
            clock=Clock(),
            checkpoints=nothing,
            evaluate=lambda takes: {},
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
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("opabinia"), "propagate", True)
    caplog.set_level(logging.INFO, "opabinia")
    return caplog


def test_it_is_told_behind_the_first_evaluation_that_there_is_enough_before(told: pytest.LogCaptureFixture) -> None:
    course = Course({"val": EPOCH})
    for epoch in range(4):
        course.steps(10 * epoch + 1, 10 * epoch + 10)
        course.evaluate()
        course.hook.after_phase(course.run, TRAIN)
    (text,) = told.messages
    # After 30 steps: 970 of half a second, 97 evaluations of three.
    left = clock_time(970 * 0.5 + 97 * 3)
    assert text.startswith(f"about {left} to the end, evaluations included (3 s for all sets); at most ")
    assert "GB (host) so far" in text


def test_a_long_epoch_is_not_waited_for(told: pytest.LogCaptureFixture) -> None:
    course = Course({"val": EPOCH})
    course.steps(1, 200, epoch=500)
    (text,) = told.messages
    # The first step does not count: after 122 steps a minute has gone by.
    assert text.startswith(f"about {clock_time((1000 - 122) * 0.5)} to the end, evaluations not counted")


def test_a_short_run_is_told_nothing(told: pytest.LogCaptureFixture) -> None:
    course = Course({}, total=20)
    course.steps(1, 20)
    course.hook.after_phase(course.run, TRAIN)
    assert told.messages == []
