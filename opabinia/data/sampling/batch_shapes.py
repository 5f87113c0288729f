"""Batches over time: how many samples of which size, epoch by epoch, known before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Literal

from annotated_types import Interval, MinLen

from opabinia.config import register
from opabinia.contracts import BatchSchedule, BatchShape, Count, Fraction, Positive, RunSpec, Stage
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.optim.multigrid import LONG_CYCLE, SHORT_CYCLE, Multigrid, Norm, Stretch, norm, refuse_wrong, stretches
from opabinia.runtime.durations import Duration

Factor = Annotated[float, Interval(gt=0, le=1)]

PICTURES_CYCLE: tuple[tuple[float, float], ...] = tuple((1.0, size) for size in (SHORT_CYCLE[-1], 1.0))
"""The sizes of the paper's long cycle, for pictures, which have one frame."""


@register.shapes
def progressive(
    course: RunSpec, /, *, start: Count, end: Count, until: Fraction = 1.0, multiple: Count = 32
) -> BatchSchedule:
    """Square pictures that grow with the epochs (progressive resizing; Tan and Le, EfficientNetV2, section 4).

    The transforms make pictures of size ``end``; batches of earlier epochs are shrunk.

    Args:
        start: height and width in the first epoch, in pixels.
        end: from ``until`` on.
        until: progress (0 to 1) at which the full size is reached.
        multiple: sizes in between are rounded to multiples of it.

    Example: ``{name: progressive, start: 128, end: 224, until: 0.8}``
    """
    plain = _of_one_size(course)
    starts = [plain.epoch_start(epoch) / plain.total_steps for epoch in range(plain.epochs)] or [0.0]
    sizes = [growing(progress, start=start, end=end, until=until, multiple=multiple) for progress in starts]
    stages = [Stage(len(list(same)), (BatchShape(course.batch_size, (size, size)),)) for size, same in groupby(sizes)]
    return BatchSchedule(tuple(stages), course.length)


def growing(progress: float, *, start: int, end: int, until: float = 1.0, multiple: int = 32) -> int:
    """The size of :func:`progressive` when the run has come so far.

    Example: ``growing(0.2, start=128, end=224, until=0.8)`` is 160.
    """
    if progress >= until:
        return end
    between = start + (end - start) * progress / until
    return min(max(round(between / multiple) * multiple, min(start, end)), max(start, end))


@register.shapes
def multi_scale(course: RunSpec, /, *, sizes: Annotated[list[Count], MinLen(1)]) -> BatchSchedule:
    """Square pictures whose size changes from batch to batch (multi-scale training).

    The transforms make pictures of the largest size; the others are shrunk. Every epoch begins with the first size.

    Args:
        sizes: height and width in pixels, taken in turn.

    Example: ``{name: multi_scale, sizes: [224, 192, 160]}``
    """
    cycle = tuple(BatchShape(course.batch_size, (size, size)) for size in sizes)
    return BatchSchedule((Stage(max(1, _of_one_size(course).epochs), cycle),), course.length)


@register.shapes
def multigrid(
    course: RunSpec,
    /,
    *,
    size: Count,
    frames: Count | None = None,
    milestones: list[Count],
    gamma: Positive = 0.1,
    epochs: Count | None = None,
    epoch_factor: Positive = 1.5,
    long_cycle: list[tuple[Factor, Factor]] | None = None,
    short_cycle: list[Factor] = list(SHORT_CYCLE),  # noqa: B006 (never changed)
    short_cycle_relative_to: Literal["default", "base"] = "default",
    size_multiple: Count = 1,
    bn_base_size: Count | None = 8,
    leave_out_empty: bool = False,
) -> BatchSchedule:
    """Many cheap epochs first, few exact ones last: batch, frames and size change together (Wu et al. 2020).

    ``data.batch_size``, ``train.length`` and the optimizer's learning rate are the baseline's: what one would train
    with without this. The run then has ``epoch_factor`` times as many epochs, with about a third of the steps. Periods
    and lengths in epochs (warm-up, evaluations) are those of the run. The learning rate follows the batch and
    ``milestones``; ``schedule`` multiplies it further, so leave that ``constant`` (a warm-up is fine), or set ``gamma``
    to 1 and take any other one. :mod:`opabinia.optim.multigrid` tells the rules.

    Args:
        size: height and width of the baseline, in pixels. The transforms make pictures of this size; batches of
            smaller ones are shrunk. Of clips the transforms make what they are asked for.
        frames: of the baseline's clips; null for pictures.
        milestones: epochs of the baseline after which the learning rate drops; a long cycle wants at least one.
        gamma: factor at each of them.
        epochs: of the baseline, if ``train.length`` is not to say it: then that is the length of the run itself, which
            may end earlier, or go on with the last shape.
        epoch_factor: how many times the baseline's epochs there are in the end; without any cycle it is not used.
        long_cycle: factors of frames and size, from small to full; [] for none. null takes those of the paper, of
            pictures [1, 0.71] and [1, 1].
        short_cycle: factors of the size in the first steps of each short cycle; [] for none.
        short_cycle_relative_to: what they are factors of: ``size`` (``default``, as in the authors' code), or the size
            in the long cycle (``base``, as the paper may be read: fewer steps still).
        size_multiple: sizes are rounded to multiples of it.
        bn_base_size: samples that batch norms are to take their statistics over, at the shapes of the long cycle: a
            process's share of the batch is seen in so many parts, and one that is smaller together with those of
            neighbouring processes. null: they see all of it.
        leave_out_empty: leave out rows that have no epochs after rounding, instead of refusing them.

    Raises:
        ValueError: ``train.length`` is not in whole epochs; or as :func:`opabinia.optim.multigrid.refuse_wrong`.

    Example: ``{name: multigrid, frames: 32, size: 224, milestones: [94, 154, 196]}`` with ``train.length: 239ep``
    """
    paper = LONG_CYCLE if frames else PICTURES_CYCLE
    grid = Multigrid(
        epochs=epochs or _whole_epochs(course.length),
        batch_size=course.batch_size,
        size=size,
        frames=frames,
        milestones=tuple(milestones),
        gamma=gamma,
        epoch_factor=epoch_factor,
        long_cycle=paper if long_cycle is None else tuple((of_frames, of_size) for of_frames, of_size in long_cycle),
        short_cycle=tuple(short_cycle),
        short_cycle_relative_to=short_cycle_relative_to,
        size_multiple=size_multiple,
    )
    refuse_wrong(grid, course.world, empty=leave_out_empty)
    planned = [one for one in stretches(grid) if one.epochs]
    length = course.length if epochs else Duration(sum(one.epochs for one in planned), "ep")
    return BatchSchedule(_stages(planned, grid, course.world, bn_base_size), length, Duration(grid.epochs, "ep"))


def _stages(planned: Sequence[Stretch], grid: Multigrid, world: int, base: int | None) -> tuple[Stage, ...]:
    stages = []
    for one in planned:
        frames = (one.shape.frames,) if grid.frames else ()
        cycle = tuple(BatchShape(turn.batch_size, (*frames, turn.size, turn.size)) for turn in one.turns)
        of_norms = norm(grid.batch_size * one.shape.batch_factor, world, base) if base else Norm()
        processes = min(of_norms.processes, world)
        stages.append(Stage(one.epochs, cycle, one.lr_factor, of_norms.splits, processes))
    return tuple(stages)


def _whole_epochs(length: Duration) -> int:
    if length.unit != "ep" or length.value != int(length.value) or not length.value:
        raise ValueError(
            f"multigrid: train.length is {length}, and is to be the baseline's in whole epochs, such as 24ep; or say "
            "in shapes.epochs how many the baseline has, and train.length is the length of the run itself"
        )
    return int(length.value)


def _of_one_size(course: RunSpec) -> ConstantPlan:
    """The run without ``shapes``."""
    return ConstantPlan(course.samples, course.batch_size, course.length, course.drop_last)
