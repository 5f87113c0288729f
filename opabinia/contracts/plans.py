"""Plans: all batches of a run, known before it begins, and who reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from opabinia.contracts.data import Batch
from opabinia.runtime.durations import Duration


@dataclass(frozen=True, slots=True)
class Row:
    """One global batch of a plan: what every process must know to take its slice.

    Attributes:
        step: optimizer steps done before it.
        epoch: epochs done before it.
        first: position of its first sample in the epoch.
        count: samples over all processes.
        shape: size the batch is to have, (height, width) of pictures, (frames, height, width) of clips, or None to
            leave it to the transforms.
        lr_factor: multiplies the learning rate while this row is trained.
    """

    step: int
    epoch: int
    first: int
    count: int
    shape: tuple[int, ...] | None = None
    lr_factor: float = 1.0

    def share(self, rank: int, world: int) -> range:
        """The samples, numbered within the batch, that are for process ``rank`` of ``world``.

        Shares are contiguous, in the order of ranks, and differ in size by at most one. Of a batch with fewer samples
        than there are processes each takes all: an empty forward pass has no mean, and the mean over processes is the
        same.
        """
        if self.count < world:
            return range(self.count)
        return range(rank * self.count // world, (rank + 1) * self.count // world)

    def seen(self, world: int) -> int:
        """Samples in the shares of all processes together."""
        return self.count if self.count >= world else self.count * world


@runtime_checkable
class Plan(Protocol):
    """All global batches of a run, known before training: a pure function from step to row."""

    @property
    def total_steps(self) -> int: ...

    @property
    def epochs(self) -> int: ...

    def row(self, step: int) -> Row: ...

    def epoch_start(self, epoch: int) -> int:
        """Step of the first batch of ``epoch``, for 0 to ``epochs``; the end of the last one may lie beyond
        ``total_steps`` when the run ends within it."""
        ...

    def samples_before(self, step: int) -> int:
        """Samples in the batches before ``step``."""
        ...


@dataclass(frozen=True)
class RunSpec:
    """What a run knows of itself when its batches are laid out (``shapes``).

    Attributes:
        samples: positions in an epoch.
        batch_size: samples of one step over all processes, as the config says.
        length: of the run, likewise.
        world: number of processes.
        drop_last: leave out the incomplete batch at the end of each epoch.
    """

    samples: int
    batch_size: int
    length: Duration
    world: int = 1
    drop_last: bool = False


class BatchShape(NamedTuple):
    """A batch over all processes: how many samples, and their size as in :class:`Row`."""

    samples: int
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Stage:
    """Some epochs with the same batches.

    Attributes:
        epochs: how many, from 1 on.
        cycle: batches that are taken in turn, each epoch beginning with the first.
        lr_factor: multiplies the learning rate.
        splits: into how many parts batch norms split a process's share of the batch, if they can.
        processes: over how many processes they take their statistics, if they can.
    """

    epochs: int
    cycle: tuple[BatchShape, ...]
    lr_factor: float = 1.0
    splits: int = 1
    processes: int = 1


@dataclass(frozen=True)
class BatchSchedule:
    """All batches of a run, as a part of the family ``shapes`` lays them out.

    Attributes:
        stages: one after the other; past their end the last one goes on.
        length: of the run, which may end before they do, or behind.
        baseline: length of the run that this is to take the place of; None: that of the config.
    """

    stages: tuple[Stage, ...]
    length: Duration
    baseline: Duration | None = None


class Loader(Protocol):
    """Batches of this process in order, from any row on.

    Attributes:
        passed_over: samples that could not be read so far.
        seconds: that reading the newest batch took, in whichever process; as long as none has been, 0.
    """

    @property
    def passed_over(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    def iterate(self, start: int = 0) -> Iterator[tuple[Row, Batch]]: ...

    def close(self) -> None: ...
