"""A momentum teacher: an EMA of the student's weights that gives its targets."""

from __future__ import annotations

import copy
from typing import Any

import torch
from timm.layers.drop import DropPath
from timm.layers.patch_dropout import PatchDropout
from torch import Tensor, nn

from opabinia.contracts import Hook, Schedule
from opabinia.optim.ema import WeightAverage
from opabinia.optim.schedules import constant


class MomentumTeacher(nn.Module):
    """Copies of a student's parts under the same names, without gradients and dropout and with batch norm statistics
    of their own (Grill et al. 2020, BYOL; Caron et al. 2021, DINO).

    ``teacher = m * teacher + (1 - m) * student`` with ``m = 1 - (1 - momentum) * schedule``: a cosine schedule takes m
    from ``momentum`` to 1.

    Args:
        momentum: fraction of the teacher that an update keeps.
        schedule: multiplies ``1 - momentum`` over time.
        parts: modules of the student by name, applied one after the other.
    """

    def __init__(self, momentum: float, schedule: Schedule = constant, /, **parts: nn.Module) -> None:
        super().__init__()
        self._momentum, self._schedule = momentum, schedule
        for name, part in parts.items():
            self.add_module(name, copy.deepcopy(part).requires_grad_(False))
        for module in self.modules():
            if isinstance(module, DropPath):
                module.drop_prob = 0.0
            elif isinstance(module, PatchDropout):
                module.prob = 0.0
            elif isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0

    def copy_from(self, student: nn.Module) -> None:
        """Copy the student's weights and statistics."""
        for name, part in self.named_children():
            weights = student.get_submodule(name).state_dict()  # may have batch norm statistics of further streams
            part.load_state_dict({name: weights[name] for name in part.state_dict()})

    def update_hook(self, student: nn.Module) -> Hook:
        """Return the hook that moves the teacher towards the student once per optimizer step."""
        return WeightAverage(self, student, lambda clock: (1 - self._momentum) * self._schedule(clock), buffers="kept")

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the parts, which some tasks call one by one."""
        for part in self.children():
            for module in part.children() if isinstance(part, nn.ModuleDict) else [part]:
                module.compile(*args, **kwargs)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Apply the parts one after the other."""
        output = images
        for part in self.children():
            output = part(output)
        return output
