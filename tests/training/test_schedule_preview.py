"""Previews of batch schedules as rows and as an image; expected values by hand or from the authors' code."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from opabinia.contracts import Clock, RunSpec
from opabinia.data.sampling.batch_shapes import multi_scale, multigrid, progressive
from opabinia.data.sampling.batches import ConstantPlan, StagedPlan
from opabinia.optim.schedules import constant
from opabinia.runtime.durations import Duration
from opabinia.training.schedule_preview import SchedulePreview, draw_preview, preview_of_plan
from opabinia.visualization.drawing import ChartPanel, line_chart

EPOCHS = Duration(24, "ep")
MARKS = [9, 15, 20]


def make_preview(part: object, samples: int = 1000, length: Duration = EPOCHS, **keys: object) -> SchedulePreview:
    layout = part(RunSpec(samples, 8, length), **keys)  # type: ignore[operator]
    plan = StagedPlan(samples, layout.stages, layout.length)
    return preview_of_plan(plan, ConstantPlan(samples, 8, layout.baseline or length))


def test_a_preview_of_one_row() -> None:
    plan = ConstantPlan(1000, 32, Duration.parse("2.5ep"))
    (line,) = preview_of_plan(plan, plan).rows
    assert (line.begin, line.end, line.steps, line.cost_share) == (0, 2.5, 80, 1.0)
    assert line.step_cost == pytest.approx(2512 / (80 * 32)), "the last batch of an epoch is smaller"
    (line,) = make_preview(multi_scale, length=Duration(2, "ep"), sizes=[64, 32]).rows
    assert line.step_cost == pytest.approx((63 + 62 * 0.25) / 125)
    empty = ConstantPlan(10, 2, Duration(0, "ep"))
    with pytest.raises(ValueError, match="0ep is a run without a single step"):
        preview_of_plan(empty, empty)


def test_multigrid_has_the_values_of_the_paper() -> None:
    """SlowFast's Kinetics config: 358 epochs, 3.42 times fewer steps."""
    length = Duration(239, "ep")
    layout = multigrid(RunSpec(240_000, 64, length, world=8), size=224, frames=32, milestones=[94, 154, 196])
    table = preview_of_plan(StagedPlan(240_000, layout.stages, layout.length), ConstantPlan(240_000, 64, length))
    assert [line.end for line in table.rows][:4] == [73, 110, 142, 158]
    assert table.rows[-1].end == 358
    assert table.step_ratio == pytest.approx(3.42, abs=0.01)
    # Steps of a short cycle cost about the same; sizes are rounded to pixels.
    assert all(line.step_cost == pytest.approx(1, abs=0.02) for line in table.rows)
    assert table.pixel_ratio == pytest.approx(3.4, abs=0.05)


@pytest.mark.parametrize("drop_last", [False, True])
def test_costs_equal_the_sum_over_batches(drop_last: bool) -> None:
    layout = multigrid(RunSpec(1000, 8, EPOCHS, 1, drop_last), size=32, frames=16, milestones=MARKS)
    plan = StagedPlan(1000, layout.stages, layout.length, drop_last)
    baseline = ConstantPlan(1000, 8, EPOCHS, drop_last)
    table = preview_of_plan(plan, baseline)
    rows = [plan.global_batch(step) for step in range(plan.total_steps)]
    ends = list(itertools.accumulate(line.steps for line in table.rows))
    assert ends[-1] == plan.total_steps
    for line, end in zip(table.rows, ends, strict=True):
        line_rows = rows[end - line.steps : end]
        pixels = sum(
            row.count * frames * height * width
            for row in line_rows
            for frames, height, width in [row.shape or (0, 0, 0)]
        )
        assert line.cost_share == pytest.approx(pixels / (16 * 32**2 * baseline.samples_before(baseline.total_steps)))
        assert line.step_cost == pytest.approx(pixels / line.steps / (8 * 16 * 32**2))
        assert (line_rows[0].epoch, line_rows[-1].epoch) == (line.begin, line.end - 1)


def test_the_baseline_may_be_another_length() -> None:
    """A run of 10 of 36 epochs is compared with a baseline of 24 epochs."""
    table = make_preview(multigrid, length=Duration(10, "ep"), size=32, frames=16, milestones=MARKS, epochs=24)
    assert table.rows[-1].end == 10
    assert table.baseline.total_steps == 24 * 125
    assert table.pixel_ratio > 10
    longer = make_preview(multigrid, length=Duration(40, "ep"), size=32, milestones=MARKS, epochs=24)
    assert longer.rows[-1].end == 40


def test_images_that_grow() -> None:
    table = make_preview(progressive, length=Duration(4, "ep"), start=32, end=64, multiple=32, until=0.5)
    assert [(line.begin, line.end) for line in table.rows] == [(0, 1), (1, 4)]
    assert [line.step_cost for line in table.rows] == pytest.approx([0.25, 1])
    assert table.pixel_ratio == pytest.approx(4 / 3.25)
    assert table.step_ratio == 1
    clips = make_preview(multigrid, size=32, frames=16, milestones=MARKS)
    panel = [draw_preview(preview, constant).height for preview in (table, clips)]
    assert panel[1] > panel[0], "another panel for the frames"


# --- as an image ------------------------------------------------------------------------------------------------------


def test_a_panel_shows_its_lines() -> None:
    """A line at the top in the first half, and at the bottom in the second."""
    panel = ChartPanel("size", [[(0, 20.0), (5, 20.0), (5, 1.0), (10, 1.0)]])
    chart = line_chart([panel], title="a title", across="epochs", end=10, marks=[5])
    blue = (np.asarray(chart) == (0, 114, 178)).all(2)
    left_rows, right_rows = (np.flatnonzero(blue[:, side].any(1)) for side in (slice(100, 400), slice(550, 850)))
    assert len(left_rows) == len(right_rows) == 2, "straight lines of two pixels"
    assert left_rows.max() < right_rows.min()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("lines", [[], [[]], [[(0, 1.0)]], [[(0, 0.0), (1, 1e-9), (2, 1.0)]]], ids=str)
def test_panels_with_few_or_no_points(lines: list[list[tuple[float, float]]], log: bool) -> None:
    assert line_chart([ChartPanel("rate", lines, log)], title="", across="", end=2).width == 900


def test_the_learning_rate_includes_the_factor_of_the_batch_size() -> None:
    from opabinia.training.schedule_preview import _learning_rates

    table = make_preview(multigrid, size=32, frames=16, milestones=MARKS)
    rates = dict(_learning_rates(table, lambda clock: 1 - clock.progress))
    row = table.rows[0]
    last_step, next_step = row.steps - 1, row.steps
    clocks = [Clock.at(table.plan, step) for step in (last_step, next_step)]
    expected = [(1 - clock.progress) * factor for clock, factor in zip(clocks, (8, 4), strict=True)]
    assert [rates[clock.epochs_done] for clock in clocks] == pytest.approx(expected)
