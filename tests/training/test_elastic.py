"""What follows the end of workers: restarts, exit statuses and signals. No process is started."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousConnectionError, RendezvousInfo
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from opabinia.runtime.elastic_agent import ProcessLayout, SignalForwarder
from opabinia.training import elastic

FIXED, ELASTIC = ProcessLayout(2, max_restarts=1), ProcessLayout(2, 3, max_restarts=0, min_nodes=1)


def crash(machines: int, *codes: int) -> Callable[..., RunResult]:
    def run(group: Any, folder: Path) -> RunResult:
        group.group_world_size = machines
        failures = {
            rank: ProcessFailure(local_rank=rank, pid=70 + rank, exitcode=code, error_file="")
            for rank, code in enumerate(codes)
        }
        return RunResult(WorkerState.FAILED, failures=failures)

    return run


def end(*statuses: int, machines: int = 1, failed: bool = False) -> Callable[..., RunResult]:
    """Workers report their statuses."""

    def run(group: Any, folder: Path) -> RunResult:
        group.group_world_size = machines
        for rank in range(2):
            (folder / str(rank)).unlink(missing_ok=True)
        for rank, status in enumerate(statuses):
            (folder / str(rank)).write_text(str(status))
        return RunResult(WorkerState.FAILED if failed else WorkerState.SUCCEEDED)

    return run


Attempts = Callable[..., int]


@pytest.fixture
def attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempts]:
    """Return the exit status of a launch whose attempts end in the given ways; all of them are needed."""
    remaining: list[Callable[..., RunResult]] = []

    class Agent:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.group = SimpleNamespace(state=WorkerState.INIT, workers=[], group_world_size=None)

        def get_worker_group(self) -> Any:
            return self.group

        def run(self) -> RunResult:
            return remaining.pop(0)(self.group, tmp_path)

    monkeypatch.setattr(elastic, "LocalElasticAgent", Agent)

    def launch(layout: ProcessLayout, *ends: Callable[..., RunResult], stop: SignalForwarder | None = None) -> int:
        remaining.extend(ends)
        return elastic._attempts(None, layout, stop or SignalForwarder(), tmp_path)  # type: ignore[arg-type]

    yield launch
    assert not remaining


KILLED, CRASHED = "process 71 was killed by SIGKILL", "process 70 has crashed with status %d"


@pytest.mark.parametrize(
    ("layout", "ends", "status", "restarts"),
    [
        pytest.param(FIXED, [crash(1, 1, -9), end()], 0, [KILLED], id="a crash is restarted"),
        pytest.param(FIXED, [crash(1, 3, -15), crash(1, 1)], 1, [CRASHED % 3], id="but not as often as you like"),
        pytest.param(FIXED, [end(2, failed=True)], 2, [], id="an error that a restart would repeat"),
        pytest.param(FIXED, [end(143, 143)], 143, [], id="stopped"),
        pytest.param(FIXED, [end(0, 130)], 130, [], id="one is stopped"),
        pytest.param(ELASTIC, [*(crash(n, 1) for n in (3, 2, 3)), end()], 0, [CRASHED % 1] * 3, id="machines leave"),
        pytest.param(ELASTIC, [crash(3, 1)] * 2, 1, [CRASHED % 1], id="no machine has left"),
        pytest.param(ELASTIC, [*[end(143, 143)] * 3, end()], 0, [], id="stopped by machines that leave"),
    ],
)
def test_the_end_of_workers(
    attempts: Attempts,
    layout: ProcessLayout,
    ends: list[Callable[..., RunResult]],
    status: int,
    restarts: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert attempts(layout, *ends) == status
    assert capsys.readouterr().err.splitlines() == [f"{text}: restarting all workers" for text in restarts]


def signaled(run: Callable[..., RunResult], stop: SignalForwarder) -> Callable[..., RunResult]:
    """A SIGINT arrives during the attempt."""

    def interrupted(group: Any, folder: Path) -> RunResult:
        stop.signum = signal.SIGINT
        return run(group, folder)

    return interrupted


@pytest.mark.parametrize(
    ("layout", "run", "status"),
    [
        (ELASTIC, end(130, 130), 130),
        (FIXED, crash(1, -2, 1), 130),
        (FIXED, crash(1, 1, 1), 1),
        (FIXED, end(), 0),  # the run has ended before
    ],
)
def test_a_signal_to_the_agent_is_the_exit_status(
    attempts: Attempts, layout: ProcessLayout, run: Callable[..., RunResult], status: int
) -> None:
    stop = SignalForwarder()
    assert attempts(layout, signaled(run, stop), stop=stop) == status
    stop.signum = signal.SIGTERM  # before the first attempt: no workers are started
    with pytest.raises(SystemExit, match="143"):
        attempts(layout, stop=stop)


def test_without_machine_0_workers_are_not_restarted(
    attempts: Attempts, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def lose(state: WorkerState) -> Callable[..., RunResult]:
        def run(group: Any, folder: Path) -> RunResult:
            group.state = state
            raise RendezvousConnectionError

        return run

    assert attempts(FIXED, lose(WorkerState.HEALTHY)) == 143
    assert "the agent of machine 0 is gone" in capsys.readouterr().err
    for layout, state in ((FIXED, WorkerState.INIT), (ELASTIC, WorkerState.HEALTHY)):
        with pytest.raises(RendezvousConnectionError):
            attempts(layout, lose(state))
    with pytest.raises(RendezvousClosedError):
        attempts(ELASTIC, lambda group, folder: None)


def test_signals_are_forwarded_to_workers() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        stop = SignalForwarder()
        stop.processes = lambda: [worker.pid]
        stop.handle(signal.SIGUSR1, None)
        assert worker.wait(60) == -signal.SIGTERM
    stop._since -= 10
    stop.handle(signal.SIGTERM, None)  # the worker is gone
    with pytest.raises(SystemExit) as caught:
        SignalForwarder().handle(signal.SIGINT, None)
    assert caught.value.code == 130


def test_a_lost_machine_counts_as_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    participants = {"a": 0, "b": 1}
    info = RendezvousInfo(None, 0, 2, None)  # type: ignore[arg-type]
    monkeypatch.setattr(DynamicRendezvousHandler, "next_rendezvous", lambda self: info)
    monkeypatch.setattr(DynamicRendezvousHandler, "num_nodes_waiting", lambda self: 0)
    handler = elastic._ElasticRendezvous.__new__(elastic._ElasticRendezvous)
    handler._state_holder = SimpleNamespace(state=SimpleNamespace(participants=participants))  # type: ignore[assignment]
    assert handler.next_rendezvous() is info
    assert handler.num_nodes_waiting() == 0
    del participants["b"]
    assert handler.num_nodes_waiting() == 1
