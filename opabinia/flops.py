"""What a forward pass costs, counted without computing it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from opabinia.contracts import Batch, Task
from opabinia.engine.feeding import to_device
from opabinia.runtime.seeds import generators_kept

META = torch.device("meta")


@dataclass(frozen=True)
class Flops:
    """Floating point operations of a forward pass: matrix products and convolutions, a multiplication and an addition
    being two.

    Attributes:
        count: of them.
        whole: whether that is all; what a detector does with the boxes that it has chosen cannot be counted without
            values.
    """

    count: int
    whole: bool


def forward_flops(model: Task, sample: Batch) -> Flops | None:
    """Operations of one sample's way through ``model.predict``; None where they cannot be counted.

    The model is copied to the meta device, where tensors have shapes and no values: nothing is computed, no memory is
    taken and no random number drawn.

    Args:
        model: on any device.
        sample: a batch of one sample.
    """
    whole = True
    with generators_kept(), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            shadow = without_values(model).eval()
            with Counter() as counter:
                try:
                    shadow.predict(to_device(sample, META))
                except Exception:  # a model may ask for a value in any way; what came before it counts
                    whole = False
        except Exception:  # nor need every module bear to be copied
            return None
    return Flops(counter.count, whole) if counter.count else None


def without_values(model: Task) -> Task:
    """A copy on the meta device; no value is copied on the way there."""
    memo: dict[int, Any] = {}
    for one in model.parameters():
        memo[id(one)] = nn.Parameter(torch.empty_like(one, device=META), one.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device=META)
    return copy.deepcopy(model, memo)


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what :class:`torch.utils.flop_counter.FlopCounterMode` counts, of tensors without values.

    What an operation gives for arguments of the same shapes is worked out once: on the meta device that takes Python
    long, and networks consist of blocks that are all alike.

    Attributes:
        count: operations so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self._known: dict[Any, tuple[Callable[[], Any], int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        key = _kinds((func, args, tuple(kwargs.items()))) if _gives_new_tensors(func) else None
        if known := self._known.get(key):
            self.count += known[1]
            return known[0]()
        before = self.count
        found = self._done(func, args, kwargs)
        if key is not None and (made := _another_like(found)):
            self._known[key] = made, self.count - before
        return found

    def _done(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        formula = flop_registry.get(func._overloadpacket) if isinstance(func, OpOverload) else None
        if formula is None and isinstance(func, OpOverload):
            with self:  # in inference mode operations come here that consist of others
                if (found := func.decompose(*args, **kwargs)) is not NotImplemented:
                    return found
        found = func(*args, **kwargs)
        if formula is not None:
            self.count += formula(*args, **kwargs, out_val=found)
        return found


def _gives_new_tensors(func: Any) -> bool:
    """Whether what an operation gives shares no memory with what it takes, and that stays as it is."""
    return isinstance(func, OpOverload) and not func.is_view and not func._schema.is_mutable


def _kinds(value: Any) -> Any:
    """Arguments with what can be known of tensors in their place; None where they cannot be told apart."""
    if isinstance(value, Tensor):
        return type(value), value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, list | tuple):
        kinds = tuple(map(_kinds, value))
        return None if None in kinds else kinds
    try:
        hash(value)
    except TypeError:
        return None
    return type(value), value


def _another_like(found: Any) -> Callable[[], Any] | None:
    """What makes tensors on the meta device, or a tuple of such, once more; None for all else."""
    if isinstance(found, tuple):
        every = [_another_like(one) for one in found]
        whole = [one for one in every if one is not None]
        return (lambda: tuple(make() for make in whole)) if len(whole) == len(every) else None
    if type(found) is not Tensor or found.device != META:
        return None
    return partial(torch.empty_strided, found.shape, found.stride(), dtype=found.dtype, device=META)
