"""Predicting an image imports what the model needs, and not the whole package."""

import json
import os
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).resolve().parents[1] / "compat" / "v0.1" / "classification" / "run"
IMAGE = next((RUN.parents[1] / "inputs").rglob("*.png"))
MAX_MODULES = 120

PROGRAM = f"""
import json, sys, warnings
import opabinia
predictor = opabinia.load({str(RUN)!r}, checkpoint="last")
predictor({str(IMAGE)!r})
print(json.dumps(sorted(name for name in sys.modules if name.startswith("opabinia"))))
"""


def test_a_prediction_imports_a_part_of_the_package(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2):  # the first process writes the catalog of parts
        run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
        assert run.returncode == 0, run.stderr
    modules = json.loads(run.stdout.splitlines()[-1])
    assert len(modules) < MAX_MODULES, "\n".join(modules)
