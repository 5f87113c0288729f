"""Communication between the elastic agent (:mod:`opabinia.training.elastic`) and its workers.

A worker reports to the agent the exit status that it would have on its own: torch restarts every worker that exits with
another status than 0, but a restart does not help against some errors.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from opabinia.runtime.files import exclusive_lock, wait_for_lock
from opabinia.runtime.signals import StopSignal, exit_status_of

STATUS_FOLDER = "OPABINIA_STATUS_FOLDER"
"""Environment variable: the folder where each worker of our agent writes its exit status."""

IS_ELASTIC = "OPABINIA_IS_ELASTIC"
"""Environment variable: "1" if the number of machines may change."""

STOPPED_STATUSES = (130, 143)


class LaunchError(Exception):
    """The agents cannot reach each other."""

    exit_status = 2


@dataclass(frozen=True)
class ProcessLayout:
    """The processes of a multi-GPU or multi-node run.

    Attributes:
        nproc: processes per machine; None: one per GPU, one without GPUs.
        nnodes: number of machines; the largest number if it may change.
        node_rank: number of this machine; the agents of the others connect to that of machine 0. None: 0 if ``host`` is
            an address of this machine (elastic launches only).
        host, port: address of machine 0; port 0 takes a free one.
        max_restarts: number of restarts of all workers after one has crashed.
        min_nodes: smallest number of machines that train in an elastic launch; None: ``nnodes``.
    """

    nproc: int | None
    nnodes: int = 1
    node_rank: int | None = 0
    host: str = "localhost"
    port: int = 0
    max_restarts: int = 3
    min_nodes: int | None = None

    @property
    def is_elastic(self) -> bool:
        """Whether machines may leave and join."""
        return self.min_nodes is not None


# --- in a worker ----------------------------------------------------------------------------------------------------


def report_exit_status(status: int) -> int:
    """Report the exit status of this command to our agent, if there is one; return the status to exit with.

    A worker that was asked to stop and has saved exits with 0, so that no agent restarts it.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return status
    folder = os.environ.get(STATUS_FOLDER)
    if folder is not None:
        with suppress(OSError):
            Path(folder, os.environ["LOCAL_RANK"]).write_text(str(status), encoding="utf-8")
    return 0 if status in STOPPED_STATUSES else status


_PR_SET_PDEATHSIG = 1


def begin_worker() -> None:
    """Remove the exit status of this worker's predecessor, and request a SIGTERM for this process when its parent, the
    agent, dies; nothing else would stop it (Linux only)."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    if STATUS_FOLDER in os.environ:
        Path(os.environ[STATUS_FOLDER], os.environ["LOCAL_RANK"]).unlink(missing_ok=True)
    if sys.platform != "linux":
        return
    agent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != agent:
        os._exit(exit_status_of(signal.SIGTERM))


def launch_id() -> str | None:
    """Return an id of this launch, the same after a restart; None without an agent.

    The agent's process is part of it: torchrun's default id is "none" for every launch.
    """
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return None
    start_time = ""
    with suppress(OSError):  # only Linux has this
        start_time = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[19]
    return f"{run} {os.uname().nodename} {os.getppid()} {start_time}".strip()


def is_of_this_launch(folder: Path) -> bool:
    """Return whether this launch has begun or resumed the run in ``folder``: then a worker has crashed since."""
    launch = folder / ".launch"
    return launch.is_file() and launch.read_text(encoding="utf-8") == launch_id()


def is_elastic() -> bool:
    """Return whether machines may leave and join while this run is trained."""
    return os.environ.get(IS_ELASTIC) == "1"


def run_lock(folder: Path) -> AbstractContextManager[None]:
    """Lock a run folder against other writers; see :func:`opabinia.runtime.files.exclusive_lock`.

    In an elastic launch this waits: a machine that was lost may hold the lock until its lease ends.
    """
    return wait_for_lock(folder / ".lock") if is_elastic() else exclusive_lock(folder)


# --- the agent ------------------------------------------------------------------------------------------------------


class SignalForwarder(StopSignal):
    """Signals to an agent: the first is forwarded to the workers, which save; a later one kills them.

    Attributes:
        processes: returns the ids of the workers. Without workers the first signal ends the agent.
    """

    processes: Callable[[], list[int]] = list

    def on_first(self) -> None:
        workers = self.processes()
        if not workers:
            raise SystemExit(self.exit_status)
        # SIGUSR1 would kill a worker that is just starting, with another status.
        self._send(workers, signal.SIGINT if self.signum == signal.SIGINT else signal.SIGTERM)

    def on_later(self, signum: int) -> None:
        self._send(self.processes(), signal.SIGKILL)

    def _send(self, workers: list[int], number: signal.Signals) -> None:
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, number)
