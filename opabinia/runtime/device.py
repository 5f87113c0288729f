"""The device of this process, and what makes its arithmetic repeatable."""

from __future__ import annotations

import os

import torch

from opabinia.runtime.processes import local_rank


def choose_device(name: str) -> torch.device:
    """The device for ``auto``, ``cpu`` or ``cuda``; CUDA devices are those of the local rank.

    Raises:
        ValueError: CUDA was asked for and this machine or this torch build has none.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        reason = "no GPU or driver was found" if torch.version.cuda else "this torch build has no CUDA"
        raise ValueError(f"'cuda' is not available: {reason}; use 'cpu' or 'auto'")
    index, count = local_rank(), torch.cuda.device_count()
    if index >= count:
        raise ValueError(f"local rank {index} has no GPU of its own: this machine has {count}")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def set_arithmetic(*, deterministic: bool, cudnn_benchmark: bool, threads: int | None) -> int:
    """Fix what the result of the same operation may depend on; return the number of CPU threads.

    ``deterministic`` makes torch refuse operations that have no repeatable form.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = cudnn_benchmark and not deterministic
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()
