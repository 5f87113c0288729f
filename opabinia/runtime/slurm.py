"""SLURM's environment variables of the tasks of a step, translated to torchrun's."""

from __future__ import annotations

import re
from collections.abc import Mapping


def port_for(number: int) -> int:
    """Return a port from 49152 to 65535 (not registered for any service), the same for the same number."""
    return 2**15 + 2**14 + number % 2**14


def first_host(nodes: str) -> str:
    """Return the first host of a node list: gpu003 of ``gpu[003-007,9],login``."""
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes).split(",")[0]


def is_step(environment: Mapping[str, str]) -> bool:
    """Return whether this process is one of several that srun has started; the shell of a batch script is not."""
    return "SLURM_PROCID" in environment and _number(environment, "SLURM_STEP_NUM_TASKS") > 1


def rendezvous_address(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of the rendezvous of this step's tasks."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    # Two steps of one job may run side by side.
    number = _number(environment, "SLURM_JOB_ID") + _number(environment, "SLURM_STEP_ID")
    return first_host(nodes) or "localhost", port_for(number)


def torchrun_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a task's ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``.

    Raises:
        ValueError: nodes differ in their number of tasks.
    """
    tasks, nodes = _number(environment, "SLURM_STEP_NUM_TASKS"), node_count(environment)
    if tasks % nodes:
        raise ValueError(f"{tasks} tasks cannot be distributed evenly over {nodes} nodes: srun --ntasks-per-node")
    host, port = rendezvous_address(environment)
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(tasks // nodes),
        "MASTER_ADDR": environment.get("MASTER_ADDR", host),
        "MASTER_PORT": environment.get("MASTER_PORT", str(port)),
    }


def task_count(environment: Mapping[str, str]) -> int:
    """Return the number of tasks of this step; 1 outside of a step."""
    return _number(environment, "SLURM_STEP_NUM_TASKS") if is_step(environment) else 1


def node_count(environment: Mapping[str, str]) -> int:
    """Return the number of nodes of this step, at least 1."""
    return max(1, _number(environment, "SLURM_STEP_NUM_NODES"))


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else 0


def launched_rank(environment: Mapping[str, str]) -> int:
    """Return the rank of this process from the environment, before the process group exists."""
    if "WORLD_SIZE" in environment:
        return _number(environment, "RANK") if _number(environment, "WORLD_SIZE") > 1 else 0
    return _number(environment, "SLURM_PROCID") if is_step(environment) else 0
