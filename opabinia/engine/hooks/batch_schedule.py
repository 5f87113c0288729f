"""What else changes with the batches: how norms take their statistics, and a line of the log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from opabinia.contracts import Hook, Phase, Run, Stage
from opabinia.models.norms import split_norms
from opabinia.runtime.log import log
from opabinia.runtime.processes import neighbor_group


class ApplyBatchSchedule(Hook):
    """Sets the parts in which batch norms see a process's share of the batch, or with which processes they see it
    together, and tells each change of the batches.

    A function of the epoch, so there is nothing to save: a resumed run sets what it was. To be made by all processes at
    the same time.

    Args:
        stages: of the run.
        norms: whether norms follow (see :func:`opabinia.models.norms.split_norms`, which was called before).
    """

    def __init__(self, stages: Sequence[Stage], *, norms: bool) -> None:
        self._stages, self._norms = stages, norms
        self._starts = (0, *accumulate(stage.epochs for stage in stages[:-1]))
        self._present: int | None = None
        asked = {stage.processes for stage in stages} if norms else set()
        self._groups = {processes: neighbor_group(processes) for processes in sorted(asked)}

    def before_phase(self, run: Run, phase: Phase) -> None:
        """At the beginning of an epoch, and where one is gone on with."""
        number = bisect_right(self._starts, run.clock.epoch) - 1
        if phase.kind != "train" or number == self._present:
            return
        self._present = number
        stage = self._stages[number]
        if self._norms:
            split_norms(run.task, stage.splits, self._groups[stage.processes])
        log.info("epoch %d: %s", run.clock.epoch, described(stage, norms=self._norms))


def described(stage: Stage, *, norms: bool = True) -> str:
    """A stage for people.

    Example: ``batches of 256 x 16 x 16, 128 x 23 x 23, learning rate x 2, norms in 16 parts``
    """
    batches = ", ".join(" x ".join(map(str, (one.samples, *(one.shape or ())))) for one in stage.cycle)
    return f"batches of {batches}, learning rate x {stage.lr_factor:g}{_norms(stage) if norms else ''}"


def _norms(stage: Stage) -> str:
    if stage.processes > 1:
        return f", norms over {stage.processes} processes"
    return f", norms in {stage.splits} parts" if stage.splits > 1 else ""
