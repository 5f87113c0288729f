from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2

from opabinia.data.sampling.epoch_order import Permutation, epoch_order


def permuted(n: int, key: int) -> NDArray[np.int64]:
    return Permutation(n, key)(np.arange(n))


def unlikely(counts: NDArray[np.int64], expected: float | NDArray[np.float64]) -> bool:
    """Return whether counts as uneven as these have a probability below 1e-5."""
    return bool(chi2.sf(((counts - expected) ** 2 / expected).sum(), counts.size - 1) < 1e-5)


def test_the_order_never_changes() -> None:
    """Another order would change the data sequence of every existing run."""
    assert permuted(10, 0).tolist() == [4, 8, 1, 7, 0, 2, 6, 5, 3, 9]
    assert Permutation(10**9, 7)(np.array([500_000_000, 500_000_001])).tolist() == [793676653, 271513316]
    assert Permutation(2**62, 7)(np.array([0, 2**62 - 1])).tolist() == [4511956061382625721, 3118723154073446251]


def test_epoch_orders_are_bijective() -> None:
    for n in (*range(130), 255, 256, 257, 1000, 2**16 - 1, 2**16, 2**16 + 1, 99_991):
        indices = permuted(n, key=n + 1)
        assert indices.dtype == np.int64
        assert np.array_equal(np.sort(indices), np.arange(n))


@given(n=st.integers(1, 2**62), key=st.integers(0, 2**32 - 1), data=st.data())
def test_single_positions_of_any_size(n: int, key: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=40, unique=True))
    permutation = Permutation(n, key)
    indices = permutation(np.array(positions, dtype=np.int64))
    assert len(set(indices.tolist())) == len(positions)
    assert indices.min() >= 0 and indices.max() < n
    assert permutation(np.array(positions[-1:])).tolist() == indices[-1:].tolist()


def test_positions_and_sizes_out_of_range_raise() -> None:
    for position in (-1, 5, 2**40):
        with pytest.raises(IndexError, match="of an order of 5"):
            Permutation(5, 0)(np.array([0, position]))
    for n in (-1, 2**62 + 1):
        with pytest.raises(ValueError, match="between 0 and"):
            Permutation(n, 0)
    assert Permutation(24, 3)(np.zeros((0, 2), dtype=np.int64)).shape == (0, 2)


@pytest.mark.parametrize("n", [3, 4, pytest.param(5, marks=pytest.mark.slow)])
def test_all_orders_of_few_samples_are_equally_likely(n: int) -> None:
    number = {order: i for i, order in enumerate(permutations(range(n)))}
    drawn = [number[tuple(permuted(n, key).tolist())] for key in range(50 * len(number))]
    assert not unlikely(np.bincount(drawn, minlength=len(number)), 50)


@pytest.mark.parametrize("n", [1000, 100_003])
def test_every_index_is_equally_likely_at_a_position(n: int) -> None:
    drawn = np.array([Permutation(n, key)(np.array([n // 2]))[0] for key in range(1000)])
    assert not unlikely(np.bincount(drawn * 25 // n, minlength=25), 40)


@pytest.mark.parametrize("n", [997, 1024, 100_003])
def test_neighbors_are_independent(n: int) -> None:
    keys = range(100) if n < 2000 else range(2)
    steps = np.concatenate([np.diff(permuted(n, key)) % n for key in keys])
    share_of_bin = np.bincount(np.arange(n - 1) * 97 // (n - 1)) / (n - 1)
    assert not unlikely(np.bincount((steps - 1) * 97 // (n - 1)), steps.size * share_of_bin)


def test_orders_of_successive_keys_are_independent() -> None:
    orders = [permuted(1000, key) for key in range(400)]
    fixed_points = np.array([(order == np.arange(1000)).sum() for order in orders])
    equal_positions = np.array([(a == b).sum() for a, b in pairwise(orders)])
    for matches in (
        fixed_points,
        equal_positions,
    ):  # Poisson with mean 1, of which this is the mean of 400: 5 standard deviations
        assert abs(matches.mean() - 1) < 0.25


def test_epoch_order() -> None:
    positions = np.arange(50)
    orders = [epoch_order(seed, epoch, 50, shuffle=True)(positions).tolist() for seed in (1, 2) for epoch in (2, 3)]
    assert len({*map(tuple, orders)}) == 4
    assert np.array_equal(epoch_order(1, 2, 50, shuffle=False)(positions), positions)
