"""Optimizers of torch and timm as they are: names, parameters and defaults are their own."""

from __future__ import annotations

import timm.optim
import torch.optim as optim
from torch import Tensor, nn

from opabinia.config import adapt, register

# LBFGS needs a closure that runs the model again, SparseAdam sparse gradients: neither fits one update per step.
NAMES = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax"),
    *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
)

OF_TIMM = (
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
"""Those of timm that torch does not have, and Muon, which takes vectors, too, in timm."""

for _name in NAMES:
    register.optimizer(name=_name.lower())(adapt(getattr(optim, _name), runtime=("params",)))

for _name in OF_TIMM:
    register.optimizer(name=_name.lower())(adapt(getattr(timm.optim, _name), runtime=("params",)))


def fuse(optimizer: optim.Optimizer) -> None:
    """Let torch's SGD, Adam and AdamW go through memory once an update, where the config leaves ``fused`` and
    ``foreach`` open: on a CPU each parameter otherwise takes several passes of its own. Last bits differ.

    Not with parameters that are spread over processes, whose fused kernels torch 2.15 does not have for SGD.
    """
    if not isinstance(optimizer, optim.SGD | optim.Adam):
        return
    groups = optimizer.param_groups
    left_open = all(group["fused"] is None and group["foreach"] is None for group in groups)
    excluded = any(group["differentiable"] or group.get("dampening") for group in groups)
    parameters = [parameter for group in groups for parameter in group["params"]]
    if left_open and not excluded and all(map(_can_be_fused, parameters)):
        for group in groups:
            group["fused"] = True
        optimizer._step_supports_amp_scaling = True  # as the constructor says of fused ones


def _can_be_fused(parameter: Tensor) -> bool:
    return (
        parameter.is_floating_point()
        and parameter.device.type in ("cpu", "cuda")
        and type(parameter) is nn.Parameter  # not a DTensor
    )
