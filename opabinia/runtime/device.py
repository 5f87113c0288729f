"""The device of this process, and the settings that make its arithmetic reproducible."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from opabinia.runtime.processes import local_rank


def choose_device(name: str) -> torch.device:
    """Return the device for ``auto``, ``cpu``, ``cuda`` (the GPU of the local rank) or ``mps``.

    Raises:
        ValueError: this machine or this torch build has no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "mps" and not torch.backends.mps.is_available():
        raise ValueError("'mps' (Apple GPUs) is not available; use 'cpu' or 'auto'")
    if name != "cuda":
        return torch.device(name)
    if not torch.cuda.is_available():
        reason = "no GPU or driver was found" if torch.version.cuda else "this torch build has no CUDA"
        raise ValueError(f"'cuda' is not available: {reason}; use 'cpu' or 'auto'")
    index, count = local_rank(), torch.cuda.device_count()
    if index >= count:
        raise ValueError(f"local rank {index} has no GPU of its own: this machine has {count}")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def move_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on ``device``. The host does not wait for a copy to a GPU.

    CUDA copies pageable memory to a buffer of its own before the call returns, and torch keeps pinned memory until the
    copy has ended. MPS may still read the memory of a tensor that Python has freed (pytorch issue 189690), so copies to
    every other device block.
    """
    return tensor.to(device, non_blocking=device.type == "cuda")


def configure_backends(*, deterministic: bool, cudnn_benchmark: bool, threads: int | None) -> int:
    """Set determinism, cuDNN's benchmark mode and the number of CPU threads; return that number.

    With ``deterministic`` torch raises for operations that have no deterministic implementation.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = cudnn_benchmark and not deterministic
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return torch's autocast for ``bf16`` or ``fp16`` (mixed precision); ``fp32`` changes nothing."""
    return torch.autocast(device.type, _AUTOCAST[precision]) if precision in _AUTOCAST else nullcontext()
