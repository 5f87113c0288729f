"""The tests for GPUs pass on the pretended CUDA device, except for those that need a real one (``plugin.py``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device import driver_hooks
from tests.device.plugin import DESELECTED

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_tests_for_gpus_pass() -> None:
    if driver_hooks.compiler() is None:
        pytest.skip("the pretended CUDA device needs g++")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.device.plugin", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout[-2_000:]


def test_deselected_tests_exist() -> None:
    for name in DESELECTED:
        file, function = name.partition("[")[0].split("::")
        assert f"def {function}(" in (ROOT / "tests/gpu" / file).read_text(encoding="utf-8")
