"""Options of multi-GPU and multi-node runs; no process is started."""

import os
from typing import Any

import pytest

from opabinia.cli.processes import layout
from opabinia.config import ConfigError
from opabinia.runtime.elastic_agent import ProcessLayout
from tests.runtime.test_slurm import STEP

DEFAULT_PORT = 2**15 + 2**14 + os.getuid() % 2**14


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "TORCHELASTIC_", "MASTER_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


def layout_of(
    nproc: str | None = None, nnodes: Any = None, node_rank: Any = None, endpoint: Any = None
) -> ProcessLayout | None:
    return layout(nproc, nnodes, node_rank, endpoint, 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), None),
        (("2",), ProcessLayout(2, 1, 0, "localhost", DEFAULT_PORT, 3)),
        (("auto",), ProcessLayout(None, 1, 0, "localhost", DEFAULT_PORT, 3)),
        (("2", None, None, "auto"), ProcessLayout(2, 1, 0, "localhost", 0, 3)),
        (("2", None, None, "localhost:1234"), ProcessLayout(2, 1, 0, "localhost", 1234, 3)),
        (("4", 2, 1, "node0:29500"), ProcessLayout(4, 2, 1, "node0", 29500, 3)),
        ((None, 2, 0, "10.0.0.1:29500"), ProcessLayout(None, 2, 0, "10.0.0.1", 29500, 3)),
        (("4", "2:8", None, "node0:29500"), ProcessLayout(4, 8, None, "node0", 29500, 3, min_nodes=2)),
        (("4", "2:8", 7, "node0:29500"), ProcessLayout(4, 8, 7, "node0", 29500, 3, min_nodes=2)),
        (("4", "2:2", 1, "node0:29500"), ProcessLayout(4, 2, 1, "node0", 29500, 3)),
    ],
)
def test_layouts(options: tuple[Any, ...], expected: ProcessLayout | None) -> None:
    assert layout_of(*options) == expected


def test_invalid_numbers_of_nodes() -> None:
    for invalid in ("3:2", "0:2", "0", "two", "2:", ":2", "1:2:3", "-1", "1:many"):
        with pytest.raises(ConfigError) as caught:
            layout_of("2", invalid, 0, "a:1")
        message = f"{invalid!r} is neither a number of machines nor MIN:MAX with 1 <= MIN <= MAX, such as 2:8"
        assert str(caught.value) == f"command line: --nnodes: {message}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nproc": "3000"}, "--nproc: 3000 ranks on "),
        ({"nproc": "0"}, "--nproc: '0' is neither a number of ranks nor auto"),
        ({"nproc": "two"}, "--nproc: 'two' is neither"),
        ({"nproc": "2", "nnodes": 2, "endpoint": "a:1"}, "--node-rank: give the number of this machine, 0 to 1"),
        ({"nproc": "2", "nnodes": 2, "node_rank": 0}, "--rdzv-endpoint: give an address of machine 0"),
        ({"nproc": "2", "nnodes": 2, "node_rank": 0, "endpoint": "auto"}, "--rdzv-endpoint: give an address"),
        ({"nproc": "2", "nnodes": 2, "node_rank": 2, "endpoint": "a:1"}, "--node-rank: 2 is too large for 2 machines"),
        ({"nproc": "2", "nnodes": "1:2"}, "--rdzv-endpoint: give an address of machine 0"),
        ({"nproc": "2", "nnodes": "1:2", "node_rank": 2, "endpoint": "a:1"}, "--node-rank: 2 is too large for 2"),
        ({"nproc": "2", "endpoint": "a"}, "--rdzv-endpoint: 'a' is neither HOST:PORT nor auto"),
        ({"nproc": "2", "endpoint": "a:70000"}, "--rdzv-endpoint: 'a:70000' is neither"),
    ],
)
def test_inconsistent_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"command line: {message}"):
        layout_of(**options)


def test_slurm_sets_the_remaining_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}.items():
        monkeypatch.setenv(name, value)
    assert layout_of("4") == ProcessLayout(4, 2, 1, "gpu003", 49152 + 4713, 3)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    with pytest.raises(ConfigError, match="srun has started 8 tasks on 2 nodes"):
        layout_of("4")


def test_starting_processes_below_torchrun_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ConfigError, match=r"torchrun has started this process"):
        layout_of("2")
