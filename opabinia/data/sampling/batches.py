"""Plans: the positions of an epoch that form the batch of each step. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from opabinia.contracts import GlobalBatch, Stage
from opabinia.runtime.durations import Duration
from opabinia.runtime.text import plural

_EMPTY = "the training data is empty: there is nothing to make batches of"


@dataclass(frozen=True)
class ConstantPlan:
    """Batches of one size (:class:`opabinia.contracts.Plan`).

    The last batch of an epoch is smaller if the batch size does not divide the number of samples, or is dropped
    (``drop_last``). A length in steps may end within an epoch.

    Attributes:
        samples: number of training samples.
        batch_size: samples of one optimizer step over all processes.
        length: of the whole run, in epochs (fractions are fine) or iterations; 0 means no step at all.
        drop_last: drop the incomplete batch at the end of each epoch.

    Raises:
        ValueError: there are no samples, or with ``drop_last`` no complete batch.
    """

    samples: int
    batch_size: int
    length: Duration
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(_EMPTY)
        if self.batch_size < 1:
            raise ValueError(f"a batch holds at least 1 sample, not {self.batch_size}")
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"{plural(self.samples, 'sample')} cannot fill one batch of {self.batch_size} and drop_last drops "
                f"incomplete ones: set drop_last to false or batch_size to {self.samples} or less"
            )

    @cached_property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch."""
        return self.samples // self.batch_size if self.drop_last else -(-self.samples // self.batch_size)

    @cached_property
    def total_steps(self) -> int:
        """Number of steps in the run."""
        return self.length.steps(self.steps_per_epoch)

    @cached_property
    def epochs(self) -> int:
        """Number of epochs in the run; the last may be incomplete."""
        return -(-self.total_steps // self.steps_per_epoch)

    def with_length(self, steps: int) -> ConstantPlan:
        """Return the same batches for a run of another number of steps."""
        return replace(self, length=Duration(steps, "it"))

    def global_batch(self, step: int) -> GlobalBatch:
        """Return the global batch of ``step`` (0 to total_steps - 1).

        Raises:
            IndexError: the step is out of range.
        """
        if not 0 <= step < self.total_steps:
            raise IndexError(f"step {step} of a run of {self.total_steps}")
        epoch, batch = divmod(step, self.steps_per_epoch)
        first = batch * self.batch_size
        return GlobalBatch(step=step, epoch=epoch, first=first, count=min(self.batch_size, self.samples - first))

    def epoch_start(self, epoch: int) -> int:
        """Return the step of the first batch of ``epoch``, for 0 to ``epochs``.

        The end of the last epoch lies beyond ``total_steps`` if the run ends within it.
        """
        return epoch * self.steps_per_epoch

    def samples_before(self, step: int) -> int:
        """Return the number of samples in the batches before ``step``."""
        epochs, batches = divmod(step, self.steps_per_epoch)
        samples_per_epoch = min(self.steps_per_epoch * self.batch_size, self.samples)
        return epochs * samples_per_epoch + batches * self.batch_size


@dataclass(frozen=True)
class StagedPlan:
    """Batches that change over time (:class:`opabinia.contracts.Plan`).

    In every epoch of a stage its batches are taken in turn, from the first one on, until the samples are used up; the
    last batch is smaller, or dropped (``drop_last``). Any batch is found by a binary search among the stages and
    arithmetic, so a run can be resumed in the middle of a cycle.

    Attributes:
        samples: positions in an epoch.
        stages: one after the other; the last one continues to the end of the run.
        length: of the run; epochs, and fractions of them, are those of the stages.
        drop_last: drop the incomplete batch at the end of each epoch.
        evaluations: see :class:`opabinia.contracts.BatchSchedule`.

    Raises:
        ValueError: there are no samples or stages, or a stage has no epochs or (with ``drop_last``) no complete batch.

    Example: 10 samples and a stage with the cycle 4, 2 make batches of 4, 2, 4 in each epoch, 3 steps.
    """

    samples: int
    stages: tuple[Stage, ...]
    length: Duration
    drop_last: bool = False
    evaluations: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(_EMPTY)
        if not self.stages:
            raise ValueError("a run has at least one stage")
        for number, (stage, steps) in enumerate(zip(self.stages, self._steps, strict=True)):
            counts = [shape.samples for shape in stage.cycle]
            if stage.epochs < 1 or not counts or min(counts) < 1:
                raise ValueError(
                    f"stage {number} has {plural(stage.epochs, 'epoch')} with batches of {counts}; a stage has at "
                    "least one epoch and one batch, and a batch at least one sample"
                )
            if not steps:
                raise ValueError(
                    f"stage {number}: {plural(self.samples, 'sample')} cannot fill its first batch of {counts[0]} and "
                    "drop_last drops incomplete ones: set drop_last to false or batch_size lower"
                )

    @cached_property
    def _sizes(self) -> tuple[tuple[int, ...], ...]:
        """Number of samples before each batch of the cycle, and after the last one, by stage."""
        return tuple((0, *accumulate(shape.samples for shape in stage.cycle)) for stage in self.stages)

    @cached_property
    def _steps(self) -> tuple[int, ...]:
        """Number of steps in an epoch, by stage."""
        return tuple(self._steps_of(sizes) for sizes in self._sizes)

    def _steps_of(self, sizes: tuple[int, ...]) -> int:
        if sizes[-1] < 1:
            return 0
        cycles, rest = divmod(self.samples, sizes[-1])
        complete = bisect_right(sizes, rest) - 1
        return cycles * (len(sizes) - 1) + complete + (not self.drop_last and rest > sizes[complete])

    @cached_property
    def _first_epochs(self) -> tuple[int, ...]:
        return (0, *accumulate(stage.epochs for stage in self.stages))[:-1]

    @cached_property
    def _first_steps(self) -> tuple[int, ...]:
        of_stages = zip(self.stages, self._steps, strict=True)
        return (0, *accumulate(stage.epochs * steps for stage, steps in of_stages))[:-1]

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of steps in an epoch, if it is the same in all; else None."""
        return self._steps[0] if len(set(self._steps)) == 1 else None

    @cached_property
    def total_steps(self) -> int:
        """Number of steps in the run."""
        even = self.steps_per_epoch
        return self.length.steps(even) if even else self.length.steps_from(self.epoch_start)

    @cached_property
    def epochs(self) -> int:
        """Number of epochs in the run; the last may be incomplete."""
        return self._locate(self.total_steps - 1)[1] + 1 if self.total_steps else 0

    def _locate(self, step: int) -> tuple[int, int, int]:
        """Return the stage of ``step``, its epoch in the run, and its number in the epoch."""
        number = bisect_right(self._first_steps, step) - 1
        epoch, batch = divmod(step - self._first_steps[number], self._steps[number])
        return number, self._first_epochs[number] + epoch, batch

    def _samples_before(self, number: int, batch: int) -> int:
        """Return the number of samples before this batch in an epoch of a stage."""
        sizes = self._sizes[number]
        cycles, within = divmod(batch, len(sizes) - 1)
        return min(self.samples, cycles * sizes[-1] + sizes[within])

    def with_length(self, steps: int) -> StagedPlan:
        """Return the same batches for a run of another number of steps."""
        return replace(self, length=Duration(steps, "it"))

    def global_batch(self, step: int) -> GlobalBatch:
        """Return the global batch of ``step`` (0 to total_steps - 1).

        Raises:
            IndexError: the step is out of range.
        """
        if not 0 <= step < self.total_steps:
            raise IndexError(f"step {step} of a run of {self.total_steps}")
        number, epoch, batch = self._locate(step)
        stage, first = self.stages[number], self._samples_before(number, batch)
        size, shape = stage.cycle[batch % len(stage.cycle)]
        return GlobalBatch(step, epoch, first, min(size, self.samples - first), shape, stage.lr_factor)

    def epoch_start(self, epoch: int) -> int:
        """Return the step of the first batch of ``epoch``, from 0 on; the last stage continues beyond its end.

        The end of the last epoch lies beyond ``total_steps`` if the run ends within it.
        """
        number = bisect_right(self._first_epochs, epoch) - 1
        return self._first_steps[number] + (epoch - self._first_epochs[number]) * self._steps[number]

    def samples_before(self, step: int) -> int:
        """Return the number of samples in the batches before ``step``."""
        number, epoch, batch = self._locate(step)
        seen = 0
        for earlier, stage in enumerate(self.stages[:number]):
            seen += stage.epochs * self._samples_before(earlier, self._steps[earlier])
        in_stage = epoch - self._first_epochs[number]
        return seen + in_stage * self._samples_before(number, self._steps[number]) + self._samples_before(number, batch)


def evaluation_batches(samples: int, batch_size: int, rank: int, world: int) -> Iterator[GlobalBatch]:
    """Yield the batches of process ``rank`` in one pass over all samples: whole ones, in turn.

    Batch i belongs to process ``i % world``, so each forward pass sees the same samples with any number of processes.
    """
    for step in range(rank, -(-samples // batch_size), world):
        first = step * batch_size
        yield GlobalBatch(step=step, epoch=0, first=first, count=min(batch_size, samples - first))
