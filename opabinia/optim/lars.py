"""LARS: layer-wise adaptive rate scaling."""

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

    Each tensor's gradient, with weight decay, is scaled by ``trust_coefficient * |weights| / |gradient|``; tensors of
    norm 0, and those that are not adapted, by 1. The defaults are those of VISSL; basecls' rule is
    ``{trust_coefficient: 1, adapt: direction, exclude_1d: false}``.

    Args:
        lr: the learning rate.
        momentum: fraction of the momentum buffer that is kept.
        weight_decay: times the weights, added to the gradient.
        trust_coefficient: norm of an update at learning rate 1, relative to the norm of the weights.
        nesterov: Nesterov momentum.
        adapt: scale the ``gradient`` before momentum, or the ``direction`` after it.
        exclude_1d: plain SGD for vectors and scalars (biases, norms).
        always_adapt: scale directions without weight decay, too; gradients are always scaled.
    """

    def __init__(
        self,
        params: Iterable[Any],
        /,
        *,
        lr: NonNegative = 0.1,
        momentum: Fraction = 0.9,
        weight_decay: NonNegative = 0.0,
        trust_coefficient: Positive = 0.001,
        nesterov: bool = False,
        adapt: Literal["gradient", "direction"] = "gradient",
        exclude_1d: bool = True,
        always_adapt: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                **{"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov},
                **{"trust_coefficient": trust_coefficient, "adapt": adapt},
                **{"exclude_1d": exclude_1d, "always_adapt": always_adapt},
            },
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            weights = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not weights:
                continue
            gradients = [parameter.grad for parameter in weights]
            direction: Tensors = torch._foreach_add(gradients, weights, alpha=group["weight_decay"])
            if group["adapt"] == "gradient":
                torch._foreach_mul_(direction, self._trust_ratios(group, weights, direction))
            direction = self._with_momentum(group, weights, direction)
            if group["adapt"] == "direction":
                direction = torch._foreach_mul(direction, self._trust_ratios(group, weights, direction))
            torch._foreach_add_(weights, direction, alpha=-group["lr"])

    def _with_momentum(self, group: dict[str, Any], weights: Tensors, gradients: Tensors) -> Tensors:
        if not group["momentum"]:
            return gradients
        buffers = []
        for weight, gradient in zip(weights, gradients, strict=True):
            state = self.state[weight]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            buffers.append(state["momentum_buffer"])
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, gradients)
        return torch._foreach_add(gradients, buffers, alpha=group["momentum"]) if group["nesterov"] else buffers

    def _trust_ratios(self, group: dict[str, Any], weights: Tensors, directions: Tensors) -> Any:
        """The factor of each tensor, as 0-d tensors, so that the host does not wait for the device."""
        weight_norms, direction_norms = (torch.stack(torch._foreach_norm(each)) for each in (weights, directions))
        ratio = group["trust_coefficient"] * weight_norms / direction_norms
        plain = (weight_norms == 0) | (direction_norms == 0)
        if group["adapt"] == "direction" and not group["weight_decay"] and not group["always_adapt"]:
            plain = torch.ones_like(plain)
        factors = torch.where(plain, torch.ones_like(ratio), ratio).unbind()
        one = torch.ones_like(factors[0])
        excluded = [group["exclude_1d"] and weight.ndim <= 1 for weight in weights]
        return [one if out else factor for out, factor in zip(excluded, factors, strict=True)]
