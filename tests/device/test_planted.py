"""Defects that a CPU does not show fail the tests of runs, with a message that names the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.device.cases import CLASSIFICATION
from tests.device.program import DeviceProgram
from tests.device.runs import Events
from tests.device.waits import problems

FILE = "tests/device/planted.py"


def overrides(defect: str) -> tuple[str, ...]:
    plugin = ("plugins=[tests.device.planted]", f"task.loss={{name: planted, defect: {defect}}}")
    return CLASSIFICATION.having(*plugin).overrides


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("item", "in a step the host waits 1 times, not 0, for: wait_for_a_number: item\n    1 at {file}:"),
        ("float64", "aten::sum results in float64, which MPS does not have, in sum_in_float64 at {file}:"),
        ("nondeterministic", "aten::adaptive_max_pool2d_backward has no deterministic implementation, in Standard"),
    ],
)
def test_a_step_that_works_on_cuda_but_should_not_be_so(defect: str, message: str, device: DeviceProgram) -> None:
    events: Events = device.call("tests.device.runs", "observe", CLASSIFICATION.recipe, overrides(defect))
    found = problems("task/classification", events)
    assert any(line.startswith(message.format(file=FILE)) for line in found), found


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("host tensor", "Expected all tensors to be on the same device, but found at least two, cuda:0 and cpu: aten"),
        ("half precision", "not implemented for torch.bfloat16 on CUDA: aten.linalg_"),
        ("generator", "Expected a 'cuda' device type for generator but found 'cpu': aten.rand"),
    ],
)
def test_a_step_that_cuda_refuses(defect: str, message: str, device: DeviceProgram) -> None:
    with pytest.raises(AssertionError) as error:
        device.call("tests.device.runs", "observe", CLASSIFICATION.recipe, overrides(defect))
    assert message in str(error.value) and FILE in str(error.value)


def test_a_new_part_must_be_added_to_the_table(device: DeviceProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.device import test_runs

    monkeypatch.delitem(test_runs.CASES, "detector/fcos")
    with pytest.raises(AssertionError, match=r"detector/fcos is not run: add it to tests/device/cases\.py"):
        test_runs.test_a_run_follows_the_rules_of_devices_and_waits_as_expected("detector/fcos", device)


def test_commands_run_on_the_device(warm_server: Any, device: DeviceProgram, tmp_path: Path) -> None:
    """``python -m tests.device``; the fixture ``device`` skips the test if there is no compiler."""
    command = "import runpy, sys; sys.argv[0] = 'opabinia'; runpy.run_module('tests.device', run_name='__main__')"
    recipe = ["train", "classification/digits", "train.device=cuda", "train.length=2it", "data.val=null"]
    program = warm_server.start(
        *(*recipe, *CLASSIFICATION.overrides[:3], "--out", str(tmp_path), "data.num_workers=0", "checkpoint.best=null"),
        code=command,
    )
    program.expect(0)
    assert "pretended CUDA device" in program.out + program.err
    assert "--- host waits" in program.err and "HostBuffers.copy" in program.err
