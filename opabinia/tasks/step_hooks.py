"""Hooks that tasks use: calls after every step, a layer that is frozen at first."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from opabinia.contracts import Hook, Run
from opabinia.runtime.durations import Duration


class AfterStep(Hook):
    """Call a function once per optimizer step.

    A task updates its queue or memory bank by it, so that forward passes that are recomputed or belong to no step
    change nothing.

    Args:
        function: such as one that stores what the newest forward pass of the task has left for it.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def after_step(self, run: Run) -> None:
        """Call the function."""
        self._function()


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
