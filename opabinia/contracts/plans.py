"""Plans: all global batches of a run, known before training, and the loader that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from opabinia.contracts.data import Batch
from opabinia.runtime.durations import Duration


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """One global batch of a plan: all that a rank must know to take its samples.

    Attributes:
        step: optimizer steps done before it.
        epoch: epochs done before it.
        first: position of its first sample in the epoch.
        count: samples over all ranks.
        shape: required size, (height, width) of images or (frames, height, width) of clips; None leaves it to the
            transforms.
        lr_factor: multiplies the learning rate for this batch.
    """

    step: int
    epoch: int
    first: int
    count: int
    shape: tuple[int, ...] | None = None
    lr_factor: float = 1.0

    def rank_range(self, rank: int, world: int) -> range:
        """Return the samples of one rank, numbered within the batch.

        Each rank has neighboring samples, in the order of ranks, and their numbers differ by one at most. If there are
        fewer samples than ranks, every rank takes all of them: an empty forward pass has no mean, and the mean over
        ranks stays the same.
        """
        if self.count < world:
            return range(self.count)
        return range(rank * self.count // world, (rank + 1) * self.count // world)

    def num_processed(self, world: int) -> int:
        """Return the number of samples in the shares of all ranks together."""
        return self.count if self.count >= world else self.count * world


@runtime_checkable
class Plan(Protocol):
    """All global batches of a run: a pure function from step to batch."""

    @property
    def total_steps(self) -> int: ...

    @property
    def epochs(self) -> int: ...

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of steps in an epoch, if it is the same in all."""

    def global_batch(self, step: int) -> GlobalBatch: ...

    def with_length(self, steps: int) -> Plan:
        """Return the same batches for a run of another number of steps."""

    def epoch_start(self, epoch: int) -> int:
        """Return the step of the first batch of ``epoch``, for 0 to ``epochs``. The end of the last epoch may be beyond
        ``total_steps`` if the run ends within it."""

    def samples_before(self, step: int) -> int:
        """Return the number of samples in the batches before ``step``."""


@dataclass(frozen=True)
class RunSpec:
    """The facts about a run from which its batches are planned (family ``shapes``).

    Attributes:
        samples: positions in an epoch.
        batch_size: samples of one step over all ranks, from the config.
        length: of the run, from the config.
        world: number of ranks.
        drop_last: drop the incomplete batch at the end of each epoch.
    """

    samples: int
    batch_size: int
    length: Duration
    world: int = 1
    drop_last: bool = False


class BatchShape(NamedTuple):
    """The number of samples in a global batch, and their size as in :class:`GlobalBatch`."""

    samples: int
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Stage:
    """Consecutive epochs with the same batches.

    Attributes:
        epochs: how many, at least 1.
        cycle: batch shapes that are taken in turn; each epoch begins with the first.
        lr_factor: multiplies the learning rate.
        splits: number of parts into which batch norms split a rank's share, if they can.
        processes: number of ranks over which batch norms take their statistics, if they can.
    """

    epochs: int
    cycle: tuple[BatchShape, ...]
    lr_factor: float = 1.0
    splits: int = 1
    processes: int = 1


@dataclass(frozen=True)
class BatchSchedule:
    """The batch shapes of a whole run, returned by a part of the family ``shapes``.

    Attributes:
        stages: one after the other; the last one continues to the end of the run.
        length: of the run, which may end before or after the stages.
        baseline: length of the run that this one replaces, for comparison; None: the length in the config.
        evaluations: epochs after which the run is evaluated, instead of ``evaluate.every``; None: as that says.
    """

    stages: tuple[Stage, ...]
    length: Duration
    baseline: Duration | None = None
    evaluations: tuple[int, ...] | None = None


class Loader(Protocol):
    """Batches of this rank in order, from any step on.

    Attributes:
        num_skipped: unreadable samples so far.
        seconds: time that reading the newest batch took, in whichever worker process; 0 before the first.
    """

    @property
    def num_skipped(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    def iterate(self, start: int = 0) -> Iterator[tuple[GlobalBatch, Batch]]: ...

    def close(self) -> None: ...
