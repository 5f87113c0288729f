from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from opabinia.contracts import BatchShape, Clock, GlobalBatch, Plan, Stage
from opabinia.data.sampling.batches import ConstantPlan, StagedPlan, evaluation_batches
from opabinia.runtime.durations import Duration

lengths = st.one_of(
    st.floats(0, 4).map(lambda value: Duration(value, "ep")),
    st.integers(0, 60).map(lambda value: Duration(value, "it")),
)
sizes = st.integers(1, 40)
EPOCH = Duration(1, "ep")


@pytest.mark.parametrize(
    ("length", "steps", "epochs"),
    [("2ep", 8, 2), ("0.5ep", 2, 1), ("1.25ep", 5, 2), ("7it", 7, 2), ("0ep", 0, 0), ("0it", 0, 0), ("0.001ep", 1, 1)],
)
def test_lengths(length: str, steps: int, epochs: int) -> None:
    plan = ConstantPlan(10, 3, Duration.parse(length))
    assert (plan.total_steps, plan.epochs) == (steps, epochs)


@given(st.integers(0, 200), st.integers(1, 20))
def test_shares_make_up_the_batch(count: int, world: int) -> None:
    row = GlobalBatch(step=0, epoch=0, first=0, count=count)
    shares = [row.rank_range(rank, world) for rank in range(world)]
    assert sum(map(len, shares)) == row.num_processed(world)
    if count < world:  # each process has the whole batch
        assert shares == [range(count)] * world
    else:
        assert [position for share in shares for position in share] == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(0, 200), sizes, st.integers(1, 9))
def test_ranks_evaluate_batches_in_turn(samples: int, batch_size: int, world: int) -> None:
    expected = list(evaluation_batches(samples, batch_size, 0, 1))
    assert [position for row in expected for position in range(row.first, row.first + row.count)] == list(
        range(samples)
    )
    for rank in range(world):
        assert list(evaluation_batches(samples, batch_size, rank, world)) == expected[rank::world]


# --- stages -----------------------------------------------------------------------------------------------------------

cycles = st.lists(st.integers(1, 15), min_size=1, max_size=4)
stages = st.lists(st.tuples(st.integers(1, 4), cycles), min_size=1, max_size=4)


def stages_of(epochs_and_sizes: list[tuple[int, list[int]]]) -> tuple[Stage, ...]:
    """Return stages with these epochs and batch sizes; every batch has its own shape, every stage its own factor."""
    return tuple(
        Stage(
            epochs, tuple(BatchShape(count, (stage, turn)) for turn, count in enumerate(cycle)), 0.5**stage, stage + 1
        )
        for stage, (epochs, cycle) in enumerate(epochs_and_sizes)
    )


def enumerate_rows(samples: int, planned: tuple[Stage, ...], epochs: int, drop_last: bool) -> list[list[GlobalBatch]]:
    """Return the rows of every epoch, computed batch by batch."""
    result: list[list[GlobalBatch]] = []
    step = 0
    each = [stage for stage in planned for _ in range(stage.epochs)]
    for epoch, stage in enumerate([*each, *[planned[-1]] * epochs][:epochs]):
        rows, position, turn = [], 0, 0
        while position < samples:
            size, shape = stage.cycle[turn % len(stage.cycle)]
            count = min(size, samples - position)
            if count < size and drop_last:
                break
            rows.append(GlobalBatch(step, epoch, position, count, shape, stage.lr_factor))
            position, turn, step = position + count, turn + 1, step + 1
        result.append(rows)
    return result


@given(sizes, stages, lengths, st.booleans())
def test_staged_plans_equal_an_enumeration(
    samples: int, described: list[tuple[int, list[int]]], length: Duration, drop_last: bool
) -> None:
    assume(not drop_last or max(cycle[0] for _, cycle in described) <= samples)
    planned = stages_of(described)
    plan = StagedPlan(samples, planned, length, drop_last)
    assert isinstance(plan, Plan)
    epochs = enumerate_rows(samples, planned, 70, drop_last)
    rows = [row for epoch in epochs for row in epoch]
    assert [plan.global_batch(step) for step in range(plan.total_steps)] == rows[: plan.total_steps]
    assert plan.epochs == (rows[plan.total_steps - 1].epoch + 1 if plan.total_steps else 0)
    starts = [0]
    for epoch in epochs:
        starts.append(starts[-1] + len(epoch))
    assert [plan.epoch_start(epoch) for epoch in range(len(starts))] == starts
    for step in range(plan.total_steps + 1):
        assert plan.samples_before(step) == sum(row.count for row in rows[:step])
    if not drop_last:  # each position once
        assert all(
            [p for row in epoch for p in range(row.first, row.first + row.count)] == list(range(samples))
            for epoch in epochs
        )
    full_epochs = int(length.value) if length.unit == "ep" else 0
    if length.unit == "ep":
        assert starts[full_epochs] <= plan.total_steps <= max(1, starts[full_epochs + 1])
    else:
        assert plan.total_steps == length.value


@given(sizes, stages, lengths)
def test_the_clock_agrees_with_a_staged_plan(
    samples: int, described: list[tuple[int, list[int]]], length: Duration
) -> None:
    plan = StagedPlan(samples, stages_of(described), length)
    assume(plan.total_steps)
    following = Clock.at(plan, 0)
    for step in range(plan.total_steps + 1):
        clock = Clock.at(plan, step)
        assert clock == following
        assert plan.epoch_start(clock.epoch) + clock.epoch_step == step
        assert clock.samples == plan.samples_before(step)
        epoch = min(clock.epoch, plan.epochs - 1)
        assert clock.steps_per_epoch == plan.epoch_start(epoch + 1) - plan.epoch_start(epoch)
        assert clock.epochs_at(step) == pytest.approx(clock.epochs_done)
        for epochs in range(6):
            assert clock.steps(Duration(epochs, "ep")) == plan.epoch_start(epochs)
            assert clock.length_of(epochs) == plan.epoch_start(epochs + 1) - plan.epoch_start(epochs)
        if step < plan.total_steps:
            following = following.following(plan, plan.global_batch(step))


def test_durations_if_epochs_differ_in_length() -> None:
    """Epochs of 3, 3, 6, 6 ... steps."""
    plan = StagedPlan(12, stages_of([(2, [4]), (2, [2])]), Duration(3.5, "ep"))
    assert plan.total_steps == 15
    result = [
        Clock.at(plan, step).steps(Duration.parse(text)) for step in (0, 14) for text in ("2ep", "2.5ep", "5it", "9ep")
    ]
    assert result == [6, 9, 5, 48] * 2
    assert Clock.at(plan, 0).steps(Duration(0, "ep")) == 0
    assert Clock.at(plan, 0).steps(Duration(0.01, "ep")) == 1


@given(sizes, sizes, lengths, st.booleans())
def test_a_stage_of_one_batch_is_a_constant_plan(
    samples: int, batch_size: int, length: Duration, drop_last: bool
) -> None:
    assume(not drop_last or batch_size <= samples)
    constant = ConstantPlan(samples, batch_size, length, drop_last)
    stages = Stage(2, (BatchShape(batch_size),)), Stage(1, (BatchShape(batch_size),))
    staged = StagedPlan(samples, stages, length, drop_last)
    assert isinstance(constant, Plan)
    for name in ("total_steps", "epochs", "steps_per_epoch"):
        assert getattr(staged, name) == getattr(constant, name)
    assert all(staged.epoch_start(epoch) == constant.epoch_start(epoch) for epoch in range(constant.epochs + 1))
    for step in range(staged.total_steps):
        assert staged.global_batch(step) == constant.global_batch(step)
        assert Clock.at(staged, step) == Clock.at(constant, step)
    for step in range(staged.total_steps + 1):
        assert staged.samples_before(step) == constant.samples_before(step)
    assert Clock.at(staged, 0).starts is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConstantPlan(0, 4, EPOCH), "the training data is empty"),
        (lambda: ConstantPlan(3, 4, EPOCH, True), "set drop_last to false or batch_size to 3"),
        (lambda: ConstantPlan(3, 0, EPOCH), "at least 1 sample, not 0"),
        (lambda: StagedPlan(0, stages_of([(1, [4])]), EPOCH), "the training data is empty"),
        (lambda: StagedPlan(9, (), EPOCH), "at least one stage"),
        (lambda: StagedPlan(9, stages_of([(1, [4]), (0, [4])]), EPOCH), "stage 1 has 0 epochs"),
        (lambda: StagedPlan(9, stages_of([(1, [4, 0])]), EPOCH), r"stage 0 has 1 epoch with batches of \[4, 0\]"),
        (lambda: StagedPlan(9, stages_of([(1, [])]), EPOCH), r"stage 0 has 1 epoch with batches of \[\]"),
        (
            lambda: StagedPlan(9, stages_of([(1, [4]), (1, [10, 2])]), EPOCH, True),
            "stage 1: 9 samples cannot fill its first batch of 10",
        ),
    ],
)
def test_invalid_plans_raise(make: Callable[[], Plan], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_step_out_of_range_raises() -> None:
    for plan in (ConstantPlan(10, 3, Duration(2, "ep")), StagedPlan(10, stages_of([(2, [3])]), Duration(2, "ep"))):
        for step in (-1, 8):
            with pytest.raises(IndexError, match=f"step {step} of a run of 8"):
                plan.global_batch(step)


def test_rows_of_a_large_dataset_are_computed_directly() -> None:
    """A row is computed without iteration: here of two billion samples and 358 epochs."""
    plan = StagedPlan(2 * 10**9, stages_of([(100, [4, 2, 2]), (258, [4, 2, 1])]), Duration(358, "ep"))
    assert plan.global_batch(plan.total_steps - 1).epoch == 357
    assert plan.samples_before(plan.total_steps) == 358 * 2 * 10**9
