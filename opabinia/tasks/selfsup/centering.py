"""Centering of a teacher's outputs, so that they do not become the same for all images (collapse)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Fraction, Hook, Run
from opabinia.models.losses.clustering import assign_prototypes, prototype_potentials
from opabinia.models.losses.self_distillation import centered_softmax, update_center
from opabinia.runtime.processes import all_reduce_mean
from opabinia.tasks.selfsup.base import gather_views


class MeanCentering(nn.Module):
    """Subtract a running mean of the teacher's logits (Caron et al. 2021, DINO, equation 4).

    Args:
        width: K, number of outputs.
        momentum: fraction of the center that a step keeps.

    Attributes:
        value: the center (K); the same on all processes, and saved.
    """

    value: Tensor

    def __init__(self, width: int, momentum: Fraction) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(width))
        self._momentum = momentum
        self._sum: Tensor | float = 0.0
        self._rows = 0

    def forward(self, views: Sequence[Tensor], temperature: float, ids: Sequence[str]) -> list[Tensor]:
        """Return targets for a teacher's logits (B x ... x K per view), and add the logits to those of the step."""
        for view in views:
            rows = view.detach().float().flatten(0, -2)
            self._sum = self._sum + rows.sum(0)
            self._rows += len(rows)
        return [centered_softmax(view, self.value, temperature) for view in views]

    def reset(self) -> None:
        """Forget the logits of the step."""
        self._sum, self._rows = 0.0, 0

    @torch.no_grad()
    def update(self) -> None:
        """Move the center towards the mean logits of this step over all processes, unless they are not finite."""
        if isinstance(self._sum, Tensor):
            # Processes may have different numbers of samples, so sums and counts are reduced, not means.
            total, rows = all_reduce_mean([self._sum, self._sum.new_full((), self._rows)])
            updated = update_center(self.value, total / rows, self._momentum)
            # A step with non-finite losses may be skipped; the center must survive it.
            self.value.copy_(torch.where(updated.isfinite().all(), updated, self.value))
        self.reset()


class SinkhornCentering(nn.Module):
    """Give all outputs equal shares of the batch of all processes by three Sinkhorn-Knopp iterations (Caron et al.
    2020, SwAV; Oquab et al. 2023, DINOv2, section 4). It has no state."""

    def forward(self, views: Sequence[Tensor], temperature: float, ids: Sequence[str]) -> list[Tensor]:
        """Return targets for a teacher's logits (B x ... x K per view)."""
        logits = torch.cat([view.flatten(0, -2) for view in gather_views(views, ids)])
        potentials = prototype_potentials(logits, temperature)
        return [assign_prototypes(view.flatten(0, -2), potentials, temperature).view(view.shape) for view in views]


class UpdateCenter(Hook):
    """Update a center once per optimizer step."""

    def __init__(self, centering: MeanCentering) -> None:
        self._centering = centering

    def before_step(self, run: Run, batch: Batch) -> None:
        """Forget logits of forward passes outside of training steps."""
        self._centering.reset()

    def after_step(self, run: Run) -> None:
        """Update the center."""
        self._centering.update()
