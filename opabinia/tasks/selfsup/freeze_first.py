"""A hook that freezes a layer at the beginning of a run."""

from __future__ import annotations

from torch import nn

from opabinia.contracts import Hook, Run
from opabinia.runtime.durations import Duration


class FreezeFirstSteps(Hook):
    """Drop the gradients of a layer at the beginning of a run, so that neither momentum nor weight decay changes it
    (SwAV, appendix A.1; DINO, appendix C: training is more stable).

    Args:
        layer: the frozen layer.
        duration: how long it is frozen.
    """

    def __init__(self, layer: nn.Module, duration: Duration) -> None:
        self._layer, self._duration = layer, duration

    def after_backward(self, run: Run) -> None:
        """Drop the gradients."""
        if run.clock.step < run.clock.steps(self._duration):
            for param in self._layer.parameters():
                param.grad = None
