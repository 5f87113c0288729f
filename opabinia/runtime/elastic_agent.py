"""What an agent and its workers have to say to each other; :mod:`opabinia.training.elastic` is the agent itself.

A worker tells the agent with which status it would leave on its own: torch starts again whatever leaves with another
than 0, and some errors no restart can mend.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from opabinia.runtime.signals import StopSignal, status_of

STATUS = "OPABINIA_STATUS_FOLDER"
"""Environment variable: the folder where each worker of our agent says with which status it leaves."""

STOPPED = (130, 143)


class CannotLaunch(Exception):
    """The agents do not find each other, or have lost each other."""

    exit_status = 2


@dataclass(frozen=True)
class ProcessLayout:
    """Which processes there are.

    Attributes:
        nproc: on each machine; None: one for each GPU, one without GPUs.
        nnodes: machines.
        node_rank: number of this machine; the agent of machine 0 is the one that the others look for.
        host, port: where it is; port 0 takes a free one.
        max_restarts: times that all workers are started again after one has crashed.
    """

    nproc: int | None
    nnodes: int = 1
    node_rank: int = 0
    host: str = "localhost"
    port: int = 0
    max_restarts: int = 3


# --- in a worker ----------------------------------------------------------------------------------------------------


def leave_word(status: int) -> int:
    """Tell our agent, if there is one, the status of this command; return the one with which the process leaves.

    A worker that was asked to stop and has saved leaves with 0, so that no agent starts it again.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return status
    folder = os.environ.get(STATUS)
    if folder is not None:
        with suppress(OSError):
            Path(folder, os.environ["RANK"]).write_text(str(status), encoding="utf-8")
    return 0 if status in STOPPED else status


_PR_SET_PDEATHSIG = 1


def end_with_agent() -> None:
    """Ask for a SIGTERM when the agent, the parent of this process, dies: nobody else would stop it (Linux only)."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or sys.platform != "linux":
        return
    agent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != agent:
        os._exit(status_of(signal.SIGTERM))


def launch_id() -> str | None:
    """What tells this launch from all others; None without an agent. A restart has the same.

    The agent's process is part of it: torchrun calls every launch "none" unless it is told otherwise.
    """
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return None
    began = ""
    with suppress(OSError):  # only Linux has this
        began = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[19]
    return f"{run} {os.uname().nodename} {os.getppid()} {began}".strip()


def is_restart() -> bool:
    """Whether an agent has started this process in place of one that crashed."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


# --- the agent ------------------------------------------------------------------------------------------------------


class Passing(StopSignal):
    """Signals to an agent: the first is passed on to the workers, a later one kills them.

    Attributes:
        idle: there are no workers; the first signal ends the agent.
        hurry: workers are to be killed.
    """

    idle = True
    hurry = False

    def first(self) -> None:
        self.end_if_idle()

    def again(self, signum: int) -> None:
        self.hurry = True

    def end_if_idle(self) -> None:
        """End the agent if it was asked to stop and nobody is there who would have to save."""
        if self.idle and self.signum is not None:
            raise SystemExit(self.exit_status)
