"""Progress bars on pseudo-terminals of several sizes."""

import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from opabinia.runtime import progress
from opabinia.runtime.log import log, logging_to
from opabinia.runtime.progress import format_speed, progress_bar
from opabinia.runtime.quiet import quiet_terminal
from tests.runtime.pseudo_terminal import SIZES, on_terminal, resize

METRICS = ["loss 1.2345", "lr 0.001", *(f"a_rather_long_name_{number} 0.5" for number in range(20)), "acc 1"]


def train() -> None:
    """Run three updates with an evaluation and messages; every change is drawn."""
    progress._INTERVAL = 0.0
    with logging_to(None), progress_bar("train", 1000, completed=500, unit="it") as bar:
        log.info("a message of the log")
        for step in (501, 600, 1000):
            bar.update(step, speed="1,234 samples/s", seconds_left=3725.0, metrics=METRICS)
            print(f"step {step}")
        with progress_bar("eval val", 3) as inner:
            for _ in inner.track("abc"):
                time.sleep(0.01)


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_every_line_fits_the_terminal(columns: int, rows: int) -> None:
    output = on_terminal(train, columns, rows)
    assert output.status == 0 and all(len(line) <= columns for line in output.lines)
    assert re.fullmatch(r"train ━+ 500/1000  50%  ETA \?", output.bars[0]), "drawn before the first step"
    (frame, *_) = [line for line in output.bars if "600/1000" in line]
    bar = "━" * (16 if columns == 120 else 8)
    numbers = "600/1000  60%  ETA 1:02:05  1,234 samples/s"
    metrics = "loss 1.2345  lr 0.001  a_rather_long_name_0 0.5" if columns == 120 else "loss 1.2345  acc 1"
    assert frame == f"train {bar} {numbers}  {metrics}"
    assert not re.search(r"\.\.\.|…", output.text), "no name is cut"
    assert any(re.fullmatch(r"eval val ━+ 3/3  100%  in 0:00  [\d.]+ samples/s", line) for line in output.bars)


def test_messages_are_above_the_bar() -> None:
    output = on_terminal(train)
    for message in ("a message of the log", "step 501", "step 600"):
        assert message in output.lines, "on its own line"
    assert output.lines[-1].startswith("train ") and "eval val" not in output.lines[-1]
    assert "\x1b[?25l" not in output.text, "the cursor is always visible"


def test_a_terminal_that_is_resized() -> None:
    def program() -> None:
        progress._INTERVAL = 0.0
        with progress_bar("train", 10_000, unit="it") as bar:
            for number, width in enumerate((120, 40, 100), 1):
                resize(0, width, 24)
                bar.update(1230 * number, seconds_left=90, metrics=["loss 1.25"])
                time.sleep(0.01)

    wide, narrow, resized, *_ = on_terminal(program).bars[1:]
    assert 40 < len(wide) <= 120 and len(resized) <= 100 and "loss 1.25" in resized
    assert len(narrow) <= 40 and re.fullmatch("train +2460/10000  24%  ETA 1:30", narrow)


def test_few_frames_per_second_and_an_unknown_total(tmp_path: Path) -> None:
    def program() -> None:
        with progress_bar("train", 1000) as bar:
            for _ in bar.track(range(1000)):
                pass
        sys.stdout = (tmp_path / "out").open("w")
        with progress_bar("read", None, unit="images") as bar:
            print("a result of another file")
            progress._INTERVAL = 0.0
            bar.advance(7)

    output = on_terminal(program, environment={"NO_COLOR": "1"})
    assert len([line for line in output.bars if line.startswith("train")]) <= 3
    assert re.search(r"read .+ 7  ETA \?  .+ images/s$", output.bars[-1])
    assert "a result" not in output.text and not re.search(r"\x1b\[[\d;]*3\d", output.text), "no color"


def test_ctrl_c_leaves_a_clean_terminal() -> None:
    def program() -> None:
        try:
            with progress_bar("predict", 3), progress_bar("another", 3):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(9)
        finally:
            assert progress._display is None

    output = on_terminal(program)
    assert output.status == 130 and output.text.endswith("\r\n") and "\x1b[?25l" not in output.text


@pytest.mark.parametrize("target", ["quiet", "dumb", "another rank", "pipe"])
def test_nothing_is_shown(target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> None:
        with quiet_terminal(target == "quiet"), progress_bar("train", 10) as bar:
            bar.update(5, metrics=METRICS)

    if target == "pipe":
        program()
        assert capsys.readouterr() == ("", "")
        return
    if target == "another rank":
        monkeypatch.setattr(progress, "is_rank_zero", lambda: False)
    assert on_terminal(program, environment={"TERM": "dumb"} if target == "dumb" else {}).text == ""


def test_a_log_that_is_no_terminal_gets_a_line_every_20_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for is_quiet in (False, True):
        with quiet_terminal(is_quiet), progress_bar("train", 10), progress_bar("eval val", 30) as bar:
            for _ in bar.track(range(30)):
                now[0] += 3.0
    out, err = capsys.readouterr()
    expected = [["eval val", f"{number}/30"] for number in (7, 14, 21, 28)]
    assert [line.split("  ")[:2] for line in err.splitlines()] == expected
    assert out == "" and "\x1b" not in err


@pytest.mark.parametrize(
    ("speed", "text"),
    [
        (1436.7, "1,437 images/s"),
        (99.94, "99.9 images/s"),
        (1.0, "1 images/s"),
        (0.25, "4 s/image"),
        (0.0, "0 images/s"),
    ],
)
def test_speeds(speed: float, text: str) -> None:
    assert format_speed(speed, "images") == text
