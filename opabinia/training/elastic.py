"""Torch's elastic agent without its log output, and with exit statuses that are no crashes. Imported by agents only."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters, registry
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)

from opabinia.runtime.elastic_agent import STATUS_FOLDER, STOPPED_STATUSES, LaunchError, ProcessLayout, SignalForwarder
from opabinia.runtime.process_group import local_address

SAVE_SECONDS = 30 * 60.0
"""Seconds that workers have to save after a signal; SLURM and others have their own limits."""

JOIN_SECONDS = 15 * 60
"""Seconds that the agent of one machine waits for the others."""

MAX_MISSED_HEARTBEATS = 12
"""Heartbeats, one every five seconds, that an agent may miss before the others continue without it."""


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
    with tempfile.TemporaryDirectory(prefix="opabinia-") as folder, _launch_errors(layout):
        os.environ[STATUS_FOLDER] = folder
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
        agent = _Agent(spec, stop, Path(folder))
        try:
            result = agent.run()
        finally:
            with suppress(RendezvousError):
                rendezvous.shutdown()
        return agent.exit_status(result)


def _rendezvous(layout: ProcessLayout) -> RendezvousHandler:
    is_host = layout.node_rank == 0
    multi_node = layout.nnodes > 1
    endpoint = f"{layout.host}:{layout.port}"
    if multi_node:
        print(f"machine {layout.node_rank} of {layout.nnodes}: waiting for the others at {endpoint}", file=sys.stderr)
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=endpoint,
        run_id="opabinia" if multi_node else uuid.uuid4().hex,
        min_nodes=layout.nnodes,
        max_nodes=layout.nnodes,
        # The others reach machine 0 by the name that they were given.
        local_addr=layout.host if is_host else local_address(layout.host),
        is_host=is_host,
        join_timeout=JOIN_SECONDS,
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
        raise LaunchError("another machine has given up") from error
    except RendezvousTimeoutError as error:
        message = f"{address}: not all of {layout.nnodes} machines have connected in {JOIN_SECONDS // 60} minutes"
        raise LaunchError(message) from error
    except RendezvousError as error:
        if layout.node_rank:
            raise LaunchError(f"{address}: the agent of machine 0 does not answer") from error
        raise LaunchError(
            f"cannot listen at {address}: it is taken, perhaps by processes that an earlier run has left, "
            f"or not an address of this machine; --rdzv-endpoint auto picks a free port"
        ) from error


class _Agent(LocalElasticAgent):
    """Starts workers, monitors them, and forwards signals to them.

    Workers are restarted after a crash, unless one has reported an error that a restart would only repeat.
    """

    def __init__(self, spec: WorkerSpec, stop: SignalForwarder, folder: Path) -> None:
        super().__init__(spec, DefaultLogsSpecs(log_dir=os.devnull))
        self._stop, self._folder = stop, folder
        self._exit_codes: dict[int, int] = {}  # of workers that failed, by process id
        self._forwarded_at: float | None = None

    # --- methods that torch's agent calls ---

    def _invoke_run(self, role: str = "worker") -> RunResult:
        try:
            result: RunResult = super()._invoke_run(role)
            return result
        except RendezvousConnectionError:
            if self._stop.idle:
                raise
            return self._stop_without_host()

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._stop.idle = True
        self._stop.exit_if_idle()
        super()._rendezvous(worker_group)

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
            if self._remaining_restarts:
                print(f"{self._describe_failures()}: restarting all workers", file=sys.stderr)
        return result

    # --- signals ---

    def _stop_without_host(self) -> RunResult:
        """Without the agent of machine 0 workers cannot be restarted: let them save together, if they are alive."""
        print("the agent of machine 0 is gone: stopping", file=sys.stderr)
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

    def exit_status(self, result: RunResult | None) -> int:
        """Return the exit status of the whole launch.

        Args:
            result: of the last attempt; None if another machine has ended it.
        """
        if errors := self._reported_errors():
            return errors[0]
        if result is not None and not result.is_failed():
            return max(self._reported_statuses(), default=0)
        stopped = {-signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL, *STOPPED_STATUSES}
        if self._stop.signum is not None and stopped.intersection(self._exit_codes.values()):
            return self._stop.exit_status  # stopped before there was anything to save, or at once
        return 1
