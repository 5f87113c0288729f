"""Leaving out updates whose losses or gradients are not finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from opabinia.runtime.processes import world_size


def losses(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Those among the scalars of a step that must be finite."""
    return {name: value for name, value in scalars.items() if "loss" in name and name != "loss_scale"}


def watched(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """The losses, and the norm of the gradients."""
    return {**losses(scalars), "grad_norm": scalars["grad_norm"]}


def not_finite(values: Mapping[str, Tensor]) -> Tensor:
    """1 if any of these is not finite in any process, else 0 (float, 0-d, on their device)."""
    wrong = (~torch.stack([value.detach().float() for value in values.values()]).isfinite()).any().float()
    if world_size() > 1:
        dist.all_reduce(wrong, dist.ReduceOp.MAX)
    return wrong


class SkippedUpdates:
    """Takes a step back, or does not take it.

    A forward pass whose numbers go wrong leaves them in the running statistics, too: these are put back.

    Args:
        model: whose buffers to look after.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = list(model.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]

    def before(self) -> None:
        """Remember the buffers as they are."""
        _copy(self._before, self._buffers)

    def after(self, wrong: bool) -> None:
        """Put the buffers back if the step went wrong."""
        if wrong:
            _copy(self._buffers, self._before)

    def update(self, optimizer: torch.optim.Optimizer, wrong: Tensor) -> Tensor:
        """Let the optimizer make its step unless ``wrong`` is 1; returns ``wrong``.

        Fused optimizers look at it on the device, with others the host waits for it.
        """
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            optimizer.found_inf = wrong  # type: ignore[attr-defined]
            try:
                optimizer.step()
            finally:
                del optimizer.found_inf  # type: ignore[attr-defined]
            for buffer, before in zip(self._buffers, self._before, strict=True):
                buffer.copy_(torch.where(wrong.bool(), before, buffer))
        elif wrong.item():
            self.after(True)
        else:
            optimizer.step()
        return wrong


@torch.no_grad()
def _copy(to: Iterable[Tensor], of: Iterable[Tensor]) -> None:
    for one, other in zip(to, of, strict=True):
        one.copy_(other)
