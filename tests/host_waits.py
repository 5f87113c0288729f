"""Counts what the host would wait for if tensors of the CPU were on a GPU; :mod:`tests.fake_gpu` finds copies."""

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
WAITING = ("nonzero", "masked_select", "_local_scalar_dense", "is_nonzero", "equal", "_unique2", "bincount", "nms")
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)


class HostWaits(TorchDispatchMode):
    """Counts reads of values and operations whose shapes depend on them: ``nonzero``, ``mask index``, ``tolist`` ..."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._reads = _Reads(self.calls)

    def __enter__(self) -> "HostWaits":
        self._reads.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._reads.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (wait := _wait_of(func, args)) is not None:
            self.calls[wait] += 1
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    """Counts methods that dispatch no operation for CPU tensors."""

    def __init__(self, calls: Counter[str]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := getattr(func, "__name__", "")) in ("tolist", "cpu", "numpy"):
            self._calls[name] += 1
        return func(*args, **(kwargs or {}))


def _wait_of(func: Any, args: Any) -> str | None:
    name = func.name().split("::")[1].split(".")[0]
    if name in WAITING:
        return str(name)
    if func in INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1]):
        # One value for all places of a mask is masked_fill.
        return None if len(args) > 2 and args[2].numel() == 1 else "mask index"
    return None
