"""The batches of a run before its first step: their shapes over time and their cost, as a table and as a chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from PIL import Image

from opabinia.config.build import errors_at
from opabinia.contracts import SINGLE, BatchSchedule, BatchShape, Clock, Plan, RunSpec, Schedule, Stage
from opabinia.data.collate import is_clip_shape
from opabinia.data.sampling.batches import ConstantPlan, StagedPlan
from opabinia.training.loaders import make_sampler
from opabinia.training.streams import training_streams, with_unlabeled
from opabinia.visualization.drawing import ChartPanel, line_chart

_CURVE_POINTS = 400


class PreviewRow(NamedTuple):
    """Epochs with the same batches.

    Attributes:
        begin, end: first epoch, and the one after the last; the run may end within one.
        steps: number of optimizer steps.
        stage: the batches; without ``shapes`` they have no image size.
        step_cost: cost of one step, in steps of the baseline. The cost is the pixels of all frames of all samples.
        cost_share: cost of all steps, as a share of the baseline's run.
    """

    begin: int
    end: float
    steps: int
    stage: Stage
    step_cost: float
    cost_share: float


@dataclass(frozen=True)
class SchedulePreview:
    """A run and its baseline, which has the largest of its shapes in all of its steps.

    Attributes:
        rows: one after the other.
        plan: plan of the run.
        baseline: the plan of the run without ``shapes``.
    """

    rows: tuple[PreviewRow, ...]
    plan: Plan
    baseline: ConstantPlan

    @property
    def step_ratio(self) -> float:
        """Steps of the baseline per step of the run."""
        return self.baseline.total_steps / self.plan.total_steps

    @property
    def pixel_ratio(self) -> float:
        """Pixels of the baseline per pixel of the run: close to the saving of time where the loader keeps up."""
        return 1 / sum(row.cost_share for row in self.rows)

    @property
    def savings(self) -> str:
        """Both ratios in words."""
        return f"{self.step_ratio:.2f} times fewer steps, {self.pixel_ratio:.2f} times fewer pixels"


def preview_of_plan(plan: ConstantPlan | StagedPlan, baseline: ConstantPlan) -> SchedulePreview:
    """Compute the preview of a plan, incomplete batches at the ends of epochs included.

    Raises:
        ValueError: one of the two plans has no steps.
    """
    for each in (plan, baseline):
        if not each.total_steps:
            raise ValueError(f"{each.length} is a run without a single step")
    stages = plan.stages if isinstance(plan, StagedPlan) else (Stage(plan.epochs, (BatchShape(plan.batch_size),)),)
    largest = max(math.prod(shape.shape or ()) for stage in stages for shape in stage.cycle)
    baseline_pixels = baseline.samples_before(baseline.total_steps) * largest
    starts = [0, *accumulate(stage.epochs for stage in stages[:-1])]
    ends = [*starts[1:], math.inf]
    rows = []
    for stage, begin, end in zip(stages, starts, ends, strict=True):
        first = plan.epoch_start(begin)
        if first >= plan.total_steps:
            break
        last = plan.total_steps if end >= plan.epochs else plan.epoch_start(int(end))
        pixels, steps = _pixels(plan, begin, last - first, largest), last - first
        end_epoch = round(Clock.at(plan, last).epochs_done, 3)
        step_cost = pixels / steps / (baseline.batch_size * largest)
        rows.append(PreviewRow(begin, end_epoch, steps, stage, step_cost, pixels / baseline_pixels))
    return SchedulePreview(tuple(rows), plan, baseline)


def _pixels(plan: Plan, epoch: int, steps: int, largest: int) -> int:
    """Return the pixels of ``steps`` steps from an epoch on, all of whose epochs are alike."""
    first = plan.epoch_start(epoch)
    epochs, rest = divmod(steps, plan.epoch_start(epoch + 1) - first)

    def pixels_of(count: int) -> int:
        global_batches = map(plan.global_batch, range(first, first + count))
        return sum(
            global_batch.count * (largest if global_batch.shape is None else math.prod(global_batch.shape))
            for global_batch in global_batches
        )

    return (epochs * pixels_of((steps - rest) // epochs) if epochs else 0) + pixels_of(rest)


def schedule_preview(parts: Mapping[str, Any], processes: int = 1) -> SchedulePreview:
    """Compute the preview of a config.

    Args:
        parts: the fields of :class:`opabinia.training.session.TrainingRun`. The samples are counted, not read.
        processes: world size of the run.

    Raises:
        ConfigError: the batches cannot be planned, or there are none.
    """
    data, length, shapes = parts["data"], parts["train"].length, parts["shapes"]
    streams = with_unlabeled(training_streams(parts["task"], data), parts["semi_supervised"])
    joint = tuple(streams) != (SINGLE,)
    samplers = [
        make_sampler(replace(stream, sampler=None if joint else stream.sampler), data.batch_size, 0)
        for stream in streams.values()
    ]
    samples = sum(map(len, samplers))
    with errors_at("data"):
        constant = ConstantPlan(samples, data.batch_size, length, data.drop_last or joint)
    if shapes is None:
        with errors_at("train.length"):
            return preview_of_plan(constant, constant)
    with errors_at("shapes"):
        schedule: BatchSchedule = shapes(RunSpec(samples, data.batch_size, length, processes, data.drop_last))
        plan = StagedPlan(samples, schedule.stages, schedule.length, data.drop_last)
        return preview_of_plan(plan, replace(constant, length=schedule.baseline or length))


# --- as a chart -------------------------------------------------------------------------------------------------------


def chart_panels(preview: SchedulePreview, schedule: Schedule) -> list[ChartPanel]:
    """Return curves of frames, image size, batch size and learning rate over epochs.

    A short cycle has a curve for each of its batches.

    Args:
        preview: preview of the run.
        schedule: schedule of the learning rate, which the shapes multiply further.
    """
    frames = _steps(preview, lambda batch: batch.shape[0] if batch.shape and is_clip_shape(batch.shape) else None)
    panels = [
        ChartPanel("frames", frames),
        ChartPanel("size in pixels", _steps(preview, lambda batch: batch.shape[-1] if batch.shape else None)),
        ChartPanel("batch size", _steps(preview, lambda batch: batch.samples), log=True),
        ChartPanel("learning rate / optimizer.lr", [_learning_rates(preview, schedule)], log=True),
    ]
    return [panel for panel in panels if any(panel.lines)]


def draw_preview(preview: SchedulePreview, schedule: Schedule, title: str = "") -> Image.Image:
    """Draw the panels as an image, with the savings in its title."""
    return line_chart(
        chart_panels(preview, schedule),
        title=f"{title}: {preview.savings}" if title else preview.savings,
        across="epochs",
        end=preview.rows[-1].end,
        marks=[row.begin for row in preview.rows[1:]],
    )


def _steps(preview: SchedulePreview, value: Callable[[BatchShape], int | None]) -> list[list[tuple[float, float]]]:
    """A step curve for each batch of the cycles that has the value."""
    longest = max(len(row.stage.cycle) for row in preview.rows)
    curves: list[list[tuple[float, float]]] = [[] for _ in range(longest)]
    for row in preview.rows:
        for number, curve in enumerate(curves):
            if (height := value(row.stage.cycle[number % len(row.stage.cycle)])) is not None:
                curve += [(row.begin, height), (row.end, height)]
    return curves


def _learning_rates(preview: SchedulePreview, schedule: Schedule) -> list[tuple[float, float]]:
    """The learning rate at even distances, and on both sides of each change of the shapes."""
    total = preview.plan.total_steps
    edges = accumulate(row.steps for row in preview.rows)
    steps = {*range(0, total, max(1, total // _CURVE_POINTS)), *(edge + side for edge in edges for side in (-1, 0))}
    rates = []
    for step in sorted(step for step in steps if step < total):
        clock = Clock.at(preview.plan, step)
        rates.append((clock.epochs_done, schedule(clock) * preview.plan.global_batch(step).lr_factor))
    return rates
