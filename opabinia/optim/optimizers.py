"""Optimizers of torch and timm, with their own names, parameters and defaults."""

from __future__ import annotations

import timm.optim
import torch.optim as optim
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from opabinia.config import adapt, register

# LBFGS needs a closure that reruns the model, SparseAdam sparse gradients: neither works with one update per step.
NAMES = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax"),
    *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
)

TIMM_NAMES = (
    "AdafactorBigVision",
    "Adan",
    "Adopt",
    "LaProp",
    "Lamb",
    "Lion",
    "MADGRAD",
    "Mars",
    "Muon",
    "NAdamW",
    "RMSpropTF",
    "SGDW",
)
"""Optimizers that torch does not have, and Muon, which in timm also accepts vectors."""

for _name in NAMES:
    register.optimizer(name=_name.lower())(adapt(getattr(optim, _name), runtime=("params",)))

for _name in TIMM_NAMES:
    register.optimizer(name=_name.lower())(adapt(getattr(timm.optim, _name), runtime=("params",)))


def fuse(optimizer: optim.Optimizer) -> None:
    """Use the fused kernels of torch's SGD, Adam and AdamW if the config sets neither ``fused`` nor ``foreach``: on a
    CPU an update then takes one pass over memory instead of several per parameter. The last bits of results differ.

    Sharded parameters are excluded: torch 2.15 has no fused SGD kernels for them.
    """
    if not isinstance(optimizer, optim.SGD | optim.Adam):
        return
    groups = optimizer.param_groups
    is_open = all(group["fused"] is None and group["foreach"] is None for group in groups)
    excluded = any(group["differentiable"] or group.get("dampening") for group in groups)
    parameters = [parameter for group in groups for parameter in group["params"]]
    if is_open and not excluded and all(map(_can_be_fused, parameters)):
        for group in groups:
            group["fused"] = True
        optimizer._step_supports_amp_scaling = True  # as the constructor sets it for fused optimizers


def _can_be_fused(parameter: Tensor) -> bool:
    return (
        parameter.is_floating_point()
        and parameter.device.type in ("cpu", "cuda")
        and isinstance(parameter, nn.Parameter)
        and not isinstance(parameter, DTensor)
    )
