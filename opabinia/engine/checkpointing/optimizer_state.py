"""Optimizer state by parameter name, so that it survives another order of parameters and another number of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.engine.checkpointing.sharded import distribute_like

_GROUP_PREFIX = "@"
"""Marks state that an optimizer keeps in a group (the step counter of timm's Lamb): it is saved for each parameter."""

_GROUP_KEYS = frozenset({"params", "param_names", "lr_factor"})
"""Keys of a group that are neither options of the optimizer nor state."""


def optimizer_kind(optimizer: torch.optim.Optimizer) -> str:
    """Name what decides which state an optimizer keeps: its class, and the options that add tensors."""
    options = ("amsgrad", "centered", "momentum")
    return " with ".join([type(optimizer).__name__, *(name for name in options if optimizer.defaults.get(name))])


def optimizer_state(task: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors (``<parameter>.<key>``) and the plain values of an optimizer's state.

    The options of its groups are not included: they are config, and a resumed run uses its config.
    """
    names = {id(param): name for name, param in task.named_parameters()}
    state = {
        f"{names[id(param)]}.{key}": value for param, values in optimizer.state.items() for key, value in values.items()
    }
    for group in optimizer.param_groups:
        keys = group.keys() - optimizer.defaults.keys() - _GROUP_KEYS
        for param in group["params"]:
            state |= {f"{names[id(param)]}.{_GROUP_PREFIX}{key}": group[key] for key in keys}
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in state.items() if name not in tensors and value is not None}


def load_optimizer_state(
    task: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]
) -> None:
    """Restore :func:`optimizer_state`; parameters without saved state start without."""
    params = dict(task.named_parameters())
    names = {id(param): name for name, param in params.items()}
    saved = {**tensors, **plain}
    by_param: dict[str, dict[str, Any]] = {}
    for full_name, value in saved.items():
        name, key = full_name.rsplit(".", 1)
        if name in params and not key.startswith(_GROUP_PREFIX):
            by_param.setdefault(name, {})[key] = _match_layout(params[name], value)
    order = [names[id(param)] for group in optimizer.param_groups for param in group["params"]]
    state = {number: by_param[name] for number, name in enumerate(order) if name in by_param}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    for group in optimizer.param_groups:
        prefix = f"{names[id(group['params'][0])]}.{_GROUP_PREFIX}"
        group.update({name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)})


def _match_layout(param: Tensor, value: Any) -> Any:
    """Copy a state tensor into the memory layout of its parameter, which fused kernels assume without a check."""
    if not isinstance(value, Tensor) or value.shape != param.shape:
        return value
    value = distribute_like(value, param.detach())
    return torch.empty_like(param, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)
