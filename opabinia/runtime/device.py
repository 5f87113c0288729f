"""The device of this process, and the settings that make its arithmetic reproducible."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

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


MatmulPrecision = Literal["highest", "high", "medium"]
_DETERMINISTIC_WORKSPACES = (":4096:8", ":16:8")


def configure_backends(
    device: torch.device,
    *,
    deterministic: bool,
    cudnn_benchmark: bool,
    matmul_precision: MatmulPrecision | None,
    threads: int | None,
) -> int:
    """Set determinism, cuDNN's benchmark mode, the precision of float32 products and the number of CPU threads; return
    that number.

    Args:
        device: device of the run.
        deterministic: torch raises for operations that have no deterministic implementation.
        cudnn_benchmark: let cuDNN choose the fastest convolution; without effect if deterministic.
        matmul_precision: precision of matrix products (``torch.set_float32_matmul_precision``), and TF32 in cuDNN's
            convolutions unless it is ``highest``. None restores torch's defaults: ``highest`` products, and TF32 in
            convolutions.
        threads: None keeps torch's number.

    Raises:
        ValueError: deterministic matrix products on a GPU are excluded by the environment.
    """
    # cuBLAS reads the variable once, before its first product: importing opabinia sets it.
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if deterministic and device.type == "cuda" and workspace not in _DETERMINISTIC_WORKSPACES:
        raise ValueError(
            "deterministic matrix products on a GPU need CUBLAS_WORKSPACE_CONFIG="
            f"{' or '.join(_DETERMINISTIC_WORKSPACES)} in the environment of the process, which has {workspace!r}"
        )
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = cudnn_benchmark and not deterministic
    torch.set_float32_matmul_precision(matmul_precision or "highest")
    torch.backends.cudnn.allow_tf32 = matmul_precision != "highest"
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return torch's autocast for ``bf16`` or ``fp16`` (mixed precision); ``fp32`` changes nothing."""
    return torch.autocast(device.type, _AUTOCAST[precision]) if precision in _AUTOCAST else nullcontext()


def true_indices(masks: Sequence[Tensor]) -> list[Tensor]:
    """Return the indices of the true values of each mask (bool, N; int64, ascending). The host waits for the device
    once, for the numbers of all."""
    if torch.compiler.is_compiling():  # a graph has no numbers on the host
        return [mask.nonzero().flatten() for mask in masks]
    counts = torch.stack([mask.sum() for mask in masks]).tolist()
    orders = [(~mask).byte().argsort(stable=True) for mask in masks]
    return [order[:count] for order, count in zip(orders, counts, strict=True)]
