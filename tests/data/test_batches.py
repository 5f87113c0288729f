import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from opabinia.contracts import Clock, Plan, Row
from opabinia.data.batches import ConstantPlan, evaluation_rows
from opabinia.runtime.durations import Duration

lengths = st.one_of(
    st.floats(0, 4).map(lambda value: Duration(value, "ep")),
    st.integers(0, 60).map(lambda value: Duration(value, "it")),
)
sizes = st.integers(1, 40)


@given(sizes, sizes, lengths, st.booleans())
def test_a_plan_walks_through_the_epochs(samples: int, batch_size: int, length: Duration, drop_last: bool) -> None:
    assume(not drop_last or batch_size <= samples)
    plan = ConstantPlan(samples, batch_size, length, drop_last)
    assert isinstance(plan, Plan)
    step = seen = 0
    for epoch in range(plan.epochs):
        assert plan.epoch_start(epoch) == step
        position = 0
        while step < plan.total_steps and position < samples - (batch_size - 1) * drop_last:
            row = plan.row(step)
            assert (row.step, row.epoch, row.first) == (step, epoch, position)
            assert row.count == min(batch_size, samples - position)
            assert plan.samples_before(step) == seen
            position += row.count
            seen += row.count
            step += 1
    assert step == plan.total_steps
    assert plan.samples_before(step) == seen
    assert plan.total_steps <= plan.epoch_start(plan.epochs)


@given(sizes, sizes, lengths)
def test_the_clock_agrees(samples: int, batch_size: int, length: Duration) -> None:
    plan = ConstantPlan(samples, batch_size, length)
    assume(plan.total_steps)
    for step in range(plan.total_steps + 1):
        clock = Clock.at(plan, step)
        assert clock.epoch * plan.steps_per_epoch + clock.epoch_step == step
        assert clock.steps_per_epoch == plan.steps_per_epoch


@pytest.mark.parametrize(
    ("length", "steps", "epochs"),
    [("2ep", 8, 2), ("0.5ep", 2, 1), ("1.25ep", 5, 2), ("7it", 7, 2), ("0ep", 0, 0), ("0it", 0, 0), ("0.001ep", 1, 1)],
)
def test_lengths(length: str, steps: int, epochs: int) -> None:
    plan = ConstantPlan(10, 3, Duration.parse(length))
    assert (plan.total_steps, plan.epochs) == (steps, epochs)


@pytest.mark.parametrize("step", [-1, 8])
def test_no_such_step(step: int) -> None:
    with pytest.raises(IndexError, match="run of 8"):
        ConstantPlan(10, 3, Duration(2, "ep")).row(step)


@pytest.mark.parametrize(
    ("samples", "batch_size", "drop_last", "message"),
    [(0, 4, False, "empty"), (3, 4, True, "set drop_last to false or batch_size to 3"), (3, 0, False, "at least 1")],
)
def test_nothing_to_train_on(samples: int, batch_size: int, drop_last: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConstantPlan(samples, batch_size, Duration(1, "ep"), drop_last)


@given(st.integers(0, 200), st.integers(1, 20))
def test_shares_make_up_the_batch(count: int, world: int) -> None:
    row = Row(step=0, epoch=0, first=0, count=count)
    shares = [row.share(rank, world) for rank in range(world)]
    assert sum(map(len, shares)) == row.seen(world)
    if count < world:  # rather all of it than nothing
        assert shares == [range(count)] * world
    else:
        assert [position for one in shares for position in one] == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(0, 200), sizes, st.integers(1, 9))
def test_evaluation_takes_whole_batches_in_turn(samples: int, batch_size: int, world: int) -> None:
    alone = list(evaluation_rows(samples, batch_size, 0, 1))
    assert [position for row in alone for position in range(row.first, row.first + row.count)] == list(range(samples))
    for rank in range(world):
        assert list(evaluation_rows(samples, batch_size, rank, world)) == alone[rank::world]
