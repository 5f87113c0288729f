import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from opabinia.runtime.process_group import ProcessGroupError, RankInfo, local_address, process_group, rank_info
from opabinia.runtime.processes import world_size
from tests.faults.programs import Server
from tests.runtime.test_slurm import STEP


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Hide the variables of the machine that runs these tests, and restore them afterwards."""
    variables = dict(os.environ)
    for name in variables:
        if name.startswith(("SLURM_", "TORCHELASTIC_", "MASTER_", "GLOO_")) or name.endswith(("RANK", "WORLD_SIZE")):
            del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(variables)


def test_a_single_process() -> None:
    assert rank_info({}) is None
    assert rank_info({"RANK": "0", "WORLD_SIZE": "1"}) is None
    with process_group():
        assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("variables", "info", "local_rank"),
    [
        pytest.param(
            {**STEP, "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
            *(RankInfo(5, 8, 4), "1"),
            id="torchrun within a step of SLURM",
        ),
        pytest.param({"RANK": "5", "WORLD_SIZE": "8"}, RankInfo(5, 8, None), "5", id="on one machine"),
        pytest.param({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, RankInfo(5, 8, 4), "1", id="on two"),
        pytest.param(STEP, RankInfo(5, 8, 4), "1", id="SLURM"),
    ],
)
def test_ranks_of_launchers(variables: dict[str, str], info: RankInfo, local_rank: str) -> None:
    environment = dict(variables)
    assert rank_info(environment) == info and environment["LOCAL_RANK"] == local_rank
    assert environment.get("MASTER_ADDR") == ("gpu003" if variables is STEP else None)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is missing"),
        ({"RANK": "1"}, "WORLD_SIZE is missing"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one' is not a number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2, WORLD_SIZE=2: ranks go from 0"),
        ({"RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2"}, "WORLD_SIZE=3 does not divide"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT is missing"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "y"}, "MASTER_PORT='y' is not a port"),
    ],
)
def test_invalid_environments(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ProcessGroupError, match=message) as caught, process_group():
        pass
    assert caught.value.on_all_ranks and caught.value.exit_status == 2


@pytest.mark.parametrize("init", ["tcp://nowhere", "here", "file://relative"])
def test_invalid_addresses(monkeypatch: pytest.MonkeyPatch, init: str) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = f"train.distributed: .*'{init}' is neither 'env' nor"
    with pytest.raises(ProcessGroupError, match=message), process_group(init):
        pass
    assert local_address("127.0.0.1") == "127.0.0.1" and local_address("no.such.host.invalid") is None


def test_unreachable_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    group = process_group(f"tcp://127.0.0.1:{port}", timeout=1 / 60)
    with pytest.raises(ProcessGroupError, match=f"cannot be reached at tcp://127.0.0.1:{port}: ") as caught, group:
        pass
    assert "\n" not in str(caught.value) and not caught.value.on_all_ranks
    assert not dist.is_initialized()


def test_an_existing_group_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with caplog.at_level(logging.WARNING, "opabinia"), process_group("tcp://localhost:1"):
            assert world_size() == 1
        assert "already exists" in caplog.text
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


FAILING_RANK = """
import os, sys
import torch
import torch.distributed as dist
from opabinia.runtime.process_group import process_group

number = int(os.fork() > 0)
os.environ.update(RANK=str(number), WORLD_SIZE="2")
try:
    with process_group(f"file://{sys.argv[1]}", timeout=5):
        other = dist.new_group()
        dist.barrier()
        if number == 0:
            dist.all_reduce(torch.ones(2), async_op=True)  # as a bucket of DDP whose other ranks are behind
            raise ValueError("broken")
        dist.barrier(other)
except (ValueError, RuntimeError) as error:
    print(number, type(error).__name__, flush=True)
assert not dist.is_initialized()
if number == 0:
    os._exit(0)
assert os.wait()[1] == 0
"""


def test_an_error_on_one_rank_ends_the_others_at_once(warm_server: Server, tmp_path: Path) -> None:
    """Not after the timeout of five minutes for which its pending collective waits."""
    program = warm_server.run(str(tmp_path / "store"), code=FAILING_RANK, seconds=30)
    assert sorted(program.out.split("\n")[:2]) == ["0 ValueError", "1 RuntimeError"]


WITHOUT_SIGTIMEDWAIT = """
import signal, sys
from opabinia.runtime.process_group import process_group

del signal.sigtimedwait
with process_group(f"tcp://127.0.0.1:{sys.argv[1]}", timeout=5):
    raise AssertionError("nobody else is there")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_for_other_ranks_on_macos(warm_server: Server, number: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as rank_zero:
        rank_zero.settimeout(30)
        address = str(rank_zero.getsockname()[1])
        environment = {"RANK": "1", "WORLD_SIZE": "2"}
        program = warm_server.start(address, code=WITHOUT_SIGTIMEDWAIT, environment=environment)
        connection, _ = rank_zero.accept()
        with connection:
            program.signal(number)
            program.expect(-number, 30)
