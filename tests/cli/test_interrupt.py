"""Ctrl-C during imports stops a command without a traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SLOW_TORCH = """
import os, time
open(os.environ["IMPORTING"], "w").close()
time.sleep(60)
"""
# The parent process of the tests may ignore Ctrl-C, which children inherit.
PROGRAM = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("opabinia", run_name="__main__")
"""


@pytest.mark.parametrize(
    "arguments",
    [["train", "classification/digits"], ["demo", "classification"]],
    ids=lambda arguments: arguments[0],
)
def test_ctrl_c_during_imports(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(SLOW_TORCH)
    importing = tmp_path / "importing"
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "IMPORTING": str(importing),
    }
    (tmp_path / "work").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path / "work",
    ) as program:
        end = time.monotonic() + 30
        while not importing.exists() and program.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=30)
    assert importing.exists(), err
    greeting = "Ctrl-C saves a checkpoint; the same command resumes\n" if arguments[0] == "demo" else ""
    assert (program.returncode, out, err) == (130, greeting, "")
    assert not list((tmp_path / "work").iterdir())
