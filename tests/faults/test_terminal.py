"""Output of a run: a progress bar on a pseudo-terminal, plain lines elsewhere."""

import os
import pty
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.faults.programs import SLOW
from tests.faults.runs import EVALUATIONS, Run
from tests.runtime.pseudo_terminal import SIZES, Shown, resize

HIDE = "\x1b[?25l"
"""The sequence that hides the cursor of a terminal."""


@contextmanager
def terminal(columns: int = 120, rows: int = 40) -> Iterator[tuple[str, list[str]]]:
    """Yield the path of a pseudo-terminal, and its output (once the block has ended)."""
    leader, follower = pty.openpty()
    resize(leader, columns, rows)
    shown: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(leader, 65536):
                shown.append(part)
        except OSError:  # on Linux: all writers have closed it
            pass

    reader = threading.Thread(target=read)
    reader.start()
    text: list[str] = []
    try:
        yield os.ttyname(follower), text
    finally:
        os.close(follower)
        reader.join(10)
        os.close(leader)
        text.append(b"".join(shown).decode())


ON_SCREEN = {"TERM": "xterm", "COLUMNS": "", "LINES": "", "NO_COLOR": ""}


def test_a_progress_bar_with_scores_above_it(run: Run) -> None:
    columns, rows = SIZES[0]
    with terminal(columns, rows) as (path, texts):
        run.train(stderr=path, environment={**ON_SCREEN, SLOW: "0.02"})
    shown = Shown(texts[0], 0)
    assert all(len(bar) <= columns for bar in shown.bars) and not re.search(r"\.\.\.|…", shown.text)
    assert re.fullmatch("train ━+ 0/30  0%  ETA \\?", shown.bars[0]), "before the first step"
    running = r"train ━+ \d+/30  \d+%  ETA 0:\d\d  [\d,.]+ samples/s  loss [\d.]+"
    assert any(re.match(running, bar) for bar in shown.bars)
    assert re.match(r"train ━+ 30/30  100%  in 0:\d\d  [\d,.]+ samples/s  loss", shown.bars[-1])
    assert any(bar.startswith("eval val ━") for bar in shown.bars)
    for step in EVALUATIONS:
        assert any(re.match(rf"epoch .*  step {step}/30  val/top1 0\.\d+  val/top5", line) for line in shown.lines)
    assert HIDE not in shown.text


@pytest.mark.parametrize(
    "end", [*(pytest.param(end, marks=pytest.mark.slow) for end in ("refused", "stopped")), "crashed"]
)
def test_the_cursor_is_visible_after_every_kind_of_end(run: Run, end: str) -> None:
    if end == "refused":
        run.train("train.length=5it")
    with terminal() as (path, shown):
        if end == "refused":
            overrides = ["--resume", "seed=9", "train.length=6it"]
            run.train(*overrides, stderr=path, environment=ON_SCREEN, status=2)
        else:
            program = run.start(pause="after_backward 5", stderr=path, environment=ON_SCREEN)
            if end == "crashed":
                program.signal(signal.SIGTERM)  # the second one stops immediately
            program.stop()
    (text,) = shown
    assert HIDE not in text, "the cursor is never hidden, so it is visible after a crash"
    assert ("━" in text) == (end != "refused") and text.endswith("\n")


def test_plain_lines_without_a_terminal(run: Run) -> None:
    program = run.train()
    assert "\x1b" not in program.err and "━" not in program.err
    lines = program.err.splitlines()
    assert sum(line.startswith("epoch ") for line in lines) == 10 + 4  # each third step, and four evaluations
    assert any(re.fullmatch(r"epoch 0\.20  step 3/30  loss \S+  .*lr 0\.004\d+ .*", line) for line in lines)
    assert "val/top1" in program.out
