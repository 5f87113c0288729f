"""Shapes without numbers on a CUDA device that need not exist: inside torch's FakeTensorMode, waits for it raise.

Reading a tensor and indexing by a mask (also ``nonzero`` and ``unique``) raise torch's DataDependentOutputException or
DynamicOutputShapeException; inside :class:`WithoutBlockingCopies` these raise, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("cuda", 0)


class HostWait(RuntimeError):
    """The host waits for the device."""


class WithoutBlockingCopies(TorchDispatchMode):
    """Raises HostWait for copies between the host and a device for which the host waits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and not kwargs.get("non_blocking"):
            source = args[0].device
            target = kwargs.get("device") or source
            if target.type != source.type:
                raise HostWait(f"a blocking copy from {source} to {target}")
        return func(*args, **kwargs)
