"""Leaving out updates whose losses or gradients are not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from opabinia.contracts import buffers_beside_memories
from opabinia.runtime.processes import world_size


def not_finite(values: Mapping[str, Any]) -> Tensor:
    """1 if any of these tensors is not finite in any process, else 0 (float, 0-d, on their device)."""
    wrong = (~torch.stack([value.detach().float() for value in values.values()]).isfinite()).any().float()
    if world_size() > 1:
        dist.all_reduce(wrong, dist.ReduceOp.MAX)
    return wrong


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give fused SGD momentum buffers of zeros, where it has none yet.

    torch 2.15 allocates them without values in the first step and fills them in the kernel, which does nothing when an
    update is left out: whatever lay in that memory is taken for momentum from then on. And it cannot update parameters
    that have one together with such that have none, because this is their first gradient. The first update is the same
    with zeros, unless momentum is dampened; then nothing is done here.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["fused"] and group["momentum"] != 0 and group["dampening"] == 0:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


class Guard:
    """Lets an update be left out as if the step had not been.

    A forward pass whose numbers go wrong leaves them in running statistics, too: buffers are put back.

    Args:
        model: whose buffers to look after; memories are written by hooks, not by forward passes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [buffer for _, buffer in buffers_beside_memories(model)]
        self._before = [buffer.clone() for buffer in self._buffers]

    def remember(self) -> None:
        """Remember the buffers as they are."""
        _copy(self._before, self._buffers)

    def put_back(self) -> None:
        """Put the buffers back as they were."""
        _copy(self._buffers, self._before)

    def unless(self, wrong: Tensor, optimizer: torch.optim.Optimizer, update: Callable[[], None]) -> None:
        """Call ``update``, which makes the optimizer's step, unless ``wrong`` is 1.

        Fused optimizers look at it on the device; with others the host waits for it.
        """
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            if wrong.item():
                self.put_back()
            else:
                update()
            return
        optimizer.found_inf = wrong  # type: ignore[attr-defined]
        try:
            update()
        finally:
            if hasattr(optimizer, "found_inf"):  # a scaler of losses has its own, and takes it away
                del optimizer.found_inf
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(torch.where(wrong.bool(), before, buffer))


@torch.no_grad()
def _copy(to: Iterable[Tensor], of: Iterable[Tensor]) -> None:
    for one, other in zip(to, of, strict=True):
        one.copy_(other)
