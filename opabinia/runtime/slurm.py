"""What SLURM says about the tasks of a step, in the words that torchrun uses."""

from __future__ import annotations

import re
from collections.abc import Mapping

PORTS = 2**14


def port_of(number: int) -> int:
    """A port from 49152 to 65535 (those that no service is registered for), the same for the same number."""
    return 2**15 + 2**14 + number % PORTS


def first_host(nodes: str) -> str:
    """The first host of a node list such as ``gpu[003-007,9],login``: gpu003."""
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes).split(",")[0]


def is_step(environment: Mapping[str, str]) -> bool:
    """Whether this process is one of several that srun has started; a batch script's own shell is not."""
    return "SLURM_PROCID" in environment and _number(environment, "SLURM_STEP_NUM_TASKS") > 1


def address(environment: Mapping[str, str]) -> tuple[str, int]:
    """Host and port at which the tasks of this step meet."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    # Two steps of one job may run side by side.
    number = _number(environment, "SLURM_JOB_ID") + _number(environment, "SLURM_STEP_ID")
    return first_host(nodes) or "localhost", port_of(number)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT`` of a task.

    Raises:
        ValueError: the nodes have not the same number of tasks.
    """
    tasks, nodes = _number(environment, "SLURM_STEP_NUM_TASKS"), node_count(environment)
    if tasks % nodes:
        raise ValueError(f"{tasks} tasks cannot be shared out evenly among {nodes} nodes: srun --ntasks-per-node")
    host, port = address(environment)
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(tasks // nodes),
        "MASTER_ADDR": environment.get("MASTER_ADDR", host),
        "MASTER_PORT": environment.get("MASTER_PORT", str(port)),
    }


def task_count(environment: Mapping[str, str]) -> int:
    """Tasks of this step; 1 outside of any."""
    return _number(environment, "SLURM_STEP_NUM_TASKS") if is_step(environment) else 1


def node_count(environment: Mapping[str, str]) -> int:
    """Nodes of this step, at least 1."""
    return max(1, _number(environment, "SLURM_STEP_NUM_NODES"))


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else 0


def told_rank(environment: Mapping[str, str]) -> int:
    """Number of this process among all, from 0, by what its starter says; known before the processes have joined."""
    if "WORLD_SIZE" in environment:
        return _number(environment, "RANK") if _number(environment, "WORLD_SIZE") > 1 else 0
    return _number(environment, "SLURM_PROCID") if is_step(environment) else 0
