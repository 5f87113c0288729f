"""Loggers: plain lines in a pipe, scores above the bar on a terminal, TensorBoard."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from opabinia.contracts import Clock
from opabinia.engine.loggers.tensorboard import TensorBoard
from opabinia.engine.loggers.terminal import Terminal
from opabinia.runtime.files import DiskError
from opabinia.runtime.quiet import quiet_terminal
from tests.runtime.pseudo_terminal import on_terminal

START = Clock(total_steps=100, steps_per_epoch=10)


def line(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "epoch": step / 10, "samples": 8 * step, **values}


def training(step: int, loss: float = 1.25) -> dict[str, Any]:
    times = {"time/data": 0.3, "time/step": 0.5, "time/read": 0.61, "samples_per_s": 16.0}
    return line(step, **{"train/loss": loss, "lr": 0.01, **times, "sample_ids": ["a", "b"]})


PLAIN = (
    r"epoch 1\.00  step 10/100  loss 1\.25  lr 0\.01  16/s  waits for data 60% "
    r"\(reading a batch takes 0\.61 s, training 0\.2 s\)  ETA 0:0\d"
)


# --- in a pipe --------------------------------------------------------------------------------------------------------


def test_plain_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Terminal(Path(), START)
    logger.write(training(10))
    logger.write(line(10, **{"val/top1": 0.5, "time/val": 3.0}))
    logger.close()
    out, err = capsys.readouterr()
    assert out == ""
    train_line, val_line = err.splitlines()
    assert re.fullmatch(PLAIN, train_line)
    assert val_line == "epoch 1.00  step 10/100  val/top1 0.5"
    assert "\x1b" not in err


def test_a_line_of_a_multi_task_run_has_the_loss_of_each_task(capsys: pytest.CaptureFixture[str]) -> None:
    task_values = {
        "train/boxes/loss_cls": 0.5,
        "train/boxes/weight": 0.7,
        "train/boxes/loss": 1.5,
        "train/digits/loss": 2.0,
    }
    totals = {"train/digits/top1": 0.1, "train/total_loss": 3.5, "train/loss": 3.5, "grad_norm": 2.0}
    Terminal(Path(), START).write(training(10) | task_values | totals)
    output = capsys.readouterr().err
    assert output.startswith(
        "epoch 1.00  step 10/100  loss 3.5  boxes/weight 0.7  boxes/loss 1.5  digits/loss 2  grad_norm 2  lr"
    )


def test_a_resumed_run_counts_the_time_left_from_where_it_began(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    logger = Terminal(Path(), Clock(step=50, total_steps=100))
    now[0] = 100.0
    logger.write(training(60))
    assert capsys.readouterr().err.rstrip().endswith("ETA 6:40")  # 10 s a step, 40 to go
    now[0] = 36_000.0
    logger.write(training(75))
    assert capsys.readouterr().err.rstrip().endswith("ETA 10:00:00")


def test_none_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Terminal(Path(), START)
    logger.write(line(1, **{"train/aux": None, "time/step": 0.0, "time/data": 0.0, "lr": 0.1}))
    assert "aux None" in capsys.readouterr().err


# --- on a terminal ----------------------------------------------------------------------------------------------------


def write_lines() -> None:
    logger = Terminal(Path(), START)
    logger.write(training(50))
    logger.write(line(50, **{"val/top1": 0.5}))
    logger.close()


def test_a_terminal_has_only_scores_because_the_bar_has_the_other_values() -> None:
    assert on_terminal(write_lines).lines == ["epoch 5.00  step 50/100  val/top1 0.5"]


def test_a_dumb_terminal_gets_lines() -> None:
    output = on_terminal(write_lines, environment={"TERM": "dumb"})
    assert "\x1b" not in output.text and "epoch 5.00  step 50/100  loss 1.25" in output.text


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet_terminal():
        logger = Terminal(Path(), START)
        logger.write(training(10))
        logger.close()
    assert capsys.readouterr().err == ""


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def events(folder: Path) -> dict[tuple[str, int], float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {
        (tag, event.step): event.value for tag in accumulator.Tags()["scalars"] for event in accumulator.Scalars(tag)
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_every_value_and_a_resume_hides_repeated_steps(tmp_path: Path) -> None:
    before_resume = TensorBoard(tmp_path, START)
    for step in (1, 2, 3):
        before_resume.write(line(step, **{"val/top1": step / 4, "nothing": None, "sample_ids": ["a"]}))
    before_resume.close()
    time.sleep(1)  # files of the same second are read in the order of their names, whose numbers sort "10" before "9"
    resumed = TensorBoard(tmp_path, Clock(step=2, total_steps=100))
    resumed.write(line(4, **{"val/top1": 0.75}))
    resumed.close()
    values = events(tmp_path)
    assert {step: value for (tag, step), value in values.items() if tag == "val/top1"} == {1: 0.25, 2: 0.5, 4: 0.75}
    assert {tag for tag, _ in values} == {"val/top1", "epoch"}


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = TensorBoard(tmp_path, START)

    def full(*arguments: Any, **keywords: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(logger._events, "add_summary", full)
    monkeypatch.setattr(logger._writer, "close", full)
    with pytest.raises(DiskError, match=r"cannot write .*/tensorboard: the disk is full"):
        logger.write(line(1, a=1.0))
    logger.close()  # raises no second error
    monkeypatch.undo()
    logger.close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file")
    with pytest.raises(DiskError, match=r"cannot write .*/tensorboard"):
        TensorBoard(tmp_path, START)
