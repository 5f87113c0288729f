"""The bottleneck of a run, and when it is logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from opabinia.contracts import Clock, Phase
from opabinia.engine.hooks.bottleneck import Bottleneck, StepTimes, describe_bottleneck, workers_needed
from opabinia.engine.loggers.metrics_log import MetricsLogger
from tests.engine.toys import make_run

TRAIN = Phase("train", "train")


@pytest.mark.parametrize(("read", "step", "needed"), [(0.4, 0.1, 5), (0.1, 0.4, 1), (0.001, 0.4, 0), (0.08, 0.1, 1)])
def test_workers_needed(read: float, step: float, needed: int) -> None:
    assert workers_needed(read, step) == needed


def test_waiting_for_data_with_too_few_workers() -> None:
    text = describe_bottleneck(StepTimes(0.4, 0.3, 0.4, 1, 8), ["data.cache: disk"])
    assert text == (
        "waited for data 75% of the time (reading a batch takes 0.4 s in 1 worker, training on it 0.1 s): "
        "data.num_workers: 5 would keep up (each process has 8 cores); so might data.cache: disk"
    )


def test_waiting_for_data_with_too_few_cores() -> None:
    assert describe_bottleneck(StepTimes(0.4, 0.3, 0.4, 0, 2)).endswith(
        "in the training process, training on it 0.1 s): data.num_workers: 2 would help (each process has 2 cores, 5 "
        "would keep up)"
    )
    text = describe_bottleneck(StepTimes(0.4, 0.3, 0.4, 2, 2), ["data.cache: disk", "data.decode: reduced"])
    assert text.endswith("all of them busy: make reading cheaper (data.cache: disk or data.decode: reduced)")


def test_waiting_for_the_host_or_the_device() -> None:
    faster = ["train.precision: bf16", "train.compile: true"]
    text = describe_bottleneck(StepTimes(0.02, 0.001, 0.01, 2, 8, queued_share=0.1), faster_steps=faster)
    assert text.startswith("the device waits for the host, which needs 0.019 s to launch a step: a larger")
    assert text.endswith("train.compile: true launches fewer kernels")
    text = describe_bottleneck(StepTimes(0.2, 0.001, 0.01, 2, 8, queued_share=0.9), faster_steps=faster)
    assert text == (
        "steps take 100% of the time, and reading a batch (0.01 s) keeps up: train.precision: bf16 or "
        "train.compile: true may make steps faster"
    )
    assert describe_bottleneck(StepTimes(0.2, 0.001, 0.01, 2, 8), faster_steps=faster).endswith("keeps up"), (
        "these settings help a GPU"
    )


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    log = logging.getLogger("opabinia")
    propagates, log.propagate = log.propagate, True
    with caplog.at_level(logging.INFO, "opabinia"):
        yield caplog
    log.propagate = propagates


def run_hook(hook: Bottleneck, steps: int, per_epoch: int, seconds: float, every: int = 10) -> None:
    """Run the hook for ``steps`` steps that wait for data 75% of the time."""
    run: Any = make_run(metrics_log=MetricsLogger(None))
    hook.start(run)
    for step in range(1, steps + 1):
        run.clock = Clock(step, total_steps=steps, steps_per_epoch=per_epoch)
        slow = 100 if step <= every else 1  # the first line includes starting workers
        times = {"time/step": slow * seconds, "time/data": 0.75 * seconds, "time/read": seconds}
        run.metrics_log.add(step, {"train/loss": 1.0, **times})
        if step % every == 0 or step % per_epoch == 0:
            run.metrics_log.flush(run.clock)
        hook.after_step(run)
        if step % per_epoch == 0:
            hook.after_phase(run, TRAIN)


def test_it_is_logged_once_at_the_end_of_the_first_epoch_with_enough_measurements(
    logged: pytest.LogCaptureFixture,
) -> None:
    run_hook(Bottleneck(1), steps=100, per_epoch=25, seconds=0.2)
    (line,) = [record.message for record in logged.records if "waited" in record.message]
    assert line.startswith(
        "waited for data 75% of the time (reading a batch takes 0.2 s in 1 worker, training on it 0.05"
    )


def test_a_short_run_logs_nothing(logged: pytest.LogCaptureFixture) -> None:
    run_hook(Bottleneck(1), steps=29, per_epoch=29, seconds=0.2)
    run_hook(Bottleneck(1), steps=100, per_epoch=25, seconds=0.01)
    assert not logged.records


def test_in_a_long_epoch_it_is_logged_before_the_end(logged: pytest.LogCaptureFixture) -> None:
    run_hook(Bottleneck(1), steps=100, per_epoch=1000, seconds=5.0)
    assert len(logged.records) == 1
