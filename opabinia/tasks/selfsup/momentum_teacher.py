"""A network that follows another one, and tells it what to say."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from timm.layers.drop import DropPath
from timm.layers.patch_dropout import PatchDropout
from torch import Tensor, nn

from opabinia.contracts import Fraction, Hook, Run, Schedule
from opabinia.optim.ema import local


class Teacher(nn.Module):
    """Copies of a student's parts, under their names. They take no gradients, nothing is dropped in them, and their
    batch norms have statistics of their own (Grill et al. 2020, BYOL; Caron et al. 2021, DINO)."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, copy.deepcopy(part).requires_grad_(False))
        for module in self.modules():
            if isinstance(module, DropPath):
                module.drop_prob = 0.0
            elif isinstance(module, PatchDropout):
                module.prob = 0.0
            elif isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0

    def begin_anew(self, student: nn.Module) -> None:
        """Be a copy of the student's parts again."""
        for name, part in self.named_children():
            part.load_state_dict(student.get_submodule(name).state_dict())

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """What its parts make of images, one after the other."""
        given = images
        for part in self.children():
            given = part(given)
        return given


class Follow(Hook):
    """Lets a teacher follow its student, once per optimizer step.

    ``teacher = m * teacher + (1 - m) * student`` with ``m = 1 - (1 - momentum) * schedule``: a cosine takes m from
    ``momentum`` to 1.

    Args:
        teacher: has the student's parts.
        parts: of the student, in the same order.
        momentum: share of the teacher that an update keeps.
        schedule: multiplies ``1 - momentum`` over time; None: it stays.
    """

    def __init__(
        self, teacher: Teacher, parts: Sequence[nn.Module], momentum: Fraction, schedule: Schedule | None = None
    ) -> None:
        self._own = list(teacher.parameters())
        self._of = [parameter for part in parts for parameter in part.parameters()]
        self._momentum, self._schedule = momentum, schedule

    @torch.no_grad()
    def after_step(self, run: Run) -> None:
        """Follow the new weights."""
        rest = 1 - self._momentum
        if self._schedule is not None:
            rest *= self._schedule(run.clock)
        torch._foreach_lerp_(local(self._own), local(self._of), rest)
