"""Torch's elastic agent, made quiet, and taught which ends of workers are no crash. Imported by an agent only."""

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
from dataclasses import replace
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

from opabinia.runtime.elastic_agent import STATUS, STOPPED, CannotLaunch, Passing, ProcessLayout
from opabinia.runtime.process_group import address_towards

GRACE = 30 * 60.0
"""Seconds that workers have to save after a signal; SLURM and others have limits of their own."""

WAIT = 15 * 60
"""Seconds that the agent of one machine waits for the others."""

LOST = 12
"""Signs of life, one each five seconds, that an agent may owe before the others go on without it."""


def launch(layout: ProcessLayout, command: Sequence[str], stop: Passing) -> int:
    """Run ``opabinia`` with the arguments ``command`` in many processes, to their end; the exit status of all.

    Args:
        layout: which processes.
        command: without the name of the program.
        stop: notes signals to this process.

    Raises:
        CannotLaunch: the machines do not find each other, or a port is taken.
    """
    nproc = layout.nproc or torch.cuda.device_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // nproc)))
    with tempfile.TemporaryDirectory(prefix="opabinia-") as folder:
        os.environ[STATUS] = folder
        return _run(replace(layout, nproc=nproc), command, stop, Path(folder))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(layout: ProcessLayout, command: Sequence[str], stop: Passing, folder: Path) -> int:
    logging.disable()  # what matters is told by the workers, and below
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""  # they are ours
    # Torch 2.15 keeps the store it shares with workers when it starts them again, and what the dead wrote into it.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with _told(layout):
        rendezvous = _rendezvous(layout)
        spec = WorkerSpec(
            role="worker",
            local_world_size=layout.nproc or 1,
            entrypoint=sys.executable,
            # The agent would take $ for the beginning of a name.
            args=("-m", "opabinia", *(word.replace("$", "$$") for word in command)),
            rdzv_handler=rendezvous,
            max_restarts=layout.max_restarts,
            monitor_interval=0.1,
        )
        agent = _Agent(spec, stop, folder)
        try:
            result = agent.run()
        finally:
            with suppress(RendezvousError):
                rendezvous.shutdown()
    return agent.status(result)


def _rendezvous(layout: ProcessLayout) -> RendezvousHandler:
    host = layout.node_rank == 0
    several = layout.nnodes > 1
    if several:
        where = f"machine {layout.node_rank} of {layout.nnodes}"
        print(f"{where}: meeting the others at {layout.host}:{layout.port}", file=sys.stderr)
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=f"{layout.host}:{layout.port}",
        run_id="opabinia" if several else uuid.uuid4().hex,
        min_nodes=layout.nnodes,
        max_nodes=layout.nnodes,
        # The name by which the others find machine 0 is one that they know.
        local_addr=layout.host if host else address_towards(layout.host),
        is_host=host,
        join_timeout=WAIT,
        read_timeout=WAIT,
        keep_alive_max_attempt=LOST,
    )
    return registry.get_rendezvous_handler(parameters)


@contextmanager
def _told(layout: ProcessLayout) -> Iterator[None]:
    place = f"{layout.host}:{layout.port}"
    try:
        yield
    except RendezvousClosedError as error:
        raise CannotLaunch("another machine has given up") from error
    except RendezvousTimeoutError as error:
        raise CannotLaunch(f"{place}: not all of {layout.nnodes} machines have come in {WAIT // 60} minutes") from error
    except RendezvousError as error:
        if layout.node_rank:
            raise CannotLaunch(f"{place}: the agent of machine 0 does not answer") from error
        raise CannotLaunch(
            f"cannot listen at {place}: it is taken, perhaps by processes that an earlier run has left, "
            f"or not an address of this machine; --rdzv-endpoint auto picks a free port"
        ) from error


class _Agent(LocalElasticAgent):
    """Starts workers, watches them, and passes signals on to them.

    Workers are started again after a crash, unless one has left word of an error that would only come again.
    """

    def __init__(self, spec: WorkerSpec, stop: Passing, folder: Path) -> None:
        super().__init__(spec, DefaultLogsSpecs(log_dir=os.devnull))
        self._stop, self._folder = stop, folder
        self._fell: dict[int, int] = {}
        self._passed_on: float | None = None

    # --- what torch's agent calls ---

    def _invoke_run(self, role: str = "worker") -> RunResult:
        try:
            result: RunResult = super()._invoke_run(role)
            return result
        except RendezvousConnectionError:
            if self._stop.idle:
                raise
            return self._stop_alone()

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._stop.idle = True
        self._stop.end_if_idle()
        super()._rendezvous(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._stop.idle = False
        for path in self._folder.iterdir():
            path.unlink()
        ids: dict[int, Any] = super()._start_workers(worker_group)
        return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._pass_on()
        # Who falls first: at the end of one torch ends all others.
        self._fell = self._fallen()
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            self._fell = self._fell or {failure.pid: failure.exitcode for failure in result.failures.values()}
            if self._stop.signum is not None or any(status not in (0, *STOPPED) for status in self._left_word()):
                self._remaining_restarts = 0
            if self._remaining_restarts:
                print(f"{self._casualties()}: starting all workers again", file=sys.stderr)
        return result

    # --- signals ---

    def _stop_alone(self) -> RunResult:
        """Nobody could start the workers of all machines again: let them save together, if the others still live."""
        print("the agent of machine 0 has gone: stopping", file=sys.stderr)
        self._stop.note(signal.SIGTERM, None)
        while (result := self._monitor_workers(self._worker_group)).state == WorkerState.HEALTHY:
            time.sleep(self._worker_group.spec.monitor_interval)
        return result

    def _pass_on(self) -> None:
        stop = self._stop
        if stop.signum is None:
            return
        if self._passed_on is None:
            self._passed_on = time.monotonic()
            # SIGUSR1 would kill a worker that is just starting, with another status.
            self._signal(signal.SIGINT if stop.signum == signal.SIGINT else signal.SIGTERM)
        elif stop.hurry or time.monotonic() - self._passed_on > GRACE:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes():
            if process.poll() is None:
                process.send_signal(number)

    # --- how they ended ---

    def _processes(self) -> list[Any]:
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return [handlers[number].proc for number in sorted(handlers)]

    def _fallen(self) -> dict[int, int]:
        codes = {process.pid: process.poll() for process in self._processes()}
        return {pid: code for pid, code in codes.items() if code}

    def _casualties(self) -> str:
        return ", ".join(
            f"process {pid} was ended by {signal.Signals(-code).name}"
            if code < 0
            else f"process {pid} has crashed with status {code}"
            for pid, code in self._fell.items()
        )

    def _left_word(self) -> list[int]:
        """The statuses with which workers have left on their own."""
        return [int(path.read_text(encoding="utf-8") or "1") for path in sorted(self._folder.iterdir())]

    def status(self, result: RunResult | None) -> int:
        """The exit status of the whole.

        Args:
            result: of the last attempt; None when another machine has ended it.
        """
        words = self._left_word()
        wrong = [status for status in words if status not in (0, *STOPPED)]
        if wrong:
            return wrong[0]
        if result is not None and not result.is_failed():
            return max(words, default=0)
        ended = {-signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL, *STOPPED}
        if self._stop.signum is not None and ended.intersection(self._fell.values()):
            return self._stop.exit_status  # before there was anything to save, or at once
        return 1
