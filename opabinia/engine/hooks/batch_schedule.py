"""The hook that applies a batch schedule: what changes with the batches beside the batches themselves."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from opabinia.contracts import Hook, Phase, Run, Stage
from opabinia.models.norms import split_batch_norms
from opabinia.runtime.log import log
from opabinia.runtime.processes import neighbor_group


class ApplyBatchSchedule(Hook):
    """Sets how batch norms take their statistics (over parts of a batch, or over several processes), and logs each
    change of the batches.

    It is a function of the epoch, so it has no state. All processes must build it at the same time.

    Args:
        stages: stages of the run.
        norms: whether batch norms follow (see :func:`opabinia.models.norms.split_batch_norms`, called before).
    """

    def __init__(self, stages: Sequence[Stage], *, norms: bool) -> None:
        self._stages, self._norms = stages, norms
        self._starts = (0, *accumulate(stage.epochs for stage in stages[:-1]))
        self._current: int | None = None
        group_sizes = {stage.processes for stage in stages} if norms else set()
        self._groups = {processes: neighbor_group(processes) for processes in sorted(group_sizes)}

    def before_phase(self, run: Run, phase: Phase) -> None:
        """Apply the stage at the start of an epoch, or where a resumed run continues one."""
        number = bisect_right(self._starts, run.clock.epoch) - 1
        if phase.kind != "train" or number == self._current:
            return
        self._current = number
        stage = self._stages[number]
        if self._norms:
            split_batch_norms(run.task, stage.splits, self._groups[stage.processes])
        log.info("epoch %d: %s", run.clock.epoch, describe_stage(stage, norms=self._norms))


def describe_stage(stage: Stage, *, norms: bool = True) -> str:
    """Describe a stage for the log.

    Example: ``batches of 256 x 16 x 16, 128 x 23 x 23, learning rate x 2, batch norm in 16 parts``
    """
    batches = ", ".join(" x ".join(map(str, (batch.samples, *(batch.shape or ())))) for batch in stage.cycle)
    text = f"batches of {batches}, learning rate x {stage.lr_factor:g}"
    if norms and stage.processes > 1:
        return f"{text}, batch norm over {stage.processes} processes"
    return f"{text}, batch norm in {stage.splits} parts" if norms and stage.splits > 1 else text
