"""The progress bar of a training run, on a pseudo-terminal."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opabinia.contracts import Clock, Phase
from opabinia.engine.hooks import progress as hooks
from opabinia.engine.hooks.progress import Eta, TrainingBar
from opabinia.engine.loggers.metrics_log import MetricsLogger
from opabinia.engine.loggers.terminal import bar_metrics
from opabinia.runtime import progress
from opabinia.runtime.durations import Duration
from tests.runtime.pseudo_terminal import SIZES, on_terminal

LINE = {
    **{"step": 20, "epoch": 2.0, "samples": 1280, "train/loss_box_regression": 0.51, "train/loss": 1.25, "lr": 0.01},
    **{"train/grad_norm": 3.5, "time/step": 0.1, "time/data": 0.06, "samples_per_s": 640.0, "memory/host_mb": 2048.0},
}


def train(start_step: int = 0) -> None:
    """Run the events of 40 steps of 1 s each, in a process of its own; step 20 writes a line and is evaluated."""
    progress._INTERVAL = 0.0
    now = [0.0]
    hooks.time = SimpleNamespace(monotonic=lambda: now[0])  # type: ignore[assignment]
    eta = Eta(torch.device("cpu"), {"val": Duration(20, "it")})
    bar = TrainingBar(eta)
    log: Any = SimpleNamespace(newest=None)
    run: Any = SimpleNamespace(clock=Clock(step=start_step, total_steps=40, steps_per_epoch=10), metrics_log=log)
    bar.start(run)
    for step in range(start_step + 1, 41):
        now[0] += 1.0
        run.clock = Clock(step=step, total_steps=40, steps_per_epoch=10)
        log.newest = LINE if step == 20 else log.newest
        bar.after_step(run)
        eta.after_step(run)
        if step == 20:
            log.newest = {"step": 20, "epoch": 2.0, "val/top1": 0.5}
            eta.before_phase(run, Phase("evaluate", "val"))
            now[0] += 100.0
            eta.after_phase(run, Phase("evaluate", "val"))
    bar.finish(run, "done")


def test_a_log_that_is_no_terminal_begins_with_the_first_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps take 6 s. The line of step 10 is printed by the logger of the terminal, values on a device stay there."""
    now = [100.0]
    for module in (progress, hooks):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    metrics_log, clock = MetricsLogger(None), Clock(total_steps=16, steps_per_epoch=10)
    eta = Eta(torch.device("cpu"), {})
    bar = TrainingBar(eta)
    run: Any = SimpleNamespace(clock=clock, metrics_log=metrics_log)
    bar.start(run)
    bar.finish(run, "failed before the first step")
    bar.start(run)
    for step in range(1, 17):
        now[0] += 6.0
        run.clock = Clock(step=step, total_steps=16, steps_per_epoch=10)
        loss = {"train/loss": torch.tensor(2.0 / step), "train/other_loss": torch.zeros((), device="meta")}
        metrics_log.add(step, {**loss, "lr": 0.1, "samples": 8.0, "time/step": 6.0, "time/data": 0.0})
        if step == 10:
            metrics_log._pending.clear()
            metrics_log.newest = {**LINE, "step": 10}
        bar.after_step(run)
        eta.after_step(run)
    bar.finish(run, "done")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[1] for line in lines] == ["1/16", "5/16", "9/16", "14/16"]
    assert "loss 2  lr 0.1  epoch 0.00" in lines[0] and "ETA" in lines[0]
    assert "ETA 1:06" in lines[1] and "loss 0.4  " in lines[1], "the newest step, not the mean since the last line"


def frame(frames: list[str], step: int) -> str:
    return next(line for line in frames if f" {step}/40 " in line)


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_the_bar_of_a_run(columns: int, rows: int) -> None:
    output = on_terminal(train, columns, rows)
    assert output.status == 0 and all(len(line) <= columns for line in output.lines)
    frames = [re.sub("━+", "━", line) for line in output.bars]
    assert frame(frames, 0) == "train ━ 0/40  0%  ETA ?", "before the first step"
    assert re.fullmatch(r"train ━ 10/40  25%  ETA 0:30  \S+ it/s", frame(frames, 10)), "no value before the first line"
    assert frame(frames, 20).startswith("train ━ 20/40  50%  ETA 0:20  640 samples/s  loss 1.25  lr 0.01")
    assert ("loss_box_regression 0.51" in frame(frames, 20)) == (columns == 120)
    assert "..." not in output.text and "…" not in output.text
    # The evaluation took 100 s; another one is to come.
    assert "ETA 1:59" in frame(frames, 21) and "loss 1.25" in frame(frames, 21)


def test_a_resumed_run_begins_where_it_was() -> None:
    frames = on_terminal(lambda: train(30)).bars
    assert "30/40  75%  ETA ?" in frames[0] and "35/40" in frame(frames, 35)


def test_loss_learning_rate_and_epoch_come_first() -> None:
    assert bar_metrics(LINE) == [
        *("loss 1.25", "lr 0.01", "epoch 2.00", "loss_box_regression 0.51", "grad_norm 3.5"),
        *("waits for data 60%", "2.0 GB"),
    ]


def test_the_hook_does_not_read_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only values of lines that were written are shown: tensors of a step stay where they are."""
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: pytest.fail("a wait for the device"))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: pytest.fail("a wait for the device"))
    assert on_terminal(train).status == 0
