"""Torch's elastic agent without its log output, and with exit statuses that are no crashes. Imported by agents only."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters, registry
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)

from opabinia.runtime.elastic_agent import (
    IS_ELASTIC,
    IS_RESTART,
    LAUNCH,
    STATUS_FOLDER,
    STOPPED_STATUSES,
    LaunchError,
    ProcessLayout,
    SignalForwarder,
)
from opabinia.runtime.process_group import local_address

SAVE_SECONDS = 30 * 60.0
"""Seconds that workers have to save after a signal; SLURM and others have their own limits."""

JOIN_SECONDS = 15 * 60
"""Seconds that the agent of one machine waits for the others."""

MAX_MISSED_HEARTBEATS = 12
"""Heartbeats, one every five seconds, that an agent may miss before the others continue without it."""

LAST_CALL_SECONDS = 15
"""Seconds that the agents of an elastic launch wait for further machines when the smallest number is there."""


def launch(layout: ProcessLayout, command: Sequence[str], stop: SignalForwarder) -> int:
    """Run ``opabinia`` with the arguments ``command`` in several processes to their end; return the exit status.

    Args:
        layout: of the processes.
        command: without the name of the program.
        stop: receives signals to this process.

    Raises:
        LaunchError: the machines cannot reach each other, or a port is taken.
    """
    nproc = layout.nproc or torch.cuda.device_count() or 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // nproc)))
    logging.disable()  # the workers log, and errors are printed below
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""  # ``stop`` handles them
    # Torch 2.15 keeps the store that it shares with workers after a restart, with what dead workers wrote into it.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if layout.min_nodes is not None:
        os.environ[IS_ELASTIC] = "1"
        if layout.node_rank is None:
            with suppress(OSError):  # a name that is not known yet, of another machine
                own = local_address(layout.host) == socket.gethostbyname(layout.host)
                layout = replace(layout, node_rank=0 if own else None)
    with tempfile.TemporaryDirectory(prefix="opabinia-") as folder, _launch_errors(layout):
        os.environ[STATUS_FOLDER] = folder
        while True:
            rendezvous = _rendezvous(layout)
            spec = WorkerSpec(
                role="worker",
                local_world_size=nproc,
                entrypoint=sys.executable,
                # The agent would expand $ as a variable.
                args=("-m", "opabinia", *(word.replace("$", "$$") for word in command)),
                rdzv_handler=rendezvous,
                max_restarts=layout.max_restarts,
                monitor_interval=0.1,
            )
            leaves = elastic = layout.min_nodes is not None
            agent = _Agent(spec, stop, Path(folder), elastic=elastic)
            try:
                if (result := agent.run()) is None:  # a spare machine
                    raise RendezvousClosedError
                leaves = elastic and stop.signum is not None
                return agent.exit_status(result)
            except RendezvousConnectionError:
                if not elastic or layout.node_rank == 0:
                    raise
                _await_host(layout, stop)
            finally:
                with suppress(RendezvousError):
                    (_leave if leaves else type(rendezvous).shutdown)(rendezvous)


def _await_host(layout: ProcessLayout, stop: SignalForwarder) -> None:
    """Wait until machine 0 of an elastic launch is back.

    Raises:
        RendezvousConnectionError: it does not come back in time.
    """
    print(f"waiting for machine 0 to come back at {layout.host}:{layout.port}", file=sys.stderr)
    stop.idle = True
    stop.exit_if_idle()
    end = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < end:
        time.sleep(1)
        with suppress(OSError), socket.create_connection((layout.host, layout.port), 5):
            return
    raise RendezvousConnectionError


def _leave(rendezvous: Any) -> None:
    """Leave the rendezvous to the other machines; ``shutdown`` would end it for them, too."""

    def leave(context: Any, deadline: float) -> Any:
        if context.node in context.state.participants:
            return dynamic._Action.REMOVE_FROM_PARTICIPANTS
        waits = context.node in context.state.wait_list
        return dynamic._Action.REMOVE_FROM_WAIT_LIST if waits else dynamic._Action.FINISH

    rendezvous._stop_heartbeats()
    rendezvous._op_executor.run(leave, time.monotonic() + 10)


def _rendezvous(layout: ProcessLayout) -> RendezvousHandler:
    is_host = layout.node_rank == 0
    multi_node = layout.nnodes > 1
    endpoint = f"{layout.host}:{layout.port}"
    if layout.min_nodes is not None:
        print(f"waiting for {layout.min_nodes} to {layout.nnodes} machines at {endpoint}", file=sys.stderr)
    elif multi_node:
        print(f"machine {layout.node_rank} of {layout.nnodes}: waiting for the others at {endpoint}", file=sys.stderr)
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=endpoint,
        run_id="opabinia" if multi_node else uuid.uuid4().hex,
        min_nodes=layout.min_nodes or layout.nnodes,
        max_nodes=layout.nnodes,
        # The others reach machine 0 by the name that they were given.
        local_addr=layout.host if is_host else local_address(layout.host),
        is_host=is_host,
        join_timeout=JOIN_SECONDS,
        last_call_timeout=LAST_CALL_SECONDS,
        read_timeout=JOIN_SECONDS,
        keep_alive_max_attempt=MAX_MISSED_HEARTBEATS,
    )
    return registry.get_rendezvous_handler(parameters)


@contextmanager
def _launch_errors(layout: ProcessLayout) -> Iterator[None]:
    """Turn torch's rendezvous errors into a LaunchError that says what to do."""
    address = f"{layout.host}:{layout.port}"
    try:
        yield
    except RendezvousClosedError as error:
        raise LaunchError("another machine has given up, or the run has ended") from error
    except RendezvousTimeoutError as error:
        needed = layout.min_nodes or layout.nnodes
        message = f"{address}: not all of {needed} machines have connected in {JOIN_SECONDS // 60} minutes"
        raise LaunchError(message) from error
    except RendezvousError as error:
        if layout.node_rank != 0:
            raise LaunchError(f"{address}: the agent of machine 0 does not answer") from error
        raise LaunchError(
            f"cannot listen at {address}: it is taken, perhaps by processes that an earlier run has left, "
            f"or not an address of this machine; --rdzv-endpoint auto picks a free port"
        ) from error


class _TooManyCrashes(Exception):
    """More crashes than ``max_restarts``, without machines that have left or joined."""


class _Agent(LocalElasticAgent):
    """Starts workers, monitors them, and forwards signals to them.

    Workers are restarted after a crash, unless one has reported an error that a restart would only repeat. In an
    elastic launch they also save and restart when machines leave or join, which does not count as a crash.
    """

    def __init__(self, spec: WorkerSpec, stop: SignalForwarder, folder: Path, *, elastic: bool) -> None:
        super().__init__(spec, DefaultLogsSpecs(log_dir=os.devnull))
        self._stop, self._folder, self._elastic = stop, folder, elastic
        self._members: frozenset[Any] = frozenset()  # the machines of the current attempt
        self._crashed = False
        self._exit_codes: dict[int, int] = {}  # of workers that failed, by process id
        self._forwarded_at: float | None = None

    # --- methods that torch's agent calls ---

    def _invoke_run(self, role: str = "worker") -> RunResult:
        try:
            result: RunResult = super()._invoke_run(role)
            return result
        except _TooManyCrashes:
            return RunResult(WorkerState.FAILED)
        except RendezvousConnectionError:
            if self._stop.idle:
                raise
            if not self._elastic or self._stop.signum is not None:
                return self._stop_without_host()
            print("the agent of machine 0 is gone: saving", file=sys.stderr)
            self._let_workers_save()
            if not self._are_done():
                raise
            return RunResult(WorkerState.SUCCEEDED)

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._stop.idle = True
        self._stop.exit_if_idle()
        super()._rendezvous(worker_group)
        members = frozenset(self._shared_state().participants)
        if self._crashed and members == self._members:
            if not self._remaining_restarts:
                raise _TooManyCrashes
            self._remaining_restarts -= 1
        elif self._members and members != self._members:
            print(f"continuing with {len(members)} machines instead of {len(self._members)}", file=sys.stderr)
        self._members, self._crashed = members, False
        handler: Any = worker_group.spec.rdzv_handler
        os.environ[LAUNCH] = handler._store.compare_set("opabinia-launch", "", uuid.uuid4().hex).decode()
        os.environ[IS_RESTART] = str(int(self._shared_state().round > 0))

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if self._elastic and worker_group.state == WorkerState.HEALTHY:
            self._let_workers_save()
            if self._are_done():
                return
        super()._restart_workers(worker_group)

    def _exit_barrier(self) -> None:
        # The others of an elastic launch continue without a machine that was asked to stop.
        if not (self._elastic and self._were_stopped()):
            super()._exit_barrier()  # type: ignore[no-untyped-call]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._stop.idle = False
        for path in self._folder.iterdir():
            path.unlink()
        ids: dict[int, Any] = super()._start_workers(worker_group)
        return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._forward_signal()
        # Before torch does: it terminates all workers when one fails, and then the first failure cannot be told apart.
        codes = {process.pid: process.poll() for process in self._processes()}
        self._exit_codes = {pid: code for pid, code in codes.items() if code}
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            failures = result.failures.values()
            self._exit_codes = self._exit_codes or {failure.pid: failure.exitcode for failure in failures}
            if self._stop.signum is not None or self._reported_errors():
                self._remaining_restarts = 0
            elif self._elastic:
                self._crashed = True
                self._remaining_restarts += 1  # torch subtracts it; it is known later whether a machine was lost
            if self._remaining_restarts:
                print(f"{self._describe_failures()}: restarting all workers", file=sys.stderr)
        elif self._elastic and self._stop.signum is None:
            stopped_by_others = result.state == WorkerState.SUCCEEDED and self._were_stopped()
            if stopped_by_others or (result.state == WorkerState.HEALTHY and self._has_lost_machines()):
                self._restart_workers(worker_group)
                return RunResult(WorkerState.HEALTHY)
        return result

    # --- other machines ---

    def _shared_state(self) -> Any:
        handler: Any = self._worker_group.spec.rdzv_handler
        return handler._state_holder.state

    def _has_lost_machines(self) -> bool:
        """Return whether a machine has left, its agent sends no heartbeats, or it has ended the launch."""
        with suppress(RendezvousConnectionError):
            self._worker_group.spec.rdzv_handler.num_nodes_waiting()  # reads the state, at most once per second
        state = self._shared_state()
        return state.closed or not self._members.issubset(state.participants)

    def _let_workers_save(self) -> None:
        """Stop workers, and wait until they have saved; on their own they cannot when a machine is lost."""
        self._signal_workers(signal.SIGTERM)
        end = time.monotonic() + SAVE_SECONDS
        while any(process.poll() is None for process in self._processes()) and time.monotonic() < end:
            if self._has_lost_machines() or self._stop.kill_workers:
                break
            time.sleep(self._worker_group.spec.monitor_interval)

    def _were_stopped(self) -> bool:
        return any(status in STOPPED_STATUSES for status in self._reported_statuses())

    def _are_done(self) -> bool:
        return self._reported_statuses() == [0] * self._worker_group.spec.local_world_size

    # --- signals ---

    def _stop_without_host(self) -> RunResult:
        """Without the agent of machine 0 workers cannot be restarted: let them save together, if they are alive."""
        print("the agent of machine 0 is gone: stopping", file=sys.stderr)
        if self._stop.signum is None:
            self._stop.handle(signal.SIGTERM, None)
        while (result := self._monitor_workers(self._worker_group)).state == WorkerState.HEALTHY:
            time.sleep(self._worker_group.spec.monitor_interval)
        return result

    def _forward_signal(self) -> None:
        stop = self._stop
        if stop.signum is None:
            return
        if self._forwarded_at is None:
            self._forwarded_at = time.monotonic()
            # SIGUSR1 would kill a worker that is just starting, with another status.
            self._signal_workers(signal.SIGINT if stop.signum == signal.SIGINT else signal.SIGTERM)
        elif stop.kill_workers or time.monotonic() - self._forwarded_at > SAVE_SECONDS:
            self._signal_workers(signal.SIGKILL)

    def _signal_workers(self, number: signal.Signals) -> None:
        for process in self._processes():
            if process.poll() is None:
                process.send_signal(number)

    # --- exit statuses ---

    def _processes(self) -> list[Any]:
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return [handlers[number].proc for number in sorted(handlers)]

    def _describe_failures(self) -> str:
        return ", ".join(
            f"process {pid} was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"process {pid} has crashed with status {code}"
            for pid, code in self._exit_codes.items()
        )

    def _reported_statuses(self) -> list[int]:
        """Return the exit statuses that workers have reported."""
        return [int(path.read_text(encoding="utf-8") or "1") for path in sorted(self._folder.iterdir())]

    def _reported_errors(self) -> list[int]:
        return [status for status in self._reported_statuses() if status not in (0, *STOPPED_STATUSES)]

    def exit_status(self, result: RunResult) -> int:
        """Return the exit status of the whole launch.

        Args:
            result: of the last attempt.
        """
        if errors := self._reported_errors():
            return errors[0]
        if not result.is_failed():
            return max(self._reported_statuses(), default=0)
        stopped = {-signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL, *STOPPED_STATUSES}
        if self._stop.signum is not None and stopped.intersection(self._exit_codes.values()):
            return self._stop.exit_status  # stopped before there was anything to save, or at once
        return 1
