"""What keeps a teacher's outputs from being the same for all images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Fraction, Hook, Run
from opabinia.models.losses.clustering import assigned, evening
from opabinia.models.losses.self_distillation import centred, moved_centre
from opabinia.runtime.processes import all_reduce_mean
from opabinia.tasks.selfsup.base import of_all_processes


class Centre(nn.Module):
    """Takes the mean of what a teacher says, over images and steps, away from it (Caron et al. 2021, DINO, equation 4).

    Args:
        width: K, of the outputs.
        momentum: share of the centre that a step keeps.

    Attributes:
        value: the centre (K); the same on all processes, and saved.
    """

    value: Tensor

    def __init__(self, width: int, momentum: Fraction) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(width))
        self._momentum = momentum
        self._sum: Tensor | float = 0.0
        self._rows = 0

    def forward(self, views: Sequence[Tensor], temperature: float, ids: Sequence[str]) -> list[Tensor]:
        """A teacher's logits (B x ... x K for each view) to a student's targets; :meth:`move` will know of them."""
        for view in views:
            rows = view.detach().float().flatten(0, -2)
            self._sum = self._sum + rows.sum(0)
            self._rows += len(rows)
        return [centred(view, self.value, temperature) for view in views]

    def forget(self) -> None:
        """A new step begins."""
        self._sum, self._rows = 0.0, 0

    @torch.no_grad()
    def move(self) -> None:
        """Follow what the teacher said in this step, on all processes; what is not finite changes nothing."""
        if isinstance(self._sum, Tensor):
            # Shares of a batch may differ in size, so sums and counts meet, not means.
            whole, rows = all_reduce_mean([self._sum, self._sum.new_full((), self._rows)])
            moved = moved_centre(self.value, whole / rows, self._momentum)
            # A step may be left out because of it, and the next ones are to go on.
            self.value.copy_(torch.where(moved.isfinite().all(), moved, self.value))
        self.forget()


class Even(nn.Module):
    """Lets all outputs of a teacher have equal shares of the batch of all processes, by three iterations of Sinkhorn
    and Knopp (Caron et al. 2020, SwAV; Oquab et al. 2023, DINOv2, section 4). It has no state."""

    def forward(self, views: Sequence[Tensor], temperature: float, ids: Sequence[str]) -> list[Tensor]:
        """A teacher's logits (B x ... x K for each view) to a student's targets."""
        everybody = torch.cat([view.flatten(0, -2) for view in of_all_processes(views, ids)])
        shift = evening(everybody, temperature)
        return [assigned(view.flatten(0, -2), shift, temperature).view(view.shape) for view in views]


class MoveCentre(Hook):
    """Moves a centre once per optimizer step."""

    def __init__(self, centre: Centre) -> None:
        self._centre = centre

    def before_step(self, run: Run, batch: Batch) -> None:
        """Forget what was said outside of training steps."""
        self._centre.forget()

    def after_step(self, run: Run) -> None:
        """Move the centre."""
        self._centre.move()
