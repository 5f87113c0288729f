"""Shares of streams in a batch, and the streams of a step."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opabinia.data.streams.order import StreamCycle, StreamShares, alternating_cycle, divide, stream_shares

weights = st.lists(st.integers(1, 50), min_size=1, max_size=6)


def normalized(values: list[int]) -> dict[str, float]:
    return {str(number): value / sum(values) for number, value in enumerate(values)}


@given(weights, st.integers(0, 200))
def test_a_batch_is_divided_by_the_shares(values: list[int], extra: int) -> None:
    shares, total = normalized(values), len(values) + extra
    counts = divide(total, shares)
    assert list(counts) == list(shares) and sum(counts.values()) == total and min(counts.values()) >= 1
    if min(shares.values()) * total >= 1:
        assert all(abs(counts[name] - total * share) < 1 for name, share in shares.items())


def test_divide_examples_and_too_small_batches() -> None:
    assert divide(16, {"a": 0.7, "b": 0.2, "c": 0.1}) == {"a": 11, "b": 3, "c": 2}
    assert divide(3, {"a": 0.98, "b": 0.01, "c": 0.01}) == {"a": 1, "b": 1, "c": 1}
    with pytest.raises(ValueError, match="1 sample cannot be divided among 2 streams"):
        divide(1, {"a": 0.5, "b": 0.5})


def test_shares_by_size_temperature_and_given() -> None:
    sizes = {"a": 900, "b": 100}
    assert stream_shares(sizes, {"a": None, "b": None}) == pytest.approx({"a": 0.9, "b": 0.1})
    assert stream_shares(sizes, {"a": None, "b": None}, 2.0) == pytest.approx({"a": 0.75, "b": 0.25})
    assert stream_shares(sizes, {"a": None, "b": None}, 1e9) == pytest.approx({"a": 0.5, "b": 0.5})
    shares = stream_shares({**sizes, "c": 7}, {"a": None, "b": None, "c": 0.5}, 2.0)
    assert shares == pytest.approx({"a": 0.375, "b": 0.125, "c": 0.5}) and list(shares) == ["a", "b", "c"]
    for given_shares, message in (
        ({"a": 0.3, "b": 0.3}, r"tasks.a.batch_share: the shares of the streams sum to 0.6 \(a 0.3, b 0.3\), not to 1"),
        ({"a": 0.7, "b": 0.7}, "sum to 1.4"),
        ({"a": 1.0, "b": None}, "the given shares sum to 1 and leave nothing for b"),
        ({"a": 0.0, "b": None}, "tasks.a.batch_share: expected a number above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            stream_shares(sizes, given_shares)


@given(weights, st.integers(0, 2**31 - 1))
def test_steps_before_equals_counting_step_by_step(values: list[int], seed: int) -> None:
    shares = normalized(values)
    for cycle in (StreamShares(shares, alternate).cycle(seed) for alternate in (False, True)):
        counts = dict.fromkeys(shares, 0)
        for step in range(2 * len(cycle.steps) + 3):
            assert {name: cycle.steps_before(name, step) for name in shares} == counts
            for name in cycle.active(step):
                counts[name] += 1
        assert set(counts) == set(shares) and min(counts.values()) > 0


@given(weights, st.integers(0, 2**31 - 1))
def test_steps_of_a_stream_are_spread_evenly(values: list[int], seed: int) -> None:
    shares = normalized(values)
    cycle = alternating_cycle(shares, seed)
    assert cycle == alternating_cycle(shares, seed)
    for name in shares:
        steps = [step for step, names in enumerate(cycle.steps * 2) if name in names]
        gaps = [after - before for before, after in pairwise(steps)]
        assert max(gaps) <= 2 * len(cycle.steps) / (len(steps) / 2) + len(shares)
    assert StreamCycle((("a",), ("b",))).steps_before("b", 3) == 1
