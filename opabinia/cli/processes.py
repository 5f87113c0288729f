"""The options that say in how many processes a command runs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from opabinia.config import ConfigError
    from opabinia.runtime.elastic_agent import ProcessLayout

Nproc = Annotated[str | None, typer.Option(metavar="N|auto", help="Processes on this machine; auto: one for each GPU.")]
Nnodes = Annotated[int | None, typer.Option(metavar="N", min=1, help="Machines; the same command on each.")]
NodeRank = Annotated[int | None, typer.Option(metavar="R", min=0, help="Number of this machine, from 0.")]
Endpoint = Annotated[
    str | None, typer.Option(metavar="HOST:PORT|auto", help="Where the machines meet: an address of machine 0.")
]
MaxRestarts = Annotated[
    int, typer.Option(metavar="N", min=0, help="Times that crashed processes are started again, from the last save.")
]


def layout(
    nproc: str | None, nnodes: int | None, node_rank: int | None, endpoint: str | None, max_restarts: int
) -> ProcessLayout | None:
    """The processes that the options ask for; None: this one only.

    Inside an srun step with one task on each machine SLURM says what the options leave out.

    Raises:
        ConfigError: they do not fit together.
    """
    if nproc is None and nnodes is None and node_rank is None and endpoint is None:
        return None
    from opabinia.runtime import slurm
    from opabinia.runtime.elastic_agent import ProcessLayout

    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise _wrong("--nproc", "an agent (torchrun) has started this process: leave the option out")
    if slurm.is_step(os.environ):
        tasks, nodes = slurm.task_count(os.environ), slurm.node_count(os.environ)
        if tasks != nodes:
            raise _wrong("--nproc", f"srun has started {tasks} tasks on {nodes} nodes: one on each, or no --nproc")
        nnodes = nodes if nnodes is None else nnodes
        node_rank = slurm.told_rank(os.environ) if node_rank is None else node_rank
        endpoint = "{}:{}".format(*slurm.address(os.environ)) if endpoint is None else endpoint
    machines = nnodes or 1
    _check_machines(machines, node_rank, endpoint)
    host, port = _address(endpoint or f"localhost:{slurm.port_of(os.getuid())}")
    return ProcessLayout(_number(nproc or "auto"), machines, node_rank or 0, host, port, max_restarts)


def _check_machines(nnodes: int, node_rank: int | None, endpoint: str | None) -> None:
    if nnodes > 1 and node_rank is None:
        raise _wrong("--node-rank", f"say which of the {nnodes} machines this is, 0 to {nnodes - 1}")
    if nnodes > 1 and endpoint in (None, "auto"):
        raise _wrong("--rdzv-endpoint", "say an address of machine 0 and a port that is free there")
    if (node_rank or 0) >= nnodes:
        raise _wrong("--node-rank", f"{node_rank} is too large for {nnodes} machines (--nnodes): they count from 0")


def _number(nproc: str) -> int | None:
    if nproc == "auto":
        return None
    if not re.fullmatch(r"[1-9]\d{0,4}", nproc):
        raise _wrong("--nproc", f"{nproc!r} is neither a number of processes nor auto")
    return int(nproc)


def _address(endpoint: str) -> tuple[str, int]:
    if endpoint == "auto":
        return "localhost", 0
    host, _, port = endpoint.rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port) or int(port) >= 2**16:
        raise _wrong("--rdzv-endpoint", f"{endpoint!r} is neither HOST:PORT nor auto")
    return host, int(port)


def _wrong(option: str, message: str) -> ConfigError:
    from opabinia.config import ConfigError, Problem

    return ConfigError(Problem("command line", option, message))


def run_in_many(processes: ProcessLayout, command: list[str]) -> NoReturn:
    """Run ``opabinia`` with the arguments ``command`` in these processes, and exit."""
    from opabinia.runtime.elastic_agent import Passing
    from opabinia.runtime.signals import stop_signals

    with stop_signals(Passing()) as stop:
        from opabinia.training.elastic import launch

        raise SystemExit(launch(processes, command, stop))
