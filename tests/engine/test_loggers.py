"""Loggers: plain lines in a pipe, a progress bar on a terminal, TensorBoard."""

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from opabinia.contracts import Clock
from opabinia.engine.loggers.tensorboard import TensorBoard
from opabinia.engine.loggers.terminal import Terminal
from opabinia.runtime.files import DiskError
from opabinia.runtime.quiet import quiet_terminal

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
    first, second = err.splitlines()
    assert re.fullmatch(PLAIN, first)
    assert second == "epoch 1.00  step 10/100  val/top1 0.5"
    assert "\x1b" not in err


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


class Screen:
    """A pseudo-terminal as stderr, seen from its other end."""

    def __init__(self) -> None:
        self._leader, follower = pty.openpty()
        self._before, self._stderr = sys.stderr, os.fdopen(follower, "w")
        sys.stderr = self._stderr
        self._seen = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            while part := os.read(self._leader, 4096):
                self._seen += part
        except OSError:  # Linux: the other end is closed
            pass

    def close(self) -> str:
        """Return all that was shown."""
        if not self._stderr.closed:
            sys.stderr = self._before
            self._stderr.close()
            self._thread.join(10)
            os.close(self._leader)
        return self._seen.decode()


@contextmanager
def on_screen() -> Iterator[Screen]:
    """Not a fixture: pytest replaces stderr after fixtures."""
    found = Screen()
    try:
        yield found
    finally:
        found.close()


def test_a_bar_on_a_terminal_with_the_scores_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with on_screen() as screen:
        logger = Terminal(Path(), START)
        logger.write(training(50))
        logger.write(line(50, **{"val/top1": 0.5}))
        logger.write(training(100, loss=0.125))
        logger.close()
    text = screen.close()
    assert "━" in text
    assert "100/100" in text and "loss 0.125" in text
    assert "epoch 5.00  step 50  val/top1 0.5" in text
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h"), "the cursor is restored"


def test_a_run_without_lines_does_not_touch_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run was refused, or stopped, after its loggers were built."""
    monkeypatch.setenv("TERM", "xterm")
    with on_screen() as screen:
        logger = Terminal(Path(), START)
        assert logger._bar is not None, "it is a terminal"
    assert screen.close() == ""


# --- a terminal of any size -------------------------------------------------------------------------------------------

SHOWS = """
import sys
from pathlib import Path
from opabinia.contracts import Clock
from opabinia.engine.loggers.terminal import Terminal
logger = Terminal(Path(), Clock(total_steps=10_000, steps_per_epoch=1000))
times = {"time/data": 0.3, "time/step": 0.5, "time/read": 0.61, "samples_per_s": 16.0}
print("ready", flush=True)
for number, _ in enumerate(sys.stdin, 1):
    logger.write({"step": 1230 * number, "epoch": 1.23 * number, "train/loss": 1.25, "lr": 0.01, **times})
    if logger._bar:
        logger._bar.refresh()
    print("shown", flush=True)
logger.close()
"""


def show_frames(*widths: int, **environment: str) -> list[list[str]]:
    """Return the frames, without colors, that another process shows on terminals of these widths."""
    leader, follower = pty.openpty()
    resize(leader, widths[0])
    given = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", SHOWS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=follower,
        env={**given, "TERM": "xterm", **environment},
        text=True,
    )
    os.close(follower)
    assert process.stdin and process.stdout
    process.stdout.readline()
    found = []
    for width in widths:
        resize(leader, width)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        found.append(frames(read_output(leader)))
    process.stdin.close()
    read_output(leader)
    assert process.wait(20) == 0
    process.stdout.close()
    os.close(leader)
    return found


def resize(terminal: int, width: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))


def read_output(terminal: int) -> str:
    """Read the output of a third of a second; a bar is drawn continuously."""
    found, end = b"", time.monotonic() + 0.3
    while (left := end - time.monotonic()) > 0 and select.select([terminal], [], [], left)[0]:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # Linux: the other end is closed
            break
        found += part
    return found.decode(errors="replace")


def frames(text: str) -> list[str]:
    parts = re.split(r"\r\x1b\[2K", text)
    return [clean for part in parts if (clean := re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", part).strip("\r\n"))]


def test_a_terminal_that_is_resized() -> None:
    wide, narrow, wide_again = show_frames(120, 40, 100)
    assert len(wide[-1]) == 120
    assert len(narrow[-1]) <= 40 and "2460/10000" in narrow[-1] and "\n" not in narrow[-1]
    assert len(wide_again[-1]) == 100 and "3690/10000" in wide_again[-1] and "loss 1.25" in wide_again[-1]


def test_a_terminal_of_forty_columns_still_shows_the_loss() -> None:
    (frame_lines,) = show_frames(40)
    assert len(frame_lines[-1]) <= 40 and "1230/10000" in frame_lines[-1] and "loss" in frame_lines[-1]


def test_no_color() -> None:
    (frame_lines,) = show_frames(80, NO_COLOR="1")
    assert "1230/10000" in frame_lines[-1] and "loss 1.25" in frame_lines[-1]


def test_a_dumb_terminal_gets_lines() -> None:
    (frame_lines,) = show_frames(80, TERM="dumb")
    assert "━" not in "".join(frame_lines) and "epoch 1.23  step 1230/10000  loss 1.25" in frame_lines[-1]


def test_with_its_stderr_in_a_pipe(tmp_path: Path) -> None:
    """As with ``2>&1 | tee``."""
    program = f"{sys.executable} -c {shlex.quote(SHOWS)} 2>&1 | tee {tmp_path / 'copy'}"
    done = subprocess.run(["bash", "-c", program], input="\n\n", capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == (tmp_path / "copy").read_text()
    assert "step 2460/10000" in done.stdout and "\x1b" not in done.stdout and done.stderr == ""


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet_terminal():
        logger = Terminal(Path(), START)
        logger.write(training(10))
        logger.close()
    assert capsys.readouterr().err == ""


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def events(folder: Path) -> dict[tuple[str, int], float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {(tag, one.step): one.value for tag in found.Tags()["scalars"] for one in found.Scalars(tag)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_every_value_and_a_resume_hides_repeated_steps(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path, START)
    for step in (1, 2, 3):
        first.write(line(step, **{"val/top1": step / 4, "nothing": None, "sample_ids": ["a"]}))
    first.close()
    time.sleep(1)  # files of one second are read in the order of a number at the end of their names, "10" before "9"
    second = TensorBoard(tmp_path, Clock(step=2, total_steps=100))
    second.write(line(4, **{"val/top1": 0.75}))
    second.close()
    found = events(tmp_path)
    assert {step: value for (tag, step), value in found.items() if tag == "val/top1"} == {1: 0.25, 2: 0.5, 4: 0.75}
    assert {tag for tag, _ in found} == {"val/top1", "epoch"}


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = TensorBoard(tmp_path, START)

    def full(*arguments: Any, **keywords: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(logger._events, "add_summary", full)
    monkeypatch.setattr(logger._writer, "close", full)
    with pytest.raises(DiskError, match=r"cannot write .*/tensorboard: the disk is full"):
        logger.write(line(1, a=1.0))
    logger.close()  # hides nothing
    monkeypatch.undo()
    logger.close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file")
    with pytest.raises(DiskError, match=r"cannot write .*/tensorboard"):
        TensorBoard(tmp_path, START)
