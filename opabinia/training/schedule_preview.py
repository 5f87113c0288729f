"""The batches of a run before its first step: which shapes when, and what they cost; as rows, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from PIL import Image

from opabinia.config.build import errors_at
from opabinia.contracts import BatchSchedule, BatchShape, Clock, Plan, RunSpec, Schedule, Stage
from opabinia.data.collate import is_of_clips
from opabinia.data.sampling.batches import ConstantPlan, StagedPlan
from opabinia.training.loaders import make_sampler
from opabinia.visualization.drawing import Panel, line_chart


class Line(NamedTuple):
    """Epochs with the same batches.

    Attributes:
        begin, end: in epochs; the run may end within one.
        steps: of the optimizer.
        stage: the batches; of a run without ``shapes`` they have no shape.
        a_step: what a step costs, in steps of the baseline. The cost is the pixels of all frames of all samples.
        in_all: what all of them cost, as a share of the baseline's run.
    """

    begin: int
    end: float
    steps: int
    stage: Stage
    a_step: float
    in_all: float


@dataclass(frozen=True)
class Timetable:
    """A run beside its baseline, which sees the largest of its shapes in all of its steps.

    Attributes:
        lines: one after the other.
        plan: of the run.
        baseline: the plan of the run without ``shapes``.
    """

    lines: tuple[Line, ...]
    plan: Plan
    baseline: ConstantPlan

    @property
    def fewer_steps(self) -> float:
        """How many times as many steps the baseline has."""
        return self.baseline.total_steps / self.plan.total_steps

    @property
    def cheaper(self) -> float:
        """How many times as many pixels it computes, which is close to the saving of time where reading keeps up."""
        return 1 / sum(line.in_all for line in self.lines)


# --- rows -------------------------------------------------------------------------------------------------------------


def timetable(plan: ConstantPlan | StagedPlan, baseline: ConstantPlan) -> Timetable:
    """What a run does, by arithmetic, with the incomplete batches at the ends of epochs.

    Raises:
        ValueError: one of the two has no steps.
    """
    for one in (plan, baseline):
        if not one.total_steps:
            raise ValueError(f"{one.length} is a run without a single step")
    stages = plan.stages if isinstance(plan, StagedPlan) else (Stage(plan.epochs, (BatchShape(plan.batch_size),)),)
    full = max(math.prod(one.shape or ()) for stage in stages for one in stage.cycle)
    of_baseline = baseline.samples_before(baseline.total_steps) * full
    starts = [0, *accumulate(stage.epochs for stage in stages[:-1])]
    ends = [*starts[1:], math.inf]
    lines = []
    for stage, begin, end in zip(stages, starts, ends, strict=True):
        first = plan.epoch_start(begin)
        if first >= plan.total_steps:
            break
        last = plan.total_steps if end >= plan.epochs else plan.epoch_start(int(end))
        pixels = _pixels(plan, begin, last - first, full)
        a_step = pixels / (last - first) / (baseline.batch_size * full)
        lines.append(Line(begin, _epochs(plan, last), last - first, stage, a_step, pixels / of_baseline))
    return Timetable(tuple(lines), plan, baseline)


def _pixels(plan: Plan, epoch: int, steps: int, full: int) -> int:
    """In so many steps from an epoch on, all of whose epochs are alike."""
    first = plan.epoch_start(epoch)
    epochs, rest = divmod(steps, plan.epoch_start(epoch + 1) - first)

    def seen(count: int) -> int:
        rows = map(plan.row, range(first, first + count))
        return sum(row.count * (full if row.shape is None else math.prod(row.shape)) for row in rows)

    return (epochs * seen((steps - rest) // epochs) if epochs else 0) + seen(rest)


def _epochs(plan: Plan, step: int) -> float:
    """Epochs done after so many steps."""
    return round(Clock.at(plan, step).epochs_done, 3)


def timetable_of(parts: Mapping[str, Any], processes: int = 1) -> Timetable:
    """The timetable of a config.

    Args:
        parts: the built parameters of :func:`opabinia.training.session.train`. The samples of the data are counted,
            not read.
        processes: that would train.

    Raises:
        ConfigError: the batches cannot be made, or there are none.
    """
    data, length, shapes = parts["data"], parts["train"].length, parts["shapes"]
    samples = len(make_sampler(data, 0))
    with errors_at("data"):
        plain = ConstantPlan(samples, data.batch_size, length, data.drop_last)
    if shapes is None:
        with errors_at("train.length"):
            return timetable(plain, plain)
    with errors_at("shapes"):
        layout: BatchSchedule = shapes(RunSpec(samples, data.batch_size, length, processes, data.drop_last))
        plan = StagedPlan(samples, layout.stages, layout.length, data.drop_last)
        return timetable(plan, replace(plain, length=layout.baseline or length))


# --- as a picture -----------------------------------------------------------------------------------------------------


def panels(table: Timetable, schedule: Schedule) -> list[Panel]:
    """Frames, size, batch and learning rate over epochs; of a short cycle a line for each of its batches.

    Args:
        table: of the run.
        schedule: of the learning rate, which the shapes multiply further.
    """
    shapes = [Panel(name, _stairs(table, value)) for name, value in _OF_BATCHES.items()]
    return [
        *(panel for panel in shapes if any(panel.lines)),
        Panel("samples in a batch", _stairs(table, lambda one: one.samples), log=True),
        Panel("learning rate, times that of the optimizer", [_rates(table, schedule)], log=True),
    ]


def saved(table: Timetable) -> str:
    """How much less than the baseline's it is, in words."""
    return f"{table.fewer_steps:.2f} times fewer steps, {table.cheaper:.2f} times fewer pixels"


def drawn(table: Timetable, schedule: Schedule, title: str = "") -> Image.Image:
    """The panels in a picture; what is saved stands in its title."""
    return line_chart(
        panels(table, schedule),
        title=f"{title}: {saved(table)}" if title else saved(table),
        across="epochs",
        end=table.lines[-1].end,
        marks=[line.begin for line in table.lines[1:]],
    )


def _frames(one: BatchShape) -> int | None:
    return one.shape[0] if one.shape and is_of_clips(one.shape) else None


def _size(one: BatchShape) -> int | None:
    return one.shape[-1] if one.shape else None


_OF_BATCHES = {"frames": _frames, "size in pixels": _size}


def _stairs(table: Timetable, value: Callable[[BatchShape], int | None]) -> list[list[tuple[float, float]]]:
    """A line for each place in the cycles, where batches have such a value."""
    most = max(len(line.stage.cycle) for line in table.lines)
    lines: list[list[tuple[float, float]]] = [[] for _ in range(most)]
    for line in table.lines:
        cycle = line.stage.cycle
        for number, places in enumerate(lines):
            if (found := value(cycle[number % len(cycle)])) is not None:
                places += [(line.begin, found), (line.end, found)]
    return lines


_PLACES = 400


def _rates(table: Timetable, schedule: Schedule) -> list[tuple[float, float]]:
    """The learning rate at even distances, and on both sides of each change of the shapes."""
    total = table.plan.total_steps
    edges = accumulate(line.steps for line in table.lines)
    steps = {*range(0, total, max(1, total // _PLACES)), *(one + side for one in edges for side in (-1, 0))}
    rates = []
    for step in sorted(one for one in steps if one < total):
        clock = Clock.at(table.plan, step)
        rates.append((clock.epochs_done, schedule(clock) * table.plan.row(step).lr_factor))
    return rates
