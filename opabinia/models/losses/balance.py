"""Loss balancing in multi-task training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Clock, LossBalance


@register.balance(name="fixed")
class FixedWeights(LossBalance):
    """The weights of the config, unchanged."""

    def __init__(self, names: Sequence[str], /) -> None:
        super().__init__(names)

    def forward(self, losses: Mapping[str, Tensor], shared: Sequence[nn.Parameter], clock: Clock) -> dict[str, Tensor]:
        """Return the losses as they are."""
        return dict(losses)


@register.balance(name="uncertainty")
class UncertaintyWeights(LossBalance):
    """Weights that are learned as the uncertainty of each task (Kendall et al. 2018, equation 10).

    The loss of a task is ``exp(-s) * loss + s / 2`` with the log variance ``s``, a trained parameter that begins at 0.
    Exclude it from weight decay with ``param_groups`` if the optimizer's is large.
    """

    def __init__(self, names: Sequence[str], /) -> None:
        super().__init__(names)
        self.log_variances = nn.Parameter(torch.zeros(len(self.names)))

    def forward(self, losses: Mapping[str, Tensor], shared: Sequence[nn.Parameter], clock: Clock) -> dict[str, Tensor]:
        """Return the weighted losses with their regularization."""
        rows = {name: self.log_variances[self.names.index(name)] for name in losses}
        return {name: (-rows[name]).exp() * loss + rows[name] / 2 for name, loss in losses.items()}

    def weights(self) -> dict[str, Tensor]:
        """Return ``exp(-s)`` of each task."""
        return dict(zip(self.names, (-self.log_variances.detach()).exp(), strict=True))
