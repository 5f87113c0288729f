"""The hook that empties the GPU's memory cache."""

from __future__ import annotations

import torch

from opabinia.config import register
from opabinia.contracts import Run
from opabinia.engine.hooks.periods import Periodic
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log


@register.hook(name="empty_cache")
class EmptyCache(Periodic):
    """Returns memory that torch caches to the device, against fragmentation. It costs time.

    Args:
        every: the period.
    """

    def __init__(self, *, every: Duration = Duration(1, "ep")) -> None:
        super().__init__(every)

    def act(self, run: Run) -> None:
        """Empty the cache."""
        if torch.cuda.is_available():
            before = torch.cuda.memory_reserved()
            torch.cuda.empty_cache()
            freed = (before - torch.cuda.memory_reserved()) / 2**20
            log.info("step %d: returned %.0f MB to the device", run.clock.step, freed)
        elif torch.backends.mps.is_available():
            torch.mps.empty_cache()
            log.info("step %d: emptied the device's memory cache", run.clock.step)
