"""Commands on several ranks: the options ``--nproc``, ``--nnodes`` and so on, and the launch."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from opabinia.cli.errors import option_error

if TYPE_CHECKING:
    from opabinia.runtime.elastic_agent import ProcessLayout


def layout(
    nproc: str | None, nnodes: str | int | None, node_rank: int | None, endpoint: str | None, max_restarts: int
) -> ProcessLayout | None:
    """Return the ranks that the options ask for; None: this process only.

    Inside an srun step with one task per machine, SLURM supplies the options that are not given.

    Raises:
        ConfigError: the options contradict each other.
    """
    if nproc is None and nnodes is None and node_rank is None and endpoint is None:
        return None
    from opabinia.runtime import slurm
    from opabinia.runtime.elastic_agent import ProcessLayout
    from opabinia.runtime.resources import cores

    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise option_error("--nproc", "torchrun has started this process: remove the option")
    if slurm.is_step(os.environ):
        tasks, nodes = slurm.task_count(os.environ), slurm.node_count(os.environ)
        if tasks != nodes:
            message = f"srun has started {tasks} tasks on {nodes} nodes: one on each, or no --nproc"
            raise option_error("--nproc", message)
        nnodes = nodes if nnodes is None else nnodes
        node_rank = slurm.launched_rank(os.environ) if node_rank is None else node_rank
        endpoint = "{}:{}".format(*slurm.rendezvous_address(os.environ)) if endpoint is None else endpoint
    min_nodes, max_nodes = _machines(nnodes or 1)
    if min_nodes == max_nodes > 1 and node_rank is None:
        raise option_error("--node-rank", f"give the number of this machine, 0 to {max_nodes - 1}")
    if max_nodes > 1 and endpoint in (None, "auto"):
        raise option_error("--rdzv-endpoint", "give an address of machine 0 and a free port there")
    if (node_rank or 0) >= max_nodes:
        message = f"{node_rank} is too large for {max_nodes} machines (--nnodes), which are numbered from 0"
        raise option_error("--node-rank", message)
    host, port = _address(endpoint or f"localhost:{slurm.port_for(os.getuid())}")
    nproc = nproc or "auto"
    if not re.fullmatch(r"auto|[1-9]\d{0,4}", nproc):
        raise option_error("--nproc", f"{nproc!r} is neither a number of ranks nor auto")
    ranks = None if nproc == "auto" else int(nproc)
    if ranks and ranks > (most := max(16, 4 * cores())):
        message = f"{ranks} ranks on {cores()} cores; at most {most}: one for each GPU, or about one for each core"
        raise option_error("--nproc", message)
    if min_nodes < max_nodes:
        return ProcessLayout(ranks, max_nodes, node_rank, host, port, max_restarts, min_nodes)
    return ProcessLayout(ranks, max_nodes, node_rank or 0, host, port, max_restarts)


def _machines(nnodes: str | int) -> tuple[int, int]:
    """Return the smallest and the largest number of machines."""
    numbers = re.fullmatch(r"([1-9]\d{0,4})(?::([1-9]\d{0,4}))?", str(nnodes))
    smallest, largest = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (1, 0)
    if smallest > largest:
        message = f"{str(nnodes)!r} is neither a number of machines nor MIN:MAX with 1 <= MIN <= MAX, such as 2:8"
        raise option_error("--nnodes", message)
    return smallest, largest


def _address(endpoint: str) -> tuple[str, int]:
    if endpoint == "auto":
        return "localhost", 0
    host, _, port = endpoint.rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port) or int(port) >= 2**16:
        raise option_error("--rdzv-endpoint", f"{endpoint!r} is neither HOST:PORT nor auto")
    return host, int(port)


def run_in_many(processes: ProcessLayout | None, command: list[str]) -> None:
    """Run ``opabinia`` with the arguments ``command`` on all ranks, and exit; return if there is no layout."""
    if processes is None:
        return
    from opabinia.runtime.elastic_agent import SignalForwarder
    from opabinia.runtime.signals import stop_signals

    with stop_signals(SignalForwarder()) as stop:
        from opabinia.training.elastic import launch

        raise SystemExit(launch(processes, command, stop))
