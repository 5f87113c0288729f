"""Multigrid compared with values computed by SlowFast and PaddleVideo; their bugs are noted in the tests."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from opabinia.contracts import BatchShape, Clock, RunSpec, Stage
from opabinia.data.sampling.batch_shapes import multigrid
from opabinia.data.sampling.batches import StagedPlan
from opabinia.optim.multigrid import (
    Multigrid,
    Shape,
    intervals,
    mean_batch,
    norm,
    short_cycle,
    validate,
)
from opabinia.optim.schedules import constant
from opabinia.runtime.durations import Duration

FOLDER = Path(__file__).parent / "multigrid"
CASES = {case["name"]: case for case in json.loads((FOLDER / "schedules.json").read_text())["cases"]}
SAMPLERS = json.loads((FOLDER / "samplers.json").read_text())["cases"]


def grid_of(case: dict[str, Any]) -> Multigrid:
    keys = {name: tuple(value) if isinstance(value, list) else value for name, value in case["grid"].items()}
    return Multigrid(**keys | {"long_cycle": tuple((t, s) for t, s in keys["long_cycle"])})


def plain(grid: Multigrid) -> list[list[Any]]:
    """Return the shapes over time as the references list them, the two halves of the fine-tuning as one."""
    ends = {(part.stage, part.shape): part.end for part in intervals(grid)}
    return [[stage, list(shape), end] for (stage, shape), end in ends.items()]


def learning_rates(grid: Multigrid) -> tuple[tuple[int, float], ...]:
    return tuple((part.begin, part.lr_factor) for part in intervals(grid))


class Savings(NamedTuple):
    """The cost of a schedule as the paper counts it, in epochs of the baseline.

    Attributes:
        baseline: epochs of the baseline.
        passes: over the data.
        steps: optimizer steps, divided by those in an epoch of the baseline. Incomplete batches are ignored.
        cost: likewise, each step weighted by its number of pixels.
    """

    baseline: float
    passes: int
    steps: float
    cost: float


def savings(grid: Multigrid) -> Savings:
    full = grid.batch_size * (grid.frames or 1) * grid.size**2
    steps, cost = 0.0, 0.0
    for part in intervals(grid):
        part_steps = (part.end - part.begin) / mean_batch(grid, part.shape)
        pixels = sum(step.batch_size * part.shape.frames * step.size**2 for step in part.cycle) / len(part.cycle)
        steps, cost = steps + part_steps, cost + part_steps * pixels / full
    return Savings(grid.epochs, intervals(grid)[-1].end, steps, cost)


def fewer_steps(grid: Multigrid) -> float:
    return grid.epochs / savings(grid).steps


# --- schedules --------------------------------------------------------------------------------------------------------

LONG = [name for name, case in CASES.items() if case.get("schedule")]
SHORT = [name for name, case in CASES.items() if "schedule" in case and not case["schedule"]]
PHASES = [
    pytest.param(name, number, id=f"{name}-{number}")
    for name, case in CASES.items()
    for number in range(len(case.get("shape_phases", ())))
]
COUNTED_PHASES = [
    phase for phase in PHASES if "batches_actual" in CASES[str(phase.values[0])]["shape_phases"][phase.values[1]]
]


EVALUATIONS = [
    *(22, 47, 72, 83, 96, 109, 119, 130, 141, 145, 151, 157, 172, 188, 204, 211, 219, 227, 233, 240, 247, 250, 254),
    *(258, 268, 279, 290, 295, 301, 307, 311, 316, 321, 322, 325, 328, 337, 347, 357),
]
"""PySlowFast's ``EVAL_FREQ: 3``, executed; it counts epochs from 0."""


@pytest.mark.parametrize("name", SHORT)
def test_short_cycles_alone(name: str) -> None:
    """PaddleVideo computes ``max_epoch * max_epoch`` epochs (57121), a bug that is not reproduced."""
    grid, case = grid_of(CASES[name]), CASES[name]
    steps, factors = zip(*learning_rates(grid), strict=True)
    assert list(steps) == case["lr_steps"]
    assert list(factors) == pytest.approx(case["relative_lrs"][: len(steps)])  # the references list more than they use
    has_bug = name == "paddle_short_only_BUG"
    assert (case["max_epoch"] == 57121) is has_bug
    assert intervals(grid)[-1].end == (358 if has_bug else case["max_epoch"])


def test_a_long_cycle_alone_works() -> None:
    """SlowFast raises an IndexError (``all_shapes[-1][2]`` of one shape); PaddleVideo has fixed it."""
    case = CASES["sf_kinetics_long_only_AS_IS"]
    assert "IndexError" in case["error"]
    assert plain(grid_of(case)) == CASES["paddle_long_only"]["schedule"]
    assert fewer_steps(grid_of(case)) == pytest.approx(2.19, abs=0.005)


def test_neither_cycle_is_the_baseline() -> None:
    grid = Multigrid(239, 64, 224, 32, (94, 154, 196), long_cycle=(), short_cycle=())
    assert learning_rates(grid) == ((0, 1), (94, 0.1), (154, 0.1**2), (196, 0.1**3))
    assert savings(grid) == (239, 239, 239, 239)
    assert {part.cycle for part in intervals(grid)} == {((64, 224),)}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "iteration_accounting" in case])
def test_savings(name: str) -> None:
    result, expected = savings(grid_of(CASES[name])), CASES[name]["iteration_accounting"]
    assert result.baseline == expected["baseline_iters_in_baseline_epochs"]
    assert result.passes == expected["total_sample_passes"]
    assert result.steps == pytest.approx(expected["multigrid_iters_in_baseline_epochs"], rel=1e-12)
    assert fewer_steps(grid_of(CASES[name])) == pytest.approx(expected["iteration_reduction"], rel=1e-12)
    assert result.cost == pytest.approx(expected["relative_cost_B*T*S*S"], rel=1e-12)
    assert result.baseline / result.cost == pytest.approx(expected["theoretical_speedup_B*T*S*S"], rel=1e-12)


def test_short_cycles_relative_to_the_base_size_save_more() -> None:
    """Another reading of the paper, short cycles of 4x, 2x, 1x at every shape: 5.06 times fewer steps, 5.12 with whole
    epochs."""
    keys: dict[str, Any] = {"batch_size": 64, "size": 224, "frames": 32, "short_cycle_relative_to": "base"}
    assert fewer_steps(Multigrid(239, milestones=(94, 154, 196), **keys)) == pytest.approx(5.12, abs=0.005)
    fine = Multigrid(239_000, milestones=(94_000, 154_000, 196_000), **keys)
    assert fewer_steps(fine) == pytest.approx(5.06, abs=0.005)


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "number"), PHASES)
def test_batch_size_norm_and_crops_of_each_phase(name: str, number: int) -> None:
    case = CASES[name]
    grid, phase = grid_of(case), case["shape_phases"][number]
    part = next(part for part in intervals(grid) if part.begin <= phase["epoch"] < part.end)
    world = case["world"]
    assert part.shape[1:] == (phase["T"], phase["S"])
    batch = phase.get("B_total", phase.get("B_per_card"))
    assert grid.batch_size * part.shape.batch_factor == batch

    splits, processes = norm(batch, world, case["bn_base"])
    if phase["bn_num_splits"] == 0:  # PaddleVideo: fewer samples than bn_base, a division by zero at run time
        assert (splits, processes) == (1, 2)
    else:
        assert splits == (phase["bn_num_splits"] or 1)
        assert processes == (phase.get("bn_num_sync_devices") or 1)

    sizes = phase.get("short_cycle_batch_sizes_per_gpu", phase.get("short_cycle_batch_sizes_per_card"))
    if sizes is None:
        assert len(part.cycle) == 1
        return
    crops = phase["short_cycle_crops"]
    if grid.size == 32 and crops[0] == 112:  # PaddleVideo hard-codes 224: crops of 112 and 158 of images of 32
        crops = [16, 23, crops[2]]
    assert [shape.batch_size for shape in part.cycle] == [size * world for size in sizes]
    assert [shape.size for shape in part.cycle] == crops
    if 0 in sizes:
        with pytest.raises(ValueError, match=r"interval 0 \(epochs 0 to 37.*larger than 45"):
            validate(grid, world)


@pytest.mark.parametrize(("name", "number"), COUNTED_PHASES)
def test_batches_of_an_epoch(name: str, number: int) -> None:
    """The references report floor or ceil of samples / mean batch; their samplers yield another number of batches."""
    phase = CASES[name]["shape_phases"][number]
    samples = phase["n_samples_per_rank"]
    cycle = tuple(map(BatchShape, phase["short_cycle_batch_sizes_per_gpu"]))

    def plan(*, drop_last: bool) -> StagedPlan:
        return StagedPlan(samples, (Stage(1, cycle),), Duration(1, "ep"), drop_last)

    ragged = plan(drop_last=False)
    assert ragged.total_steps == phase["drop_last_false"]["batches_actual"]
    assert ragged.global_batch(ragged.total_steps - 1).count == phase["drop_last_false"]["last"]
    if not phase["batches_actual"]:  # an epoch without a batch, which the references do not report
        with pytest.raises(ValueError, match="stage 0: 100 samples cannot fill its first batch of 128"):
            plan(drop_last=True)
        return
    whole = plan(drop_last=True)
    assert whole.total_steps == phase["batches_actual"]
    assert whole.samples_before(whole.total_steps) == phase["samples_used"]


def batches_of_slowfast(case: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the samples and the size of each batch, and those of SlowFast's sampler."""
    grid = Multigrid(1, case["base_batch"], case["default_S"], None, long_cycle=())
    steps = short_cycle(grid, Shape(1, 1, case["S"]))
    assert [shape.batch_size for shape in steps] == case["batch_sizes"]
    assert [shape.size for shape in steps] == case["crops"]
    stage = Stage(1, tuple(BatchShape(shape.batch_size, (shape.size,) * 2) for shape in steps))
    plan = StagedPlan(case["N"], (stage,), Duration(1, "ep"), case["drop_last"])
    plan_rows = [plan.global_batch(step) for step in range(plan.total_steps)]
    samples = [list(range(row.first, row.first + row.count)) for row in plan_rows]
    shapes = [(case["crops"][number],) * 2 for number in case["short_idx"]]
    return [samples, [row.shape for row in plan_rows]], [case["batches"], shapes]


@pytest.mark.parametrize("case", [case for case in SAMPLERS if case["source"] == "PaddleVideo"])
def test_paddlevideos_sampler(case: dict[str, Any]) -> None:
    """PaddleVideo gives each process whole cycles; here processes share every global batch. The batches have the same
    number and sizes, but no sample occurs twice (the 0 at PaddleVideo's end)."""
    ranks = case["ranks"]
    stage = Stage(1, tuple(BatchShape(size * ranks) for size in case["batch_sizes"]))
    plan = StagedPlan(case["N"], (stage,), Duration(1, "ep"), drop_last=ranks == 1)
    plan_rows = [plan.global_batch(step) for step in range(plan.total_steps)]
    assert len(plan_rows) == case["batches_actual"]
    sizes = [len(row.rank_range(case["rank"], ranks)) for row in plan_rows]
    assert sizes[:-1] == [len(batch) for batch in case["batches"]][:-1]
    assert sizes[-1] in (len(case["batches"][-1]), len(case["batches"][-1]) - 1)
    if ranks == 1:
        assert [list(range(row.first, row.first + row.count)) for row in plan_rows] == case["batches"]


# --- through the engine -----------------------------------------------------------------------------------------------


def learning_rates_of_a_run(case: dict[str, Any]) -> list[float]:
    """Return the learning rate at the start of each epoch: that of the optimizer times the warm-up of the schedule
    times the factor of the interval.

    SlowFast's warm-up rises to the learning rate at its end; if it ends in the first one, as in all of its configs, the
    values are the same.
    """
    grid, lr = grid_of(case), case["lr"]
    layout = multigrid(
        RunSpec(2400, grid.batch_size, Duration(grid.epochs, "ep"), case["world"]),
        size=grid.size,
        frames=grid.frames,
        milestones=list(grid.milestones),
        gamma=grid.gamma,
        long_cycle=list(grid.long_cycle),
        short_cycle=list(grid.short_cycle),
        drop_empty=True,
    )
    plan = StagedPlan(2400, layout.stages, layout.length)
    assert plan.epochs == case["max_epoch"]
    warm = {}
    if case["warmup"]:
        factor = case["warmup_lr"] / (lr * layout.stages[0].lr_factor)
        warm = {"warmup": Duration(case["warmup"], "ep"), "warmup_factor": factor}
    lrs = []
    for epoch in range(plan.epochs):
        step = plan.epoch_start(epoch)
        lrs.append(lr * plan.global_batch(step).lr_factor * constant(Clock.at(plan, step), **warm))
    return lrs


def test_intervals_without_epochs_are_rejected_or_dropped() -> None:
    """SlowFast's config for Something-Something has such an interval: the full shape of the second stage."""
    case = CASES["sf_ssv2_16x8_R50_multigrid"]
    grid = grid_of(case)
    assert [end for _, _, end in case["schedule"]][-3:] == [30, 30, 33]
    with pytest.raises(
        ValueError, match=r"interval 7 \(epochs 30 to 30, 64 frames of 224 x 224, batch 16\): it has no"
    ):
        validate(grid, case["world"])
    validate(grid, case["world"], empty=True)
