"""Kernels that a piece of code starts: on a GPU each takes the host some microseconds."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Kernels(TorchDispatchMode):
    """Counts the operations inside the block that compute something.

    Attributes:
        count: number of operations that are not views.
        views: number of views, which only take time on the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = self.views = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view:
            self.views += 1
        else:
            self.count += 1
        return func(*args, **(kwargs or {}))
