"""Positions to batches: which samples make up step k, and which of them are this process's. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from opabinia.contracts import Row
from opabinia.runtime.durations import Duration


@dataclass(frozen=True)
class ConstantPlan:
    """Batches of one size (:class:`opabinia.contracts.Plan`).

    The last batch of an epoch is smaller when the size does not divide the number of samples, or is left out
    (``drop_last``). A length in steps may end in the middle of an epoch.

    Attributes:
        samples: number of training samples.
        batch_size: samples of one optimizer step over all processes.
        length: of the whole run, in epochs (fractions are fine) or iterations; 0 means no step at all.
        drop_last: leave out the incomplete batch at the end of each epoch.
        shapes: from the progress at the beginning of an epoch to the size of its batches.

    Raises:
        ValueError: there is no sample, or no complete batch while ``drop_last`` asks for one.
    """

    samples: int
    batch_size: int
    length: Duration
    drop_last: bool = False
    shapes: Callable[[float], tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError("the training data is empty: there is nothing to make batches of")
        if self.batch_size < 1:
            raise ValueError(f"a batch holds at least 1 sample, not {self.batch_size}")
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"{self.samples} samples do not fill one batch of {self.batch_size} and drop_last leaves out "
                f"incomplete ones: set drop_last to false or batch_size to {self.samples} or less"
            )

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch."""
        return self.samples // self.batch_size if self.drop_last else -(-self.samples // self.batch_size)

    @cached_property
    def total_steps(self) -> int:
        """Steps of the run."""
        return self.length.steps(self.steps_per_epoch)

    @cached_property
    def epochs(self) -> int:
        """Epochs of the run; the last may be cut short."""
        return -(-self.total_steps // self.steps_per_epoch)

    def row(self, step: int) -> Row:
        """The global batch of ``step`` (0 to total_steps - 1).

        Raises:
            IndexError: the run has no such step.
        """
        if not 0 <= step < self.total_steps:
            raise IndexError(f"step {step} of a run of {self.total_steps}")
        epoch, batch = divmod(step, self.steps_per_epoch)
        first = batch * self.batch_size
        shape = self.shapes(epoch * self.steps_per_epoch / self.total_steps) if self.shapes else None
        return Row(step=step, epoch=epoch, first=first, count=min(self.batch_size, self.samples - first), shape=shape)

    def epoch_start(self, epoch: int) -> int:
        """Step of the first batch of ``epoch``, for 0 to ``epochs``.

        The end of the last epoch lies beyond ``total_steps`` when the run ends within it.
        """
        return epoch * self.steps_per_epoch

    def samples_before(self, step: int) -> int:
        """Samples in the batches before ``step``."""
        epochs, batches = divmod(step, self.steps_per_epoch)
        samples_per_epoch = min(self.steps_per_epoch * self.batch_size, self.samples)
        return epochs * samples_per_epoch + batches * self.batch_size


def evaluation_rows(samples: int, batch_size: int, rank: int, world: int) -> Iterator[Row]:
    """Batches of process ``rank`` in one pass over all samples: whole ones, in turn.

    Batch i belongs to process ``i % world``, so each forward pass sees the same samples on any number of processes.
    """
    for step in range(rank, -(-samples // batch_size), world):
        first = step * batch_size
        yield Row(step=step, epoch=0, first=first, count=min(batch_size, samples - first))
