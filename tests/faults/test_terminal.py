"""What a run shows: a bar on a real pseudo-terminal, plain lines elsewhere."""

import os
import pty
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.programs import PAUSE, Server

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
"""What a terminal is told to do with its cursor."""


@contextmanager
def terminal() -> Iterator[tuple[str, list[str]]]:
    """A pseudo-terminal: its path, and what was shown on it (when the block has ended)."""
    leader, follower = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(leader, 65536):
                shown.append(part)
        except OSError:  # on Linux: everybody has closed it
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


ON_SCREEN = {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}


def test_a_bar_with_the_scores_above_it(server: Server, recipe: Path, tmp_path: Path) -> None:
    with terminal() as (path, shown):
        server.run("train", str(recipe), "--out", str(tmp_path), stderr=path, environment=ON_SCREEN)
    (text,) = shown
    assert "━" in text and "30/30" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    for step in (8, 15, 23, 30):
        assert re.search(rf"step {step}  val/top1 0\.\d+  val/top5", plain)
    assert "best val/top1: " in plain
    assert text.index(HIDE) < text.rindex(SHOW) > text.rindex(HIDE), "the cursor is given back"


@pytest.mark.parametrize("end", ["refused", "stopped", "crashed"])
def test_the_cursor_is_given_back_however_it_ends(server: Server, recipe: Path, tmp_path: Path, end: str) -> None:
    if end == "refused":
        server.run("train", str(recipe), "train.length=5it", "--out", str(tmp_path))
    with terminal() as (path, shown):
        if end == "refused":
            arguments = ["--resume", "seed=9", "train.length=6it"]
            program = server.start(
                *("train", str(recipe), "--out", str(tmp_path)), *arguments, stderr=path, environment=ON_SCREEN
            )
            program.expect(2)
        else:
            program = server.start(
                *("train", str(recipe), "--out", str(tmp_path)),
                stderr=path,
                environment={**ON_SCREEN, PAUSE: "after_backward 5"},
            )
            program.until_paused()
            program.signal(signal.SIGTERM)
            if end == "crashed":
                program.signal(signal.SIGTERM)  # at once
            program.go_on()
            program.expect(143)
    (text,) = shown
    assert text.rfind(SHOW) >= text.rfind(HIDE)
    assert (HIDE in text) == (end != "refused")


def test_plain_lines_elsewhere(server: Server, recipe: Path, tmp_path: Path) -> None:
    program = server.run("train", str(recipe), "--out", str(tmp_path))
    assert "\x1b" not in program.err and "━" not in program.err
    lines = program.err.splitlines()
    assert sum(line.startswith("epoch ") for line in lines) == 10 + 4  # each third step, and four evaluations
    assert any(re.fullmatch(r"epoch 0\.20  step 3/30  loss \S+  .*lr 0\.004\d+ .*", line) for line in lines)
    assert "val/top1" in program.out
