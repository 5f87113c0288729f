"""The agent of an elastic launch distinguishes crashes from machines that leave; no process is started."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _Action

from opabinia.runtime.elastic_agent import IS_RESTART, LAUNCH, SignalForwarder
from opabinia.training import elastic


class Rendezvous:
    """The shared state of machines, with torch's interface."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(participants={"a": 0, "b": 1}, wait_list=set(), round=0, closed=False)
        self._state_holder, self._store = self, HashStore()

    def num_nodes_waiting(self) -> int:
        return len(self.state.wait_list)


@pytest.fixture
def rendezvous() -> Rendezvous:
    return Rendezvous()


@pytest.fixture
def agent(rendezvous: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> elastic._Agent:
    monkeypatch.setattr(LocalElasticAgent, "_rendezvous", lambda self, group: None)
    for name in (LAUNCH, IS_RESTART):
        monkeypatch.setenv(name, "")  # restored afterwards
    spec = WorkerSpec("worker", 1, rendezvous, entrypoint=sys.executable, max_restarts=1)  # type: ignore[arg-type]
    return elastic._Agent(spec, SignalForwarder(), tmp_path, elastic=True)


def join_rendezvous(agent: elastic._Agent, *, crashed: bool) -> None:
    agent._crashed = crashed
    agent._rendezvous(agent._worker_group)


def test_only_crashes_count(agent: elastic._Agent, rendezvous: Rendezvous) -> None:
    join_rendezvous(agent, crashed=False)
    launch = os.environ[LAUNCH]
    assert launch and os.environ[IS_RESTART] == "0"
    for members in ("a", "abc", "ab"):
        rendezvous.state.participants = dict.fromkeys(members)
        rendezvous.state.round += 1
        join_rendezvous(agent, crashed=True)
        assert agent._remaining_restarts == 1
    assert (os.environ[LAUNCH], os.environ[IS_RESTART]) == (launch, "1")
    join_rendezvous(agent, crashed=True)
    assert agent._remaining_restarts == 0
    with pytest.raises(elastic._TooManyCrashes):
        join_rendezvous(agent, crashed=True)


def test_workers_are_restarted_when_other_machines_leave(
    agent: elastic._Agent, rendezvous: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join_rendezvous(agent, crashed=False)
    agent._worker_group.state = WorkerState.HEALTHY
    restarts: list[WorkerState] = []
    monkeypatch.setattr(LocalElasticAgent, "_restart_workers", lambda self, group: restarts.append(state))
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda self, group: RunResult(state))

    def monitored() -> WorkerState:
        return agent._monitor_workers(agent._worker_group).state

    state = WorkerState.HEALTHY
    assert monitored() == WorkerState.HEALTHY and not restarts
    del rendezvous.state.participants["b"]
    assert monitored() == WorkerState.HEALTHY and len(restarts) == 1
    rendezvous.state.participants["b"] = 1
    state = WorkerState.SUCCEEDED
    (tmp_path / "0").write_text("143")  # stopped, and not by this agent
    assert monitored() == WorkerState.HEALTHY and len(restarts) == 2
    (tmp_path / "0").write_text("0")
    assert monitored() == WorkerState.SUCCEEDED
    agent._restart_workers(agent._worker_group)  # another machine joins when the run has ended
    assert len(restarts) == 2
    agent._stop.signum = 15
    (tmp_path / "0").write_text("143")
    assert monitored() == WorkerState.SUCCEEDED and len(restarts) == 2, "an eviction notice to this machine"


def test_a_machine_leaves_without_ending_the_launch() -> None:
    done: list[object] = []

    def run(operation: object, deadline: float) -> None:
        state = SimpleNamespace(participants={"a": 0}, wait_list={"b"})
        for node in ("a", "b", "c"):
            done.append(operation(SimpleNamespace(node=node, state=state), deadline))  # type: ignore[operator]

    executor = SimpleNamespace(run=run)
    elastic._leave(SimpleNamespace(_stop_heartbeats=lambda: None, _op_executor=executor))
    assert done == [_Action.REMOVE_FROM_PARTICIPANTS, _Action.REMOVE_FROM_WAIT_LIST, _Action.FINISH]
