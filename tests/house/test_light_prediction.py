"""Predicting an image imports only the modules that the model needs."""

import json
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).resolve().parents[1] / "compat" / "v0.1" / "classification" / "run"
IMAGE = next((RUN.parents[1] / "inputs").rglob("*.png"))
MAX_MODULES = 133

PROGRAM = f"""
import json, sys, warnings
import opabinia
predictor = opabinia.load({str(RUN)!r}, checkpoint="last")
predictor({str(IMAGE)!r})
print(json.dumps(sorted(name for name in sys.modules if name.startswith("opabinia"))))
"""


def test_a_prediction_imports_a_part_of_the_package() -> None:
    for _ in range(2):  # without a cached catalog, the first process imports all parts and writes it
        run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        modules = json.loads(run.stdout.splitlines()[-1])
        if len(modules) < MAX_MODULES:
            break
    assert len(modules) < MAX_MODULES, "\n".join(modules)
