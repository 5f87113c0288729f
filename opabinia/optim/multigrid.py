"""Multigrid training schedules: batch size, frames and image size over time (Wu et al. 2020, arXiv:1912.00998).

Early epochs train on few frames of small size in large batches, the last ones on the shape of the baseline. Two cycles
change the shape. The *long* cycle runs through its shapes once between two drops of the learning rate, with the same
number of steps for each shape; the *short* cycle changes the size from step to step. Every shape has the batch size at
which a step costs about the same. After the last drop everything is trained in the last shape of the long cycle
(fine-tuning).

The paper leaves much open; the rules are those of its authors' code (SlowFast, ``utils/multigrid.py`` and
``datasets/multigrid_helper.py``), tested against numbers computed with it. Where that code does not work (a long cycle
without a short one, intervals without epochs, empty batches), this one follows the paper, or :func:`validate` rejects
the grid.

Everything here is a pure function. B0, T0, S0 are the baseline's batch size, number of frames, and height and width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

LONG_CYCLE: tuple[tuple[float, float], ...] = ((0.25, math.sqrt(0.5)), (0.5, math.sqrt(0.5)), (0.5, 1.0), (1.0, 1.0))
"""The shapes of the paper's long cycle, as factors of T0 and S0."""

SHORT_CYCLE: tuple[float, ...] = (0.5, math.sqrt(0.5))
"""The sizes of the paper's short cycle before the full size, as factors of S0."""

_TOLERANCE = 0.01
"""Largest deviation of T0 times a factor from a whole number: users write 0.3333."""


@dataclass(frozen=True)
class Multigrid:
    """A baseline and the options of its multigrid schedule.

    Attributes:
        epochs: number of epochs of the baseline.
        batch_size: B0, over all ranks.
        size: S0, height and width in pixels.
        frames: T0; None for images, which only change in size.
        milestones: epochs of the baseline, ascending, after which its learning rate drops.
        gamma: factor at each milestone; 1 leaves the drops to a separate schedule.
        epoch_factor: number of epochs relative to the baseline. Not used without cycles.
        long_cycle: factors of frames and size, from small to full; empty for none.
        short_cycle: factors of the size in the first steps of each short cycle, whose last step has the full size;
            empty for none.
        short_cycle_relative_to: base of these factors: S0, as in the authors' code (at a size of 158 the paper's short
            cycle is 112, 158, 158), or the size in the long cycle, as the paper may be read (79, 112, 158).
        size_multiple: sizes are rounded to multiples of it; S0 must be one.
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
    """A shape of the long cycle: batch size as a multiple of B0, number of frames (1 for images), size in pixels."""

    batch_factor: int
    frames: int
    size: int


class StepShape(NamedTuple):
    """One step of a short cycle: samples over all ranks, and their size in pixels."""

    batch_size: int
    size: int


class Interval(NamedTuple):
    """Consecutive epochs with one shape of the long cycle and one learning rate.

    Attributes:
        stage: number of drops of the baseline's learning rate before it.
        shape: batch shape of the long cycle.
        begin, end: the first epoch, and the epoch after the last one.
        lr_factor: multiplies the baseline's initial learning rate.
        cycle: the steps of the short cycle; a single one without a short cycle.
    """

    stage: int
    shape: Shape
    begin: int
    end: int
    lr_factor: float
    cycle: tuple[StepShape, ...]


# --- shapes -----------------------------------------------------------------------------------------------------------


def long_shapes(grid: Multigrid) -> tuple[Shape, ...]:
    """Return the shapes of the long cycle; without one the full shape alone.

    The batch factor is ``T0 S0^2 / (T S^2)``, rounded, with T and S already rounded.

    Example: for 32 frames of 224 x 224 the paper's factors give (8, 8, 158), (4, 16, 158), (2, 16, 224), (1, 32, 224).
    """
    volume = _frames(grid) * grid.size**2
    shapes = []
    for frames_factor, size_factor in grid.long_cycle or ((1.0, 1.0),):
        frames, size = round(_frames(grid) * frames_factor), _round_size(grid, grid.size * size_factor)
        shapes.append(Shape(round(volume / max(1, frames * size**2)), frames, size))
    return tuple(shapes)


def short_cycle(grid: Multigrid, shape: Shape) -> tuple[StepShape, ...]:
    """Return the steps of a short cycle at a shape of the long one, whose size the last of them has.

    A batch size is that of the long cycle times ``(S / s)^2``, rounded, where s is the size before it is rounded to
    pixels (with a ``size_multiple``: after rounding).

    Example: for B0 = 64, S0 = 224 at (8, 8, 158): 1024 of 112, 512 of 158, 512 of 158; relative to ``base`` the sizes
    are 79, 112, 158.
    """
    batch = grid.batch_size * shape.batch_factor
    sizes = _exact_sizes(grid, shape.size)
    steps = [StepShape(batch * round((shape.size / size) ** 2), _round_size(grid, size)) for size in sizes]
    return (*steps, StepShape(batch, shape.size))


def mean_batch(grid: Multigrid, shape: Shape) -> float:
    """Return the mean batch size of the short cycle as a multiple of B0.

    Each batch size is ``T0 S0^2 / (T s^2)``, rounded.

    Example: for the paper's four shapes 32/3, 16/3, 14/3 and 7/3.
    """
    volume = _frames(grid) * grid.size**2
    sizes = (*_exact_sizes(grid, shape.size), shape.size)
    factors = [round(volume / (max(1, shape.frames) * float(size) ** 2)) for size in sizes]
    return sum(factors) / len(factors)


def _frames(grid: Multigrid) -> int:
    return grid.frames or 1


def _exact_sizes(grid: Multigrid, size: int) -> tuple[float, ...]:
    """Return the sizes before the last one; they are only rounded if there is a ``size_multiple``."""
    full = grid.size if grid.short_cycle_relative_to == "default" else size
    sizes = (full * factor for factor in grid.short_cycle)
    return tuple(sizes if grid.size_multiple == 1 else (_round_size(grid, size) for size in sizes))


def _round_size(grid: Multigrid, size: float) -> int:
    return max(1, round(size / grid.size_multiple)) * grid.size_multiple


# --- time -------------------------------------------------------------------------------------------------------------


def intervals(grid: Multigrid) -> tuple[Interval, ...]:
    """Return the whole schedule.

    Learning rates are ``gamma ** stage`` times the batch factor of the long cycle (linear scaling; the short cycle has
    no effect). The first half of the fine-tuning keeps the learning rate before it. An interval may have no epochs: see
    :func:`validate`.

    Raises:
        ValueError: there is a long cycle and no milestone.
    """
    periods = _periods(grid)
    factors = [grid.gamma**stage * shape.batch_factor for stage, shape, _ in periods]
    if grid.long_cycle:
        (*_, start), (stage, shape, end) = periods[-2:]
        periods.insert(-1, (stage, shape, (start + end) // 2))
        factors.insert(-1, factors[-2])
    starts = [0, *(end for *_, end in periods)]
    return tuple(
        Interval(stage, shape, start, end, factor, short_cycle(grid, shape))
        for (stage, shape, end), start, factor in zip(periods, starts, factors, strict=False)
    )


def _periods(grid: Multigrid) -> list[tuple[int, Shape, int]]:
    """Return the shapes over time, each with the drops of the learning rate before it and the end of its epochs.

    Between two milestones the long cycle runs once. A shape gets epochs in proportion to its mean batch size, so that
    all shapes have the same number of steps. The fine-tuning after the last milestone saves the same fraction of steps
    as the periods before it. Then everything is scaled to ``epochs * epoch_factor``, and ends are rounded.

    Without a long cycle only the milestones are scaled (and truncated to whole epochs); without a short cycle they do
    not change either.
    """
    shapes = long_shapes(grid)
    if not grid.long_cycle:
        factor = grid.epoch_factor if grid.short_cycle else 1
        return [(stage, shapes[0], int(end * factor)) for stage, end in enumerate((*grid.milestones, grid.epochs))]
    if not grid.milestones:
        raise ValueError(
            "milestones: a long cycle needs at least one, after which only the last shape is trained; with gamma 1 the "
            "learning rate does not drop there"
        )
    means = [mean_batch(grid, shape) for shape in shapes]
    planned: list[tuple[int, Shape, float]] = []
    steps = 0.0
    for stage, (start, end) in enumerate(pairwise((0, *grid.milestones))):
        for shape, mean in zip(shapes, means, strict=True):
            epochs = (end - start) * mean / sum(means)
            steps += epochs / mean
            planned.append((stage, shape, epochs))
    saving = grid.milestones[-1] / steps
    planned.append((len(grid.milestones), shapes[-1], (grid.epochs - grid.milestones[-1]) / saving * means[-1]))
    scale = grid.epochs * grid.epoch_factor / sum(epochs for *_, epochs in planned)
    ends = accumulate(epochs * scale for *_, epochs in planned)
    return [(stage, shape, round(end)) for (stage, shape, _), end in zip(planned, ends, strict=True)]


def evaluation_epochs(grid: Multigrid, evaluations: int) -> tuple[int, ...]:
    """Return the epochs after which to evaluate: at the end of the epochs of each shape and every ``epochs //
    evaluations + 1`` epochs before (PySlowFast's ``MULTIGRID.EVAL_FREQ``).

    Example: 3 in the first 73 epochs: 23, 48, 73.
    """
    return tuple(
        epoch
        for start, end in pairwise([0, *(end for *_, end in _periods(grid))])
        for epoch in range(start + 1, end + 1)
        if (end - epoch) % ((end - start) // evaluations + 1) == 0
    )


# --- batch norms ------------------------------------------------------------------------------------------------------


class Norm(NamedTuple):
    """The samples over which a batch norm takes its statistics.

    Attributes:
        splits: number of parts of a rank's share of the batch, each with its own statistics.
        processes: number of ranks over which statistics are taken.
    """

    splits: int = 1
    processes: int = 1


def norm(batch_size: int, world: int, base: int = 8) -> Norm:
    """Return the splits or ranks with which batch norms see about ``base`` samples in a shape of the long cycle.

    The number of splits is constant within the short cycle, whose larger batches have larger parts. It is never 0: if
    a rank has fewer samples than ``base``, statistics are taken over several ranks.

    Args:
        batch_size: batch size of the long cycle, over all ranks.
        world: number of ranks.
        base: number of samples for statistics.

    Example: with 8 ranks and base 8, 512 samples are split 8-fold; 32 are taken over 2 ranks.
    """
    ratio = batch_size / world / base
    return Norm(splits=int(ratio)) if ratio >= 1 else Norm(processes=int(1 / ratio))


# --- validation -------------------------------------------------------------------------------------------------------


def validate(grid: Multigrid, world: int = 1, *, empty: bool = False) -> None:
    """Check that a schedule can be trained.

    Args:
        grid: the schedule.
        world: number of ranks.
        empty: allow intervals without epochs; they are dropped.

    Raises:
        ValueError: milestones do not ascend within the baseline; a size is not a multiple of ``size_multiple``; a
            number of frames is not whole; a batch does not divide by the number of ranks; a size of the
            short cycle is larger than that of the long cycle; an interval has no epochs. The text names the interval.
    """
    marks = (0, *grid.milestones, grid.epochs)
    if any(later <= earlier for earlier, later in pairwise(marks)):
        raise ValueError(
            f"milestones: {list(grid.milestones)} must ascend between epoch 0 and {grid.epochs:g}, the baseline's end"
        )
    if grid.size % grid.size_multiple:
        raise ValueError(f"size: {grid.size} is not a multiple of size_multiple ({grid.size_multiple})")
    for number, (frames_factor, size_factor) in enumerate(grid.long_cycle):
        exact = _frames(grid) * frames_factor
        if round(exact) < 1 or abs(exact - round(exact)) > _TOLERANCE:
            frames = f"{grid.frames} frames" if grid.frames else "an image, which has one frame,"
            raise ValueError(
                f"long_cycle.{number}: {frames} times {frames_factor:g} is {exact:g}, and must be a whole number of at "
                "least 1"
            )
        if not 0 < size_factor <= 1 or frames_factor > 1:
            raise ValueError(
                f"long_cycle.{number}: factors are above 0 and at most 1, not {frames_factor:g}, {size_factor:g}"
            )
    for number, interval in enumerate(intervals(grid)):
        name = _describe(grid, number, interval)
        for step in interval.cycle:
            if step.size > interval.shape.size:
                raise ValueError(
                    f"{name}: the short cycle's size {step.size} is larger than {interval.shape.size}, the long "
                    "cycle's; use smaller factors, or short_cycle_relative_to: base"
                )
            if step.batch_size % world:
                raise ValueError(
                    f"{name}: its batch of {step.batch_size} does not divide by {world} ranks; use a batch_size that "
                    f"is a multiple of {world} (now {grid.batch_size})"
                )
        if interval.begin == interval.end and not empty:
            raise ValueError(
                f"{name}: it has no epochs; train longer, use other milestones or a larger epoch_factor, or drop such "
                "intervals (drop_empty)"
            )


def _describe(grid: Multigrid, number: int, interval: Interval) -> str:
    frames = f"{interval.shape.frames} frames of " if grid.frames else ""
    size = f"{interval.shape.size} x {interval.shape.size}"
    batch_size = interval.cycle[-1].batch_size
    return f"interval {number} (epochs {interval.begin} to {interval.end}, {frames}{size}, batch {batch_size})"
