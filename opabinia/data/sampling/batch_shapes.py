"""Batch shapes: the number and size of the samples of each batch, epoch by epoch, known before the first step."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Literal

from annotated_types import Interval, MinLen

from opabinia.config import register
from opabinia.contracts import BatchSchedule, BatchShape, Count, Fraction, Positive, RunSpec, Stage
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.optim.multigrid import (
    LONG_CYCLE,
    SHORT_CYCLE,
    Multigrid,
    Norm,
    evaluation_epochs,
    intervals,
    norm,
    validate,
)
from opabinia.runtime.durations import Duration

Factor = Annotated[float, Interval(gt=0, le=1)]

IMAGE_LONG_CYCLE: tuple[tuple[float, float], ...] = tuple((1.0, size) for size in (SHORT_CYCLE[-1], 1.0))
"""The sizes of the paper's long cycle, for images, which have one frame."""


@register.shapes
def progressive(
    spec: RunSpec, /, *, start: Count, end: Count, until: Fraction = 1.0, multiple: Count = 32
) -> BatchSchedule:
    """Square images whose size grows with the epochs (progressive resizing; Tan and Le, EfficientNetV2, section 4).

    The transforms make images of size ``end``; batches of earlier epochs are downscaled.

    Args:
        start: height and width in the first epoch, in pixels.
        end: height and width from ``until`` on, in pixels.
        until: progress (0 to 1) at which the full size is reached.
        multiple: sizes in between are rounded to multiples of it.

    Example: ``{name: progressive, start: 128, end: 224, until: 0.8}``
    """
    plain = _constant_plan(spec)
    starts = [plain.epoch_start(epoch) / plain.total_steps for epoch in range(plain.epochs)] or [0.0]
    sizes = [progressive_size(at, start=start, end=end, until=until, multiple=multiple) for at in starts]
    stages = [Stage(len(list(same)), (BatchShape(spec.batch_size, (size, size)),)) for size, same in groupby(sizes)]
    return BatchSchedule(tuple(stages), spec.length)


def progressive_size(progress: float, *, start: int, end: int, until: float = 1.0, multiple: int = 32) -> int:
    """Return the size of :func:`progressive` at this progress of the run (0 to 1).

    Example: ``progressive_size(0.2, start=128, end=224, until=0.8)`` is 160.
    """
    if progress >= until:
        return end
    size = start + (end - start) * progress / until
    return min(max(round(size / multiple) * multiple, min(start, end)), max(start, end))


@register.shapes
def multi_scale(spec: RunSpec, /, *, sizes: Annotated[list[Count], MinLen(1)]) -> BatchSchedule:
    """Square images whose size changes from batch to batch (multi-scale training).

    The transforms make images of the largest size; the others are downscaled. Every epoch begins with the first size.

    Args:
        sizes: height and width in pixels, taken in turn.

    Example: ``{name: multi_scale, sizes: [224, 192, 160]}``
    """
    cycle = tuple(BatchShape(spec.batch_size, (size, size)) for size in sizes)
    return BatchSchedule((Stage(max(1, _constant_plan(spec).epochs), cycle),), spec.length)


@register.shapes
def multigrid(
    spec: RunSpec,
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
    drop_empty: bool = False,
    evaluations: Count | None = None,
) -> BatchSchedule:
    """Multigrid training: many cheap epochs first, few exact ones last; batch size, frames and image size change
    together (Wu et al. 2020).

    ``data.batch_size``, ``train.length`` and the optimizer's learning rate are those of the baseline, without this. The
    run then has ``epoch_factor`` times as many epochs, with about a third of the steps. Periods and lengths in epochs
    (warm-up, evaluations) are those of the run. The learning rate follows the batch size and ``milestones``;
    ``schedule`` multiplies it further, so leave that ``constant`` (a warm-up is fine), or set ``gamma`` to 1 and take
    any other one. :mod:`opabinia.optim.multigrid` has the rules.

    Args:
        size: height and width of the baseline, in pixels. The transforms make images of this size; batches of smaller
            ones are downscaled. Transforms of clips make the requested size themselves.
        frames: of the baseline's clips; null for images.
        milestones: epochs of the baseline after which the learning rate drops; a long cycle needs at least one.
        gamma: factor at each of them.
        epochs: of the baseline, if ``train.length`` is the length of the run itself, which may end earlier, or continue
            with the last shape.
        epoch_factor: number of epochs of the run per epoch of the baseline; without cycles it is not used.
        long_cycle: factors of frames and size, from small to full; [] for none. null takes those of the paper, for
            images [1, 0.71] and [1, 1].
        short_cycle: factors of the size in the first steps of each short cycle; [] for none.
        short_cycle_relative_to: the size that these factors multiply: ``size`` (``default``, as in the authors' code),
            or that of the long cycle (``base``, another reading of the paper, with even fewer steps).
        size_multiple: sizes are rounded to multiples of it.
        bn_base_size: number of samples for the statistics of batch norms, at the shapes of the long cycle: a larger
            share of a process is split, smaller shares of neighboring processes are combined. null: all samples of a
            process.
        drop_empty: drop intervals that have no epochs after rounding, instead of raising.
        evaluations: about this number for each shape of the schedule, evenly spaced, the last at its end;
            ``evaluate.every`` then has no effect on validation sets without a period of their own (PySlowFast has 3).
            null: by that.

    Raises:
        ValueError: ``train.length`` is not in whole epochs; or the baseline and the cycles do not fit
            (:mod:`opabinia.optim.multigrid`).

    Example: ``{name: multigrid, frames: 32, size: 224, milestones: [94, 154, 196]}`` with ``train.length: 239ep``
    """
    paper = LONG_CYCLE if frames else IMAGE_LONG_CYCLE
    grid = Multigrid(
        epochs=epochs or _whole_epochs(spec.length),
        batch_size=spec.batch_size,
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
    validate(grid, spec.world, empty=drop_empty)
    length = spec.length if epochs else Duration(intervals(grid)[-1].end, "ep")
    stages = _stages(grid, spec.world, bn_base_size)
    at = evaluation_epochs(grid, evaluations) if evaluations else None
    return BatchSchedule(stages, length, Duration(grid.epochs, "ep"), at)


def _stages(grid: Multigrid, world: int, bn_base_size: int | None) -> tuple[Stage, ...]:
    stages = []
    for interval in intervals(grid):
        if interval.begin == interval.end:
            continue
        frames = (interval.shape.frames,) if grid.frames else ()
        cycle = tuple(BatchShape(step.batch_size, (*frames, step.size, step.size)) for step in interval.cycle)
        factor = interval.shape.batch_factor
        batch_norm = norm(grid.batch_size * factor, world, bn_base_size) if bn_base_size else Norm()
        processes = min(batch_norm.processes, world)
        stages.append(Stage(interval.end - interval.begin, cycle, interval.lr_factor, batch_norm.splits, processes))
    return tuple(stages)


def _whole_epochs(length: Duration) -> int:
    if length.unit != "ep" or length.value != int(length.value) or not length.value:
        raise ValueError(
            f"multigrid: train.length is {length}, and must be the baseline's in whole epochs, such as 24ep; or give "
            "the epochs of the baseline in shapes.epochs, and train.length is the length of the run itself"
        )
    return int(length.value)


def _constant_plan(spec: RunSpec) -> ConstantPlan:
    """Return the plan of the run without ``shapes``."""
    return ConstantPlan(spec.samples, spec.batch_size, spec.length, spec.drop_last)
