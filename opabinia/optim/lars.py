"""LARS: a rate for each tensor, so that its update is a share of its own length."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Fraction, NonNegative, Positive

Tensors = tuple[Tensor, ...] | list[Tensor]


@register.optimizer
class Lars(torch.optim.Optimizer):
    """SGD with layer-wise adaptive rates (You et al. 2017).

    Each tensor's gradient, weight decay added, is scaled by ``trust * |weights| / |gradient|``; tensors without length,
    and those that are not adapted, by 1. By default as in VISSL; basecls' rule is
    ``{trust: 1, adapt: direction, exclude_1d: false}``.

    Args:
        lr: the learning rate.
        momentum: share of the gathered direction that is kept.
        weight_decay: added to the gradient, times the weights.
        trust: length of an update at rate 1, as a share of the weights' length.
        nesterov: look ahead by one momentum step.
        adapt: what is scaled: the ``gradient`` before momentum, or the ``direction`` that momentum makes of it.
        exclude_1d: plain SGD for vectors and single numbers (biases, norms).
        always_adapt: scale directions without weight decay, too; gradients always are.
    """

    def __init__(
        self,
        params: Iterable[Any],
        /,
        *,
        lr: NonNegative = 0.1,
        momentum: Fraction = 0.9,
        weight_decay: NonNegative = 0.0,
        trust: Positive = 0.001,
        nesterov: bool = False,
        adapt: Literal["gradient", "direction"] = "gradient",
        exclude_1d: bool = True,
        always_adapt: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                **{"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "nesterov": nesterov},
                **{"adapt": adapt, "exclude_1d": exclude_1d, "always_adapt": always_adapt},
            },
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            weights = [parameter for parameter in group["params"] if parameter.grad is not None]
            if weights:
                self._update(group, weights, [parameter.grad for parameter in weights])

    def _update(self, group: dict[str, Any], weights: Tensors, gradients: Tensors) -> None:
        by_direction = group["adapt"] == "direction"
        decayed = torch._foreach_add(gradients, weights, alpha=group["weight_decay"])
        if not by_direction:
            torch._foreach_mul_(decayed, self._trust(group, weights, decayed))
        direction = self._with_momentum(group, weights, decayed)
        if by_direction:
            direction = torch._foreach_mul(direction, self._trust(group, weights, direction))
        torch._foreach_add_(weights, direction, alpha=-group["lr"])

    def _with_momentum(self, group: dict[str, Any], weights: Tensors, gradients: Tensors) -> Tensors:
        if not group["momentum"]:
            return gradients
        gathered = []
        for weight, gradient in zip(weights, gradients, strict=True):
            state = self.state[weight]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            gathered.append(state["momentum_buffer"])
        torch._foreach_mul_(gathered, group["momentum"])
        torch._foreach_add_(gathered, gradients)
        return torch._foreach_add(gradients, gathered, alpha=group["momentum"]) if group["nesterov"] else gathered

    def _trust(self, group: dict[str, Any], weights: Tensors, directions: Tensors) -> Any:
        """The factor of each tensor, as 0-d tensors: nobody waits for the device."""
        of_weights, of_directions = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, directions))
        ratio = group["trust"] * of_weights / of_directions
        plain = (of_weights == 0) | (of_directions == 0)
        if group["adapt"] == "direction" and not group["weight_decay"] and not group["always_adapt"]:
            plain = torch.ones_like(plain)
        factors = torch.where(plain, torch.ones_like(ratio), ratio).unbind()
        one = torch.ones_like(factors[0])
        excluded = [group["exclude_1d"] and weight.ndim <= 1 for weight in weights]
        return [one if out else factor for out, factor in zip(excluded, factors, strict=True)]
