"""How gradients become an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Batch, Clock, Positive, Row, Scalars, Schedule, Task
from opabinia.runtime.processes import rank
from opabinia.runtime.seeds import seed_model


def total_loss(losses: Mapping[str, Tensor] | Tensor | Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to train, and everything to log under its own name (the rule of basecls).

    A tensor is the loss and a list is summed. Of a dictionary ``total_loss`` alone is trained if it is there,
    else the sum of every key that contains "loss"; the rest is only logged. What is trained is logged as ``loss``, or
    as ``total_loss`` when a part of it has that name.

    Raises:
        ValueError: a dictionary without a loss, or an empty list.

    Example: ``{"loss_a": 2, "aux": 10}`` trains 2; ``{"total_loss": 1, "x_loss": 5}`` trains 1.
    """
    if isinstance(losses, Tensor):
        return losses, {"loss": losses}
    if not isinstance(losses, Mapping):
        losses = {f"loss_{number}": loss for number, loss in enumerate(losses)}
    trained = [losses["total_loss"]] if "total_loss" in losses else [v for k, v in losses.items() if "loss" in k]
    if not trained:
        raise ValueError(f"the task gave no loss: no key of {sorted(losses)} contains 'loss'")
    total = trained[0] if len(trained) == 1 else torch.stack(trained).sum()
    return total, {**losses, "total_loss" if "loss" in losses and len(trained) > 1 else "loss": total}


@register.step(name="standard")
class Standard:
    """One forward, one backward, one update in full precision.

    Args:
        clip_norm: largest 2-norm of all gradients together; longer ones are scaled down to it. None: no clipping.
    """

    def __init__(
        self,
        task: Task,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        seed: int,
        /,
        *,
        clip_norm: Positive | None = None,
    ) -> None:
        self.task, self.optimizer, self.schedule, self.seed = task, optimizer, schedule, seed
        self.clip_norm = clip_norm
        self._base_rates = [group["lr"] for group in optimizer.param_groups]
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._device = self._parameters[0].device

    def __call__(self, batch: Batch, row: Row, clock: Clock, after_backward: Callable[[], None]) -> Scalars:
        """Train ``batch``; returns the losses (and ``grad_norm`` when clipping) without waiting for the device."""
        factor = self.schedule(clock) * row.lr_factor
        for group, base in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = base * factor
        self.optimizer.zero_grad(set_to_none=True)
        seed_model(self.seed, clock.step, 0, rank(), self._device)
        loss, scalars = total_loss(self.task(batch, clock))
        loss.backward()  # type: ignore[no-untyped-call]
        after_backward()
        if self.clip_norm is not None:
            scalars["grad_norm"] = torch.nn.utils.clip_grad_norm_(self._parameters, self.clip_norm)
        self.optimizer.step()
        return {name: value.detach() for name, value in scalars.items()}

    def state_dict(self) -> dict[str, Any]:
        """Nothing beside the optimizer, which is saved by itself."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`state_dict`."""
