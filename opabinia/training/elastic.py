"""The launch of ranks by torch's elastic agent, as torchrun launches them. Imported by agents only.

It is not torchrun itself, or ``elastic_launch``, because these raise an exception for every end of a worker, close the
rendezvous when they end (in an elastic launch the other machines continue), and cannot distinguish a crash from an
error that a restart would only repeat. So the classes that they consist of are used, through their public interface: a
``LocalElasticAgent`` makes one attempt, without restarts of its own, and :func:`_attempts` decides after it.
"""

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
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from opabinia.runtime.elastic_agent import (
    IS_ELASTIC,
    STATUS_FOLDER,
    STOPPED_STATUSES,
    LaunchError,
    ProcessLayout,
    SignalForwarder,
)
from opabinia.runtime.process_group import local_address
from opabinia.runtime.signals import exit_status_of

SAVE_SECONDS = 30 * 60
"""Seconds that workers have to save when the agent of machine 0 is gone."""

JOIN_SECONDS = 15 * 60
"""Seconds that the agent of one machine waits for the others."""

MAX_MISSED_HEARTBEATS = 6
"""Heartbeats, one every five seconds, that an agent may miss before the others continue without it."""

LAST_CALL_SECONDS = 15
"""Seconds that the agents of an elastic launch wait for further machines when the smallest number is there."""

END_SECONDS = 60.0
"""Seconds that the agents of an elastic launch wait for each other at the end; some may have left."""


def launch(layout: ProcessLayout, command: Sequence[str], stop: SignalForwarder) -> int:
    """Run ``opabinia`` with the arguments ``command`` in several processes to their end; return the exit status.

    Args:
        layout: number of processes and machines.
        command: arguments, without the name of the program.
        stop: receives the signals to this process.

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
    if layout.is_elastic:
        os.environ[IS_ELASTIC] = "1"
        if layout.node_rank is None:
            with suppress(OSError):  # a name that is not known yet, of another machine
                is_host = local_address(layout.host) == socket.gethostbyname(layout.host)
                layout = replace(layout, node_rank=0 if is_host else None)
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
                max_restarts=0,
                monitor_interval=0.1,
            )
            leaves = layout.is_elastic
            try:
                status = _attempts(spec, layout, stop, Path(folder))
                leaves = layout.is_elastic and stop.signum is not None
                return status
            except RendezvousConnectionError:
                if not layout.is_elastic or layout.node_rank == 0:
                    raise
                _await_host(layout)
            finally:
                if not leaves:
                    rendezvous.shutdown()


def _attempts(spec: WorkerSpec, layout: ProcessLayout, stop: SignalForwarder, folder: Path) -> int:
    """Run workers, and restart them after a crash, or when another machine of an elastic launch has left.

    Torch restarts them when another machine waits to join.

    Returns:
        The exit status of the launch.

    Raises:
        RendezvousError: the machines cannot reach each other; in an elastic launch also later.
    """
    crashes, machines = 0, 0
    while True:
        if stop.signum is not None:  # during an import, whose C code may have discarded the SystemExit
            raise SystemExit(stop.exit_status)
        agent = LocalElasticAgent(
            spec,
            DefaultLogsSpecs(log_dir=os.devnull),
            exit_barrier_timeout=END_SECONDS if layout.is_elastic else 300,
            shutdown_timeout=SAVE_SECONDS,
        )
        group: Any = agent.get_worker_group()
        stop.processes = partial(_worker_ids, group)
        try:
            result: RunResult | None = agent.run()
        except RendezvousConnectionError:
            if group.state == WorkerState.INIT or (layout.is_elastic and stop.signum is None):
                raise
            print("the agent of machine 0 is gone: stopped", file=sys.stderr)
            return next(iter(_errors(folder)), stop.exit_status or exit_status_of(signal.SIGTERM))
        finally:
            stop.processes = list
        if result is None:  # a spare machine
            raise RendezvousClosedError
        if errors := _errors(folder):
            return errors[0]
        if result.state == WorkerState.SUCCEEDED:
            status = max(_statuses(folder), default=0)
            if not layout.is_elastic or status == 0 or stop.signum is not None:
                return status
            continue  # stopped by a machine that leaves
        failures = list(result.failures.values())
        if stop.signum is not None:  # stopped before there was anything to save, or at once
            stopped = {-signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL, *STOPPED_STATUSES}
            return stop.exit_status if stopped.intersection(failure.exitcode for failure in failures) else 1
        # Another number of machines: what ended the workers was a machine that has left, not a crash.
        before, machines = machines, group.group_world_size
        crashes = crashes + 1 if machines == before else 1
        if crashes > layout.max_restarts + layout.is_elastic:  # a machine that is lost is known after the next start
            return 1
        print(f"{_describe(failures)}: restarting all workers", file=sys.stderr)


def _worker_ids(group: WorkerGroup) -> list[int]:
    """Return the process ids of the workers that run."""
    return [worker.id for worker in group.workers] if group.state == WorkerState.HEALTHY else []


class _ElasticRendezvous(DynamicRendezvousHandler):
    """Lets the agent restart its workers also when another machine is lost.

    Torch's agents wait for an error of a worker, but one that waits for a machine without power gets none. The public
    interface does not have the members of a rendezvous, so its state is read. (tests/faults/test_hosts.py)
    """

    def _participants(self) -> frozenset[Any]:
        return frozenset(self._state_holder.state.participants)

    def next_rendezvous(self) -> RendezvousInfo:
        info = super().next_rendezvous()
        self._members = self._participants()
        return info

    def num_nodes_waiting(self) -> int:
        waiting = super().num_nodes_waiting()  # reads the state, at most once per second
        return waiting or len(self._members - self._participants())


def _await_host(layout: ProcessLayout) -> None:
    """Wait until machine 0 of an elastic launch is back.

    Raises:
        RendezvousConnectionError: it does not come back in time.
    """
    print(f"waiting for machine 0 to come back at {layout.host}:{layout.port}", file=sys.stderr)
    end = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < end:
        time.sleep(1)
        with suppress(OSError), socket.create_connection((layout.host, layout.port), 5):
            return
    raise RendezvousConnectionError


def _rendezvous(layout: ProcessLayout) -> DynamicRendezvousHandler:
    is_host = layout.node_rank == 0
    multi_node = layout.nnodes > 1
    endpoint = f"{layout.host}:{layout.port}"
    if layout.is_elastic:
        print(f"waiting for {layout.min_nodes} to {layout.nnodes} machines at {endpoint}", file=sys.stderr)
    elif multi_node:
        print(f"machine {layout.node_rank} of {layout.nnodes}: waiting for the others at {endpoint}", file=sys.stderr)
    nodes = layout.min_nodes or layout.nnodes, layout.nnodes
    run_id = "opabinia" if multi_node else uuid.uuid4().hex
    parameters = RendezvousParameters("c10d", endpoint, run_id, *nodes, is_host=is_host, read_timeout=JOIN_SECONDS)
    backend, store = create_backend(parameters)
    handler: DynamicRendezvousHandler = (
        _ElasticRendezvous if layout.is_elastic else DynamicRendezvousHandler
    ).from_backend(
        run_id,
        store,
        backend,
        *nodes,
        # The others reach machine 0 by the name that they were given.
        local_addr=layout.host if is_host else local_address(layout.host),
        timeout=RendezvousTimeout(timedelta(seconds=JOIN_SECONDS), timedelta(seconds=LAST_CALL_SECONDS)),
        keep_alive_max_attempt=MAX_MISSED_HEARTBEATS,
    )
    return handler


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


def _statuses(folder: Path) -> list[int]:
    """Return the exit statuses that workers have reported."""
    return [int(path.read_text(encoding="utf-8") or "1") for path in sorted(folder.iterdir())]


def _errors(folder: Path) -> list[int]:
    """Return the reported exit statuses of errors that a restart would repeat."""
    return [status for status in _statuses(folder) if status not in (0, *STOPPED_STATUSES)]


def _describe(failures: Sequence[ProcessFailure]) -> str:
    """Describe the crash that came first; torch terminates the other workers after it."""
    crashed = [failure for failure in failures if failure.exitcode not in (-signal.SIGTERM, *STOPPED_STATUSES)]
    if not (crashed or failures):
        return "a process hangs in the kernel"
    crash = min(crashed or failures, key=lambda failure: failure.exitcode)
    if crash.exitcode < 0:
        return f"process {crash.pid} was killed by {crash.signal_name()}"
    return f"process {crash.pid} has crashed with status {crash.exitcode}"
