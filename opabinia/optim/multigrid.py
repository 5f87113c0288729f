"""Multigrid training: batches, frames and sizes over time, as numbers (Wu et al. 2020, arXiv:1912.00998).

Early epochs see few frames of small size in large batches, the last ones what the baseline sees in all of its epochs.
Two cycles change the shape. The *long* one goes through its shapes once between every two drops of the learning rate,
with as many steps for each shape; the *short* one changes the size from step to step. Every shape has the batch that
makes a step cost about the same. Behind the last drop all is trained in the last shape of the long cycle
(fine-tuning).

The paper leaves much open; the rules are those of its authors' code (SlowFast, ``utils/multigrid.py`` and
``datasets/multigrid_helper.py``), checked against numbers computed with it. Where that code cannot work (a long cycle
without a short one, rows without epochs, batches of nothing) what is meant is done, or refused by
:func:`refuse_wrong`.

Everything here is a pure function. B0, T0, S0 stand for the baseline's batch, frames, and height and width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

LONG_CYCLE: tuple[tuple[float, float], ...] = ((0.25, math.sqrt(0.5)), (0.5, math.sqrt(0.5)), (0.5, 1.0), (1.0, 1.0))
"""The paper's shapes of a long cycle, as factors of T0 and S0."""

SHORT_CYCLE: tuple[float, ...] = (0.5, math.sqrt(0.5))
"""The paper's sizes of a short cycle before the full one, as factors of S0."""

_WHOLE = 0.01
"""T0 times a factor may miss a whole number by so much: people write 0.3333."""


@dataclass(frozen=True)
class Multigrid:
    """A baseline, and what is to be made of it.

    Attributes:
        epochs: of the baseline.
        batch_size: B0, over all processes.
        size: S0, height and width in pixels.
        frames: T0; None for pictures, which only change in size.
        milestones: epochs of the baseline, ascending, after which its learning rate drops.
        gamma: factor at each of them; 1 leaves the drops to a schedule of its own.
        epoch_factor: how many times the baseline's epochs there are in the end. Without cycles it is not used.
        long_cycle: factors of frames and size, from small to full; empty for none.
        short_cycle: factors of the size in the first steps of each short cycle, whose last step has the full one;
            empty for none.
        short_cycle_relative_to: what they are factors of: S0, as the authors' code has it (at a size of 158 the paper's
            short cycle is 112, 158, 158), or the size in the long cycle, as the paper may be read (79, 112, 158).
        size_multiple: sizes are rounded to multiples of it; S0 is one.
    """

    epochs: float
    batch_size: int
    size: int
    frames: int | None = None
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    epoch_factor: float = 1.5
    long_cycle: tuple[tuple[float, float], ...] = LONG_CYCLE
    short_cycle: tuple[float, ...] = SHORT_CYCLE
    short_cycle_relative_to: Literal["default", "base"] = "default"
    size_multiple: int = 1


class Shape(NamedTuple):
    """One shape of the long cycle: its batch as a multiple of B0, its frames (1 of pictures), its size in pixels."""

    batch_factor: int
    frames: int
    size: int


class Row(NamedTuple):
    """Epochs with one shape.

    Attributes:
        stage: drops of the learning rate before it.
        shape: of the long cycle.
        end: the epoch at which it is over; the row before says where it begins.
    """

    stage: int
    shape: Shape
    end: int


class Turn(NamedTuple):
    """One step of a short cycle: samples over all processes, and their size in pixels."""

    batch_size: int
    size: int


@dataclass(frozen=True)
class Stretch:
    """Epochs with one shape of the long cycle and one learning rate.

    Attributes:
        stage: drops of the baseline's learning rate before the row that this is, or is a half of.
        shape: of the long cycle.
        begin, end: first epoch, and the one behind the last.
        lr_factor: multiplies the baseline's first learning rate.
        turns: the steps of the short cycle; a single one if there is none.
    """

    stage: int
    shape: Shape
    begin: int
    end: int
    lr_factor: float
    turns: tuple[Turn, ...]

    @property
    def epochs(self) -> int:
        """How many."""
        return self.end - self.begin


# --- shapes -----------------------------------------------------------------------------------------------------------


def long_shapes(grid: Multigrid) -> tuple[Shape, ...]:
    """The shapes of the long cycle; without one the full shape alone.

    The batch factor is ``T0 S0^2 / (T S^2)`` to the nearest whole number, with T and S already rounded.

    Example: of 32 frames of 224 x 224 the paper's factors make (8, 8, 158), (4, 16, 158), (2, 16, 224), (1, 32, 224).
    """
    volume = _frames(grid) * grid.size**2
    shapes = []
    for of_frames, of_size in grid.long_cycle or ((1.0, 1.0),):
        frames, size = round(_frames(grid) * of_frames), _rounded(grid, grid.size * of_size)
        shapes.append(Shape(round(volume / max(1, frames * size**2)), frames, size))
    return tuple(shapes)


def short_sizes(grid: Multigrid, size: int) -> tuple[int, ...]:
    """Sizes in the steps of a short cycle, of which ``size``, that of the long cycle, is the last.

    Example: of S0 = 224 at 158 they are 112, 158, 158; relative to ``base`` 79, 112, 158.
    """
    return (*(_rounded(grid, exact) for exact in _exact_sizes(grid, size)), size)


def short_cycle(grid: Multigrid, shape: Shape) -> tuple[Turn, ...]:
    """The steps of a short cycle at a shape of the long one.

    A batch is that of the long cycle times ``(S / s)^2`` to the nearest whole number, s being the size before it is
    rounded to pixels (with a ``size_multiple`` behind).

    Example: of B0 = 64, S0 = 224 at (8, 8, 158): 1024 of 112, 512 of 158, 512 of 158.
    """
    batch = grid.batch_size * shape.batch_factor
    sizes = short_sizes(grid, shape.size)
    exact = _exact_sizes(grid, shape.size) if grid.size_multiple == 1 else sizes[:-1]
    sizes_of_batches = [batch * round((shape.size / one) ** 2) for one in exact]
    return tuple(map(Turn, (*sizes_of_batches, batch), sizes))


def mean_batch(grid: Multigrid, shape: Shape) -> float:
    """The mean batch of the short cycle as a multiple of B0, as the epochs are divided by it.

    Each is ``T0 S0^2 / (T s^2)`` to the nearest whole number.

    Example: of the paper's four shapes 32/3, 16/3, 14/3 and 7/3.
    """
    volume = _frames(grid) * grid.size**2
    exact = _exact_sizes(grid, shape.size) if grid.size_multiple == 1 else short_sizes(grid, shape.size)[:-1]
    factors = [round(volume / (max(1, shape.frames) * float(size) ** 2)) for size in (*exact, shape.size)]
    return sum(factors) / len(factors)


def _frames(grid: Multigrid) -> int:
    return grid.frames or 1


def _exact_sizes(grid: Multigrid, size: int) -> tuple[float, ...]:
    full = grid.size if grid.short_cycle_relative_to == "default" else size
    return tuple(full * factor for factor in grid.short_cycle)


def _rounded(grid: Multigrid, size: float) -> int:
    return max(1, round(size / grid.size_multiple)) * grid.size_multiple


# --- time -------------------------------------------------------------------------------------------------------------


def rows(grid: Multigrid) -> tuple[Row, ...]:
    """The shapes over time.

    Between two milestones the long cycle is gone through once, a shape for a share of the epochs in proportion to its
    mean batch, so that all have as many steps. The last row, behind the last milestone, saves as large a share of the
    steps as all before it. Then all is stretched to ``epochs * epoch_factor``, and ends are rounded.

    Without a long cycle only the milestones are stretched (and cut to whole epochs); without a short one, too, they
    stay where they are. A row may have no epochs: see :func:`refuse_wrong`.

    Raises:
        ValueError: there is a long cycle and no milestone.
    """
    starts = (0, *grid.milestones)
    if not grid.long_cycle:
        (shape,) = long_shapes(grid)
        factor = grid.epoch_factor if grid.short_cycle else 1
        ends = (int(end * factor) for end in (*grid.milestones, grid.epochs))
        return tuple(Row(stage, shape, end) for stage, end in enumerate(ends))
    if not grid.milestones:
        raise ValueError(
            "milestones: a long cycle wants at least one, behind which the last shape is trained alone; with gamma 1 "
            "the learning rate does not drop there"
        )
    shapes = long_shapes(grid)
    means = [mean_batch(grid, shape) for shape in shapes]
    planned: list[tuple[int, Shape, float]] = []
    steps = 0.0
    for stage, (start, end) in enumerate(pairwise(starts)):
        for shape, mean in zip(shapes, means, strict=True):
            epochs = (end - start) * mean / sum(means)
            steps += epochs / mean
            planned.append((stage, shape, epochs))
    saving = grid.milestones[-1] / steps
    planned.append((len(grid.milestones), shapes[-1], (grid.epochs - grid.milestones[-1]) / saving * means[-1]))

    stretch = grid.epochs * grid.epoch_factor / sum(epochs for *_, epochs in planned)
    found, passed = [], 0.0
    for stage, shape, epochs in planned:
        passed += epochs * stretch
        found.append(Row(stage, shape, round(passed)))
    return tuple(found)


def learning_rates(grid: Multigrid) -> tuple[tuple[int, float], ...]:
    """From which epoch on the baseline's first learning rate is multiplied by what.

    ``gamma ** stage`` times the batch factor of the long cycle (linear scaling; the short cycle changes nothing). The
    first half of the fine-tuning keeps the factor of the row before it.
    """
    found = rows(grid)
    factors = [grid.gamma**row.stage * row.shape.batch_factor for row in found]
    starts = [0, *(row.end for row in found)]
    if not grid.long_cycle:
        return tuple(zip(starts[:-1], factors, strict=True))
    starts[-1] = (starts[-2] + starts[-1]) // 2
    return tuple(zip(starts, [*factors[:-1], factors[-2], factors[-1]], strict=True))


def stretches(grid: Multigrid) -> tuple[Stretch, ...]:
    """The whole of it: the rows, the last one of a long cycle in two halves, with batches and learning rates."""
    found = list(rows(grid))
    if grid.long_cycle:
        found.append(found[-1])
    rates = learning_rates(grid)
    ends = [*(start for start, _ in rates[1:]), found[-1].end]
    return tuple(
        Stretch(row.stage, row.shape, start, end, factor, short_cycle(grid, row.shape))
        for row, (start, factor), end in zip(found, rates, ends, strict=True)
    )


# --- what goes with a shape -------------------------------------------------------------------------------------------


def strides(stride: int, full_frames: int, frames: int) -> tuple[int, int]:
    """Between which two numbers, both included, the stride of a clip of ``frames`` frames is drawn.

    The longest clip spans as much time as one of ``full_frames``.

    Args:
        stride: of the baseline.
        full_frames: T0.
        frames: of the clip.

    Example: ``strides(2, 32, 8)`` is (2, 8).
    """
    return stride, max(stride, stride * (full_frames // frames))


def least_side(low: int, size: int, full_size: int) -> int:
    """The lower end of the range of which the short side is drawn before a crop; the upper end stays as it is.

    So the smaller a crop is, the wider is the range of what it may show (the code calls it the span of the grid).

    Args:
        low: lower end at the size S0, in pixels.
        size: of the crop.
        full_size: S0.

    Example: ``least_side(256, 158, 224)`` is 181.
    """
    return round(low * size / full_size)


class Norm(NamedTuple):
    """Over which samples a batch norm takes its statistics.

    Attributes:
        splits: into how many parts a process's share of the batch is split, each with statistics of its own.
        processes: over how many processes they are taken.
    """

    splits: int = 1
    processes: int = 1


def norm(batch_size: int, world: int, base: int = 8) -> Norm:
    """How batch norms keep to about ``base`` samples, at the batch of a shape of the long cycle.

    The number of splits is kept through the short cycle, whose larger batches make the parts larger. It is never 0:
    where a process has fewer samples than ``base`` statistics are taken over several.

    Args:
        batch_size: of the long cycle, over all processes.
        world: number of processes.
        base: samples that statistics are to be taken over.

    Example: of 8 processes with 8 in mind, 512 samples are split 8-fold; 32 are taken over 2 processes.
    """
    ratio = batch_size / world / base
    return Norm(splits=int(ratio)) if ratio >= 1 else Norm(processes=int(1 / ratio))


def global_batch(per_card: int, cards: int) -> int:
    """The batch over all processes, of a PaddleVideo config, which tells it for each card."""
    return per_card * cards


# --- what is saved ----------------------------------------------------------------------------------------------------


class Account(NamedTuple):
    """What a schedule costs, in epochs of the baseline.

    Attributes:
        baseline: epochs of the baseline.
        passes: over the data.
        steps: optimizer steps, divided by those in an epoch of the baseline.
        cost: likewise, each step weighted by the pixels in it.
    """

    baseline: float
    passes: int
    steps: float
    cost: float

    @property
    def fewer_steps(self) -> float:
        """How many times fewer there are."""
        return self.baseline / self.steps

    @property
    def cheaper(self) -> float:
        """How many times fewer pixels are computed, which is close to the saving of time where reading keeps up."""
        return self.baseline / self.cost


def account(grid: Multigrid) -> Account:
    """What is saved, without the odd batches at the ends of epochs: a row of E epochs has ``E / mean_batch`` steps."""
    full = grid.batch_size * _frames(grid) * grid.size**2
    steps, cost, begin = 0.0, 0.0, 0
    for row in rows(grid):
        turns = short_cycle(grid, row.shape)
        of_row = (row.end - begin) / mean_batch(grid, row.shape)
        pixels = sum(turn.batch_size * row.shape.frames * turn.size**2 for turn in turns) / len(turns)
        steps, cost, begin = steps + of_row, cost + of_row * pixels / full, row.end
    return Account(grid.epochs, begin, steps, cost)


# --- what cannot be meant ---------------------------------------------------------------------------------------------


def refuse_wrong(grid: Multigrid, world: int = 1, *, empty: bool = False) -> None:
    """Refuse what cannot be trained, or not so.

    Args:
        grid: the schedule.
        world: number of processes.
        empty: whether rows without epochs are fine; they are left out.

    Raises:
        ValueError: milestones do not lie in the baseline in ascending order; a size is no multiple of
            ``size_multiple``; frames are no whole number; a batch is empty or does not divide over the processes; a
            short cycle's size is larger than that of the long cycle; a row has no epochs. The text names the row.
    """
    marks = (0, *grid.milestones, grid.epochs)
    if any(later <= earlier for earlier, later in pairwise(marks)):
        raise ValueError(
            f"milestones: {list(grid.milestones)} are to ascend between epoch 0 and {grid.epochs:g}, the baseline's end"
        )
    if grid.size % grid.size_multiple:
        raise ValueError(f"size: {grid.size} is no multiple of size_multiple ({grid.size_multiple})")
    for number, (of_frames, of_size) in enumerate(grid.long_cycle):
        exact = _frames(grid) * of_frames
        if round(exact) < 1 or abs(exact - round(exact)) > _WHOLE:
            of = f"{grid.frames} frames" if grid.frames else "a picture, which has one frame,"
            raise ValueError(
                f"long_cycle.{number}: {of} times {of_frames:g} is {exact:g}, which is to be a whole number from 1 on"
            )
        if not 0 < of_size <= 1 or of_frames > 1:
            raise ValueError(f"long_cycle.{number}: factors are above 0 and at most 1, not {of_frames:g}, {of_size:g}")
    for number, stretch in enumerate(stretches(grid)):
        _refuse_turns(grid, stretch, _named(grid, number, stretch), world)
        if not stretch.epochs and not empty:
            raise ValueError(
                f"{_named(grid, number, stretch)}: it has no epochs; train longer, or with other milestones or a "
                "larger epoch_factor, or leave such rows out (leave_out_empty)"
            )


def _refuse_turns(grid: Multigrid, stretch: Stretch, row: str, world: int) -> None:
    for turn in stretch.turns:
        if turn.size > stretch.shape.size:
            raise ValueError(
                f"{row}: the short cycle's size {turn.size} is larger than {stretch.shape.size}, the long cycle's; "
                "take smaller factors, or short_cycle_relative_to: base"
            )
        if turn.batch_size < 1:
            raise ValueError(f"{row}: the batch of size {turn.size} would have no samples; take other factors")
        if turn.batch_size % world:
            raise ValueError(
                f"{row}: its batch of {turn.batch_size} does not divide over {world} processes; take a batch_size that "
                f"is a multiple of {world} ({grid.batch_size} now)"
            )


def _named(grid: Multigrid, number: int, stretch: Stretch) -> str:
    frames = f"{stretch.shape.frames} frames of " if grid.frames else ""
    size = f"{stretch.shape.size} x {stretch.shape.size}"
    return (
        f"row {number} (epochs {stretch.begin} to {stretch.end}, {frames}{size}, batch {stretch.turns[-1].batch_size})"
    )
