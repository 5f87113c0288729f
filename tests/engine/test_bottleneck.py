"""What a run waits for, and when that is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from opabinia.contracts import Clock, Phase
from opabinia.engine.hooks.bottleneck import Bottleneck, Pace, describe_bottleneck, workers_needed
from opabinia.engine.loggers.metrics_log import MetricsLogger
from tests.engine.test_more_hooks import a_run

TRAIN = Phase("train", "train")


@pytest.mark.parametrize(("read", "step", "needed"), [(0.4, 0.1, 5), (0.1, 0.4, 1), (0.001, 0.4, 0), (0.08, 0.1, 1)])
def test_how_many_workers_keep_up(read: float, step: float, needed: int) -> None:
    assert workers_needed(read, step) == needed


def test_waiting_for_data_that_more_workers_would_end() -> None:
    said = describe_bottleneck(Pace(0.4, 0.3, 0.4, 1, 8), ["data.cache: disk"])
    assert said == (
        "waited for data 75% of the time (reading a batch takes 0.4 s in 1 worker, learning from it 0.1 s): "
        "data.workers: 5 would keep up (each process has 8 cores); so might data.cache: disk"
    )


def test_waiting_for_data_with_too_few_cores() -> None:
    assert describe_bottleneck(Pace(0.4, 0.3, 0.4, 0, 2)).endswith(
        "in the process that trains, learning from it 0.1 s): data.workers: 2 would help (each process has 2 cores, 5 "
        "would keep up)"
    )
    said = describe_bottleneck(Pace(0.4, 0.3, 0.4, 2, 2), ["data.cache: disk", "data.decode: reduced"])
    assert said.endswith("all of them busy: make reading cheaper (data.cache: disk or data.decode: reduced)")


def test_waiting_for_the_host_or_the_device() -> None:
    faster = ["train.precision: bf16", "train.compile: true"]
    said = describe_bottleneck(Pace(0.02, 0.001, 0.01, 2, 8, behind=0.1), faster=faster)
    assert said.startswith("the device waits for the host, which needs 0.019 s to start a step's work: a larger")
    assert said.endswith("train.compile: true starts less")
    said = describe_bottleneck(Pace(0.2, 0.001, 0.01, 2, 8, behind=0.9), faster=faster)
    assert said == (
        "steps take 100% of the time, and reading a batch (0.01 s) keeps up: train.precision: bf16 or "
        "train.compile: true may make steps shorter"
    )
    assert describe_bottleneck(Pace(0.2, 0.001, 0.01, 2, 8), faster=faster).endswith("keeps up"), "which help a GPU"


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    log = logging.getLogger("opabinia")
    before, log.propagate = log.propagate, True
    with caplog.at_level(logging.INFO, "opabinia"):
        yield caplog
    log.propagate = before


def trained(hook: Bottleneck, steps: int, per_epoch: int, seconds: float, every: int = 10) -> None:
    """The lines of so many steps, 0.75 of whose time is waiting, read by the hook as a run has it read them."""
    run: Any = a_run(metrics_log=MetricsLogger(None))
    hook.start(run)
    for step in range(1, steps + 1):
        run.clock = Clock(step, total_steps=steps, steps_per_epoch=per_epoch)
        slow = 100 if step <= every else 1  # what the first line holds, such as starting workers
        times = {"time/step": slow * seconds, "time/data": 0.75 * seconds, "time/read": seconds}
        run.metrics_log.add(step, {"train/loss": 1.0, **times})
        if step % every == 0 or step % per_epoch == 0:
            run.metrics_log.flush(run.clock)
        hook.after_step(run)
        if step % per_epoch == 0:
            hook.after_phase(run, TRAIN)


def test_it_is_told_once_at_the_end_of_the_first_epoch_with_enough_to_go_by(logged: pytest.LogCaptureFixture) -> None:
    trained(Bottleneck(1), steps=100, per_epoch=25, seconds=0.2)
    (line,) = [record.message for record in logged.records if "waited" in record.message]
    assert line.startswith(
        "waited for data 75% of the time (reading a batch takes 0.2 s in 1 worker, learning from it 0.05"
    )


def test_a_short_run_says_nothing(logged: pytest.LogCaptureFixture) -> None:
    trained(Bottleneck(1), steps=29, per_epoch=29, seconds=0.2)
    trained(Bottleneck(1), steps=100, per_epoch=25, seconds=0.01)
    assert not logged.records


def test_a_long_epoch_does_not_keep_it_waiting(logged: pytest.LogCaptureFixture) -> None:
    trained(Bottleneck(1), steps=100, per_epoch=1000, seconds=5.0)
    assert len(logged.records) == 1
