"""Training steps, evaluations and resumes on the pretended CUDA device: rules of CUDA and MPS, and host waits."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from opabinia.config import live_catalog
from tests.device.cases import FAMILIES, all_cases
from tests.device.program import DeviceProgram
from tests.device.runs import Events
from tests.device.waits import EVALUATION_BATCH, NONDETERMINISTIC, REASONS, STEP, problems

CASES = all_cases()
PARTS = [
    f"{family}/{name}"
    for family in FAMILIES
    for name, entry in sorted(live_catalog().entries[family].items())
    if entry.module.startswith("opabinia.")  # other tests register parts, too
]


@pytest.mark.parametrize("name", dict.fromkeys([*PARTS, *CASES]))
def test_a_run_follows_the_rules_of_devices_and_waits_as_expected(name: str, device: DeviceProgram) -> None:
    """Two steps in mixed precision, then a resume: a deterministic step, and an evaluation."""
    assert name in CASES, f"{name} is not run: add it to tests/device/cases.py"
    case = CASES[name]
    if case.needs and not find_spec(case.needs):
        pytest.skip(f"{case.needs} is not installed")
    events: Events = device.call("tests.device.runs", "observe", case.recipe, case.overrides, case.data)
    assert not (found := problems(name, events)), "\n".join([f"{name} (see tests/device/waits.py):", *found])


# --- tables -----------------------------------------------------------------------------------------------------------


def test_tables_name_runs_and_every_wait_has_a_reason() -> None:
    assert {*STEP, *EVALUATION_BATCH, *NONDETERMINISTIC} <= CASES.keys()
    waits = {wait for table in (STEP, EVALUATION_BATCH) for waits in table.values() for wait in waits}
    assert waits == REASONS.keys(), "a wait without a reason, or a reason without a wait"
    assert {name for name in CASES if not name.startswith("setting/")} <= {*PARTS}, "runs of parts that are gone"


def test_operations_without_a_deterministic_implementation_are_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/checkpoints.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (backward pass of [^|]+?) \| ([^|]+) \|", text, re.MULTILINE))
    for name, operations in NONDETERMINISTIC.items():
        family, _, part = name.partition("/")
        for operation in operations if family != "setting" else ():  # of a part that has a case of its own
            assert f"`{part}`" in rows.get(DOCUMENTED[operation], ""), f"docs/checkpoints.md: {operation} of {part}"


DOCUMENTED = {
    "aten::grid_sampler_2d_backward": "backward pass of `grid_sample`",
}
"""The names of operations in docs/checkpoints.md."""


# --- bitwise resume ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["setting/fp16", "setting/mixing_on_device", "task/moco", "task/detection"])
def test_a_resumed_run_is_bitwise_identical(name: str, device: DeviceProgram) -> None:
    case = CASES[name]
    assert device.call("tests.device.runs", "resumes_bitwise", case.recipe, case.overrides) == []
