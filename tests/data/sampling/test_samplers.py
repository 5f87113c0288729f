"""Samplers: invariants of all, and the behaviour of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opabinia.contracts import Sample, Sampler, Source, SourceInfo
from opabinia.data.sampling import samplers as s
from opabinia.data.sources import Concat, Digits


class Labelled(Source):
    """The attributes of a source that a sampler uses."""

    def __init__(self, counts: Sequence[int]) -> None:
        labels = np.repeat(np.arange(len(counts)), counts)
        self.info = SourceInfo(channels=1, classes=tuple("abcdefghij"[: len(counts)]), labels=labels)

    def __len__(self) -> int:
        return len(np.asarray(self.info.labels))

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError


BATCH = 8
COUNTS = (5, 4, 2, 6, 1)
SOURCE = Labelled(COUNTS)
CONCAT_SOURCE = Labelled((10, 20, 30))
CONCAT_SOURCE.info = replace(CONCAT_SOURCE.info, starts=(0, 10, 30))

SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "weighted": lambda seed: s.Weighted(SOURCE, seed, BATCH),
    "balanced": lambda seed: s.balanced(SOURCE, seed, BATCH, length=23),
    "mixed": lambda seed: s.mixed_sources(CONCAT_SOURCE, seed, BATCH, weights=[1, 1, 2], length=47),
    "repeated": lambda seed: s.Repeated(SOURCE, seed, BATCH),
    "subset": lambda seed: s.Subset(SOURCE, seed, BATCH, fraction=0.5),
    "subset of a number": lambda seed: s.Subset(SOURCE, seed, BATCH, num_samples=9),
}


def epoch(sampler: Sampler, number: int = 0) -> list[int]:
    return sampler.order(number)(np.arange(len(sampler))).tolist()


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_single_position_has_the_same_index(name: str) -> None:
    sampler = SAMPLERS[name](3)
    for number in (0, 1, 5):
        expected, order = epoch(sampler, number), sampler.order(number)
        assert [int(order(np.array([position]))[0]) for position in range(len(sampler))] == expected
        indices = order(np.arange(len(sampler)).reshape(1, -1))
        assert indices.shape == (1, len(sampler)) and indices.dtype == np.int64
        assert int(order(np.array(7))) == expected[7]


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_order_depends_on_seed_and_epoch(name: str) -> None:
    first, repeated, other = SAMPLERS[name](3), SAMPLERS[name](3), SAMPLERS[name](4)
    assert epoch(first, 2) == epoch(repeated, 2)
    assert epoch(first, 2) != epoch(first, 3) and epoch(first, 2) != epoch(other, 2)


# --- weighted ---------------------------------------------------------------------------------------------------------


def test_fastreids_weights() -> None:
    weights = s.sample_weights(SOURCE, "inverse")
    assert weights.tolist() == [1 / count for count in COUNTS for _ in range(count)]


@pytest.mark.parametrize(
    ("keys", "shares"),
    [
        ({}, [0.2] * 5),
        ({"weighting": "sqrt"}, (np.sqrt(COUNTS) / np.sqrt(COUNTS).sum()).tolist()),
        ({"class_weights": {"a": 0, "b": 3}}, [0, 12 / 21, 2 / 21, 6 / 21, 1 / 21]),
    ],
)
def test_samples_are_drawn_by_weight(keys: dict[str, Any], shares: list[float]) -> None:
    drawn = epoch(s.Weighted(SOURCE, 0, BATCH, length=20_000, **keys))
    result = np.bincount(SOURCE.info.labels[drawn], minlength=5) / len(drawn)
    assert result.tolist() == pytest.approx(shares, abs=0.012)
    assert 0.0 not in shares or result[0] == 0


def test_invalid_weights_raise() -> None:
    with pytest.raises(ValueError, match="there is no class 'dog'; classes: a, b"):
        s.Weighted(SOURCE, 0, BATCH, class_weights={"dog": 1.0})
    with pytest.raises(ValueError, match="all weights are 0"):
        s.Weighted(Labelled([2]), 0, BATCH, class_weights={"a": 0.0})


@pytest.mark.parametrize("weighting", ["inverse", "sqrt"])
def test_a_class_without_samples_cannot_be_weighted(weighting: Any) -> None:
    with pytest.raises(ValueError, match="no sample of class b; give it the weight 0 under class_weights"):
        s.Weighted(Labelled([2, 0, 1]), 0, BATCH, weighting=weighting)
    with pytest.raises(ValueError, match="no sample of class b; give it the weight 0"):
        s.Weighted(Labelled([2, 0, 1]), 0, BATCH, class_weights={"a": 2.0})
    assert set(epoch(s.Weighted(Labelled([2, 0, 1]), 0, BATCH, class_weights={"b": 0.0}, length=99))) == {0, 1, 2}
    with pytest.raises(ValueError, match="Labelled holds no sample"):
        s.Weighted(Labelled([]), 0, BATCH)


# --- balanced, mixed --------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(1, 60))
def test_every_class_is_equally_frequent(seed: int, counts: list[int], length: int) -> None:
    source = Labelled(counts)
    sampler = s.balanced(source, seed, BATCH, length=length)
    for number in range(3):
        result = np.bincount(source.info.labels[epoch(sampler, number)], minlength=len(counts))
        assert result.sum() == length and result.max() - result.min() <= 1


def test_no_sample_is_repeated_before_all_of_its_class() -> None:
    source = Labelled([5, 2])
    sampler = s.balanced(source, 0, BATCH, length=10)
    counts: Counter[int] = Counter()
    for number in range(7):
        counts.update(epoch(sampler, number))
        of_first = [counts[index] for index in range(5)]
        assert max(of_first) - min(of_first) <= 1
    assert counts[0] == 7


@given(st.integers(0, 2**31), st.lists(st.integers(1, 7), min_size=2, max_size=4), st.integers(4, 60))
def test_passes_over_a_class_are_complete(seed: int, counts: list[int], length: int) -> None:
    """Within and across epochs, counts of the samples of a class differ by at most one at any time."""
    source = Labelled(counts)
    sampler = s.balanced(source, seed, BATCH, length=length)
    drawn = [index for number in range(3) for index in epoch(sampler, number)]
    for label, size in enumerate(counts):
        of_class = [index for index in drawn if source.info.labels[index] == label]
        for start in range(0, len(of_class), size):
            one_pass = of_class[start : start + size]
            assert len(set(one_pass)) == len(one_pass)


def test_passes_over_concatenated_sources_are_complete() -> None:
    sampler = s.mixed_sources(CONCAT_SOURCE, 5, BATCH, weights=[5, 1, 2], length=50)
    drawn = [index for number in range(4) for index in epoch(sampler, number)]
    for start, end in ((0, 10), (10, 30), (30, 60)):
        of_part = [index for index in drawn if start <= index < end]
        for first in range(0, len(of_part), end - start):
            one_pass = of_part[first : first + end - start]
            assert len(set(one_pass)) == len(one_pass)


def test_neighboring_classes_are_independent() -> None:
    """A tenth of neighbors have the same class; of 10000, 5 standard deviations are 0.015."""
    source = Labelled([100] * 10)
    labels = source.info.labels[epoch(s.balanced(source, 1, BATCH, length=10_000))]
    assert (labels[1:] == labels[:-1]).mean() == pytest.approx(0.1, abs=0.015)


def test_an_empty_class_cannot_be_balanced() -> None:
    with pytest.raises(ValueError, match="no sample of class b"):
        s.balanced(Labelled([2, 0, 1]), 0, BATCH)


def test_shares_of_concatenated_sources_are_exact() -> None:
    sampler = s.mixed_sources(CONCAT_SOURCE, 0, BATCH, weights=[1, 0, 3], length=40)
    for number in (0, 3):
        drawn = np.array(epoch(sampler, number))
        assert np.histogram(drawn, [0, 10, 30, 60])[0].tolist() == [10, 0, 30]
    assert sorted(epoch(sampler)[:0] + [i for i in epoch(sampler) if i < 10]) == list(range(10))


def test_mixed_sources_needs_a_concatenated_source() -> None:
    concat = Concat(sources=[Digits(), Digits()])
    assert len(s.mixed_sources(concat, 0, BATCH, weights=[1, 2])) == len(concat)
    with_empty_source = Labelled([3, 1])
    with_empty_source.info = replace(with_empty_source.info, starts=(0, 4))
    with pytest.raises(ValueError, match=r"weights\.1 is 2, but this source holds no sample"):
        s.mixed_sources(with_empty_source, 0, BATCH, weights=[1, 2])
    assert sorted(epoch(s.mixed_sources(with_empty_source, 0, BATCH, weights=[1, 0]))) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="2 sources need as many"):
        s.mixed_sources(concat, 0, BATCH, weights=[1])
    with pytest.raises(ValueError, match="mixed_sources weights concatenated sources; this is a Labelled"):
        s.mixed_sources(SOURCE, 0, BATCH, weights=[1])


@pytest.mark.parametrize(
    ("total", "weights", "parts"), [(10, [1, 1, 1], [4, 3, 3]), (7, [1, 0, 3], [2, 0, 5]), (2, [1, 1, 1], [1, 1, 0])]
)
def test_apportion(total: int, weights: list[float], parts: list[int]) -> None:
    assert s.apportion(total, weights) == parts


# --- repeated, subset -------------------------------------------------------------------------------------------------


def test_repeats_are_adjacent() -> None:
    sampler = s.Repeated(SOURCE, 0, BATCH, num_repeats=3)
    result = epoch(sampler)
    assert len(result) == len(SOURCE) == 18
    assert all(len(set(result[start : start + 3])) == 1 for start in range(0, 18, 3)) and len(set(result)) == 6
    longer = epoch(s.Repeated(SOURCE, 0, BATCH, num_repeats=3, extend_epoch=True))
    assert Counter(longer) == {index: 3 for index in range(18)}


def test_a_subset_is_the_same_in_every_run() -> None:
    first, other = (s.Subset(SOURCE, seed, BATCH, fraction=0.5) for seed in (0, 1))
    assert set(epoch(first)) == set(epoch(other)) == set(epoch(first, 1))
    assert np.bincount(SOURCE.info.labels[epoch(first)]).tolist() == [2, 2, 1, 3, 1]
    assert set(epoch(s.Subset(SOURCE, 0, BATCH, fraction=0.5, subset_seed=1))) != set(epoch(first))
    assert len(s.Subset(SOURCE, 0, BATCH, fraction=0.25, stratified=False)) == 4


def test_a_subset_of_a_number_of_samples() -> None:
    source = Labelled([50, 30, 20])
    assert np.bincount(source.info.labels[epoch(s.Subset(source, 0, BATCH, num_samples=10))]).tolist() == [5, 3, 2]
    assert len(epoch(s.Subset(source, 0, BATCH, num_samples=7))) == 7
    assert len(set(epoch(s.Subset(source, 0, BATCH, num_samples=7, stratified=False)))) == 7
    assert sorted(epoch(s.Subset(source, 0, BATCH, num_samples=100))) == list(range(100))
    equal = s.Subset(source, 0, BATCH, num_samples=10, equal_classes=True)
    assert np.bincount(source.info.labels[epoch(equal)]).tolist() == [4, 3, 3]
    with pytest.raises(ValueError, match="equal_classes: classes have fewer than 21 samples: c"):
        s.Subset(source, 0, BATCH, num_samples=63, equal_classes=True)
    with pytest.raises(ValueError, match="equal_classes: it belongs to num_samples"):
        s.Subset(source, 0, BATCH, equal_classes=True)
    with pytest.raises(ValueError, match="num_samples: 101 of 100 samples"):
        s.Subset(source, 0, BATCH, num_samples=101)


def test_sources_without_labels_raise() -> None:
    class Unlabeled(Labelled):
        def __init__(self) -> None:
            super().__init__([1])
            self.info = replace(self.info, labels=None)

    class MultiLabel(Labelled):
        def __init__(self) -> None:
            super().__init__([1])
            self.info = replace(self.info, labels=np.zeros((1, 3)))

    for make in (s.Weighted, s.balanced):
        with pytest.raises(ValueError, match="Unlabeled does not know the labels"):
            make(Unlabeled(), 0, BATCH)
        with pytest.raises(ValueError, match="these have several"):
            make(MultiLabel(), 0, BATCH)
