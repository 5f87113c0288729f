"""What learns nothing at the beginning of a run."""

from __future__ import annotations

from torch import nn

from opabinia.contracts import Hook, Run
from opabinia.runtime.durations import Duration


class FreezeAtFirst(Hook):
    """Drops the gradients of a layer at the beginning of a run, so that momentum and weight decay leave it alone, too
    (SwAV, appendix A.1; DINO, appendix C: learning is steadier).

    Args:
        layer: what learns nothing.
        duration: for so long.
    """

    def __init__(self, layer: nn.Module, duration: Duration) -> None:
        self._layer, self._duration = layer, duration

    def after_backward(self, run: Run) -> None:
        """Drop them."""
        if run.clock.step < run.clock.steps(self._duration):
            for parameter in self._layer.parameters():
                parameter.grad = None
