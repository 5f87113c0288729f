"""Memory, FLOPs and memory traffic of the operators that a block of code runs, whether or not tensors have values.

:class:`OperatorCosts` observes every operator below autograd. It works on real tensors and on the fake tensors of
``FakeTensorMode``, which have shapes and no memory.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

BLOCK = 512
"""Bytes to which torch's CUDA allocator rounds up an allocation."""


@dataclass(frozen=True)
class Operator:
    """One operator that ran.

    Attributes:
        name: such as ``aten.convolution``.
        dtype: data type of its first floating point operand: ``bfloat16``, ``float32`` ...; "" without one.
        flops: FLOPs of matrix products and convolutions, a multiply-add counts as two; 0 for others.
        traffic: bytes of its operands and results.
    """

    name: str
    dtype: str
    flops: int
    traffic: int


class OperatorCosts(TorchDispatchMode):
    """Counts bytes of live tensors by category, and records operators.

    Tensors are counted by storage, so views are free. What kernels allocate for themselves is not seen.

    Attributes:
        category: category of tensors that operators create from now on.
        live: bytes of live tensors by category.
        peak: ``live`` when its sum was largest.
        operators: those that ran.

    Example::

        costs = OperatorCosts()
        costs.add(model.parameters(), "parameters")
        with costs:
            model(images).sum().backward()
        print(costs.peak.total())
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: dict[int, _Storage] = {}
        self.category = "activations"
        self.live: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.operators: list[Operator] = []

    def add(self, tensors: Iterable[Tensor], category: str) -> None:
        """Count these tensors in ``category``, whether or not they were counted in another."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            known = self._storages.get(storage._cdata)
            if known is None:
                self._count(storage, category)
            elif known.category != category:
                self.live[known.category] -= known.size
                self.live[category] += known.size
                known.category = category

    def restart(self) -> None:
        """Forget the peak so far and the recorded operators."""
        self.peak = Counter(self.live)
        self.operators.clear()

    def _count(self, storage: torch.UntypedStorage, category: str) -> None:
        size, key = _rounded(storage.nbytes()), storage._cdata

        def release(_: object) -> None:
            released = self._storages.pop(key)
            self.live[released.category] -= released.size

        self._storages[key] = _Storage(category, size, weakref.ref(storage, release))
        self._grow(category, size)

    def _grow(self, category: str, size: int) -> None:
        self.live[category] += size
        if self.live.total() > self.peak.total():
            self.peak = Counter(self.live)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands = _tensors((args, kwargs))
        for tensor in operands:
            if tensor.untyped_storage()._cdata not in self._storages:  # older than this count
                self._count(tensor.untyped_storage(), "others")
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            if args[0].is_floating_point():
                return 1.0  # a loss for the log, or the step of an optimizer
            if args[0].dtype == torch.bool:
                return True  # a condition on values: its branch may need memory
        results = func(*args, **kwargs)
        created = _tensors(results)
        for tensor in created:
            if tensor.untyped_storage()._cdata not in self._storages:
                self._count(tensor.untyped_storage(), self.category)
        if not func.is_view:
            self.operators.append(_describe(func, args, kwargs, results, operands, created))
        return results


def _rounded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


@dataclass
class _Storage:
    category: str
    size: int
    reference: weakref.ref[torch.UntypedStorage]


def _tensors(values: Any) -> list[Tensor]:
    """Return the tensors in nested values; of sharded ones this rank's shard."""
    tensors = [value for value in tree_leaves(values) if isinstance(value, Tensor)]
    return [tensor._local_tensor if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def _describe(
    func: Any, args: Any, kwargs: Any, results: Any, operands: list[Tensor], created: list[Tensor]
) -> Operator:
    formula = flop_registry.get(func._overloadpacket)
    flops = int(formula(*args, **kwargs, out_val=results)) if formula else 0
    dtypes = [tensor.dtype for tensor in (*operands, *created) if tensor.is_floating_point()]
    traffic = sum(tensor.numel() * tensor.itemsize for tensor in (*operands, *created))
    name = str(func._overloadpacket)
    return Operator(name, str(dtypes[0]).removeprefix("torch.") if dtypes else "", flops, traffic)
