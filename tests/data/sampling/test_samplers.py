"""General samplers: their shares, passes, subsets and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opabinia.contracts import Sample, Sampler, Source, SourceInfo
from opabinia.data.sampling import samplers as s
from opabinia.data.sampling.identity_samplers import identities
from opabinia.data.sources import Concat, Digits


class Labelled(Source):
    """The attributes of a source that a sampler uses."""

    def __init__(self, counts: Sequence[int]) -> None:
        labels = np.repeat(np.arange(len(counts)), counts)
        self._count = len(labels)
        self.info = SourceInfo(channels=1, classes=tuple("abcdefghij"[: len(counts)]), labels=labels)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError


BATCH = 8
COUNTS = (5, 4, 2, 6, 1)
SOURCE = Labelled(COUNTS)
CONCAT_SOURCE = Labelled((10, 20, 30))
CONCAT_SOURCE.info = replace(CONCAT_SOURCE.info, starts=(0, 10, 30))


def epoch(sampler: Sampler, number: int = 0) -> list[int]:
    return sampler.order(number)(np.arange(len(sampler))).tolist()


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
    drawn = epoch(s.weighted(SOURCE, 0, BATCH, length=20_000, **keys))
    result = np.bincount(SOURCE.info.labels[drawn], minlength=5) / len(drawn)
    assert result.tolist() == pytest.approx(shares, abs=0.012)
    assert 0.0 not in shares or result[0] == 0


@pytest.mark.parametrize(
    ("counts", "keys", "message"),
    [
        ([2, 1], {"class_weights": {"dog": 1.0}}, "there is no class 'dog'; classes: a, b"),
        ([2], {"class_weights": {"a": 0.0}}, "all weights are 0"),
        ([2, 0, 1], {}, "no sample of class b; give it the weight 0 under class_weights"),
        ([2, 0, 1], {"weighting": "sqrt"}, "no sample of class b; give it the weight 0 under class_weights"),
        ([2, 0, 1], {"class_weights": {"a": 2.0}}, "no sample of class b; give it the weight 0"),
        ([0] * 7, {}, "Labelled holds no sample to draw"),
        ([1, *[0] * 7], {}, "no sample of class b, c, d, e, f and 2 more"),
    ],
)
def test_invalid_weights_raise(counts: list[int], keys: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        s.weighted(Labelled(counts), 0, BATCH, **keys)
    sampler = s.weighted(Labelled([2, 0, 1]), 0, BATCH, class_weights={"b": 0.0}, length=99)
    assert set(epoch(sampler)) == {0, 1, 2}, "a class without samples may have the weight 0"


# --- balanced, mixed --------------------------------------------------------------------------------------------------


def assert_complete_passes(drawn: list[int], groups: Any) -> None:
    """Assert that no sample of a group is repeated before all of it have come."""
    for group in groups:
        of_group = [index for index in drawn if index in group]
        for start in range(0, len(of_group), len(group)):
            one_pass = of_group[start : start + len(group)]
            assert len(set(one_pass)) == len(one_pass)


@given(st.integers(0, 2**31), st.lists(st.integers(1, 7), min_size=2, max_size=4), st.integers(4, 60))
def test_classes_are_equally_frequent_and_their_passes_complete(seed: int, counts: list[int], length: int) -> None:
    """Within and across epochs."""
    source = Labelled(counts)
    sampler = s.balanced(source, seed, BATCH, length=length)
    epochs = [epoch(sampler, number) for number in range(3)]
    for drawn in epochs:
        result = np.bincount(source.info.labels[drawn], minlength=len(counts))
        assert result.sum() == length and result.max() - result.min() <= 1
    groups = [np.flatnonzero(source.info.labels == label).tolist() for label in range(len(counts))]
    assert_complete_passes(sum(epochs, []), groups)  # noqa: RUF017


def test_shares_of_concatenated_sources_are_exact_and_their_passes_complete() -> None:
    for weights, counts in (([5, 1, 2], [31, 6, 13]), ([1, 0, 3], [13, 0, 37])):
        sampler = s.mixed_sources(CONCAT_SOURCE, 5, BATCH, weights=weights, length=50)
        epochs = [epoch(sampler, number) for number in range(4)]
        for drawn in epochs:
            assert np.histogram(drawn, [0, 10, 30, 60])[0].tolist() == counts
        assert_complete_passes(sum(epochs, []), [range(10), range(10, 30), range(30, 60)])  # noqa: RUF017


def test_neighboring_classes_are_independent() -> None:
    """A tenth of neighbors have the same class; of 10000, 5 standard deviations are 0.015."""
    source = Labelled([100] * 10)
    labels = source.info.labels[epoch(s.balanced(source, 1, BATCH, length=10_000))]
    assert (labels[1:] == labels[:-1]).mean() == pytest.approx(0.1, abs=0.015)


def test_mixed_sources_needs_a_concatenated_source() -> None:
    concat = Concat(sources=[Digits(), Digits()])
    assert len(s.mixed_sources(concat, 0, BATCH, weights=[1, 2])) == len(concat)
    with_empty_source = Labelled([3, 1])
    with_empty_source.info = replace(with_empty_source.info, starts=(0, 4))
    assert sorted(epoch(s.mixed_sources(with_empty_source, 0, BATCH, weights=[1, 0]))) == [0, 1, 2, 3]
    for source, weights, message in (
        (with_empty_source, [1, 2], r"weights\.1 is 2, but this source holds no sample"),
        (concat, [1], "2 sources need as many"),
        (concat, [0, 0], "not all 0"),
        (SOURCE, [1], "mixed_sources weights concatenated sources; this is a Labelled"),
    ):
        with pytest.raises(ValueError, match=message):
            s.mixed_sources(source, 0, BATCH, weights=weights)


def test_apportion() -> None:
    cases = [(10, [1, 1, 1]), (7, [1, 0, 3]), (2, [1, 1, 1])]
    assert [s.apportion(total, weights) for total, weights in cases] == [[4, 3, 3], [2, 0, 5], [1, 1, 0]]


# --- repeated, subset -------------------------------------------------------------------------------------------------


def test_repeats_are_adjacent() -> None:
    sampler = s.repeated(SOURCE, 0, BATCH, num_repeats=3)
    result = epoch(sampler)
    assert len(result) == len(SOURCE) == 18
    assert all(len(set(result[start : start + 3])) == 1 for start in range(0, 18, 3)) and len(set(result)) == 6
    longer = epoch(s.repeated(SOURCE, 0, BATCH, num_repeats=3, extend_epoch=True))
    assert Counter(longer) == {index: 3 for index in range(18)}


def test_a_subset_is_the_same_in_every_run() -> None:
    first, other = (s.subset(SOURCE, seed, BATCH, fraction=0.5) for seed in (0, 1))
    assert set(epoch(first)) == set(epoch(other)) == set(epoch(first, 1))
    assert np.bincount(SOURCE.info.labels[epoch(first)]).tolist() == [2, 2, 1, 3, 1]
    assert set(epoch(s.subset(SOURCE, 0, BATCH, fraction=0.5, subset_seed=1))) != set(epoch(first))
    assert len(s.subset(SOURCE, 0, BATCH, fraction=0.25, stratified=False)) == 4


def test_a_subset_of_a_number_of_samples() -> None:
    source = Labelled([50, 30, 20])
    assert np.bincount(source.info.labels[epoch(s.subset(source, 0, BATCH, num_samples=10))]).tolist() == [5, 3, 2]
    assert len(epoch(s.subset(source, 0, BATCH, num_samples=7))) == 7
    assert len(set(epoch(s.subset(source, 0, BATCH, num_samples=7, stratified=False)))) == 7
    assert sorted(epoch(s.subset(source, 0, BATCH, num_samples=100))) == list(range(100))
    equal = s.subset(source, 0, BATCH, num_samples=10, equal_classes=True)
    assert np.bincount(source.info.labels[epoch(equal)]).tolist() == [4, 3, 3]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_samples": 63, "equal_classes": True}, "equal_classes: classes have fewer than 21 samples: c"),
        ({"equal_classes": True}, "equal_classes: it belongs to num_samples"),
        ({"num_samples": 101}, "num_samples: 101 of 100 samples"),
    ],
)
def test_invalid_subsets_raise(keys: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        s.subset(Labelled([50, 30, 20]), 0, BATCH, **keys)


@pytest.mark.parametrize("make", [s.weighted, s.balanced, identities])
def test_sources_without_labels_raise(make: Any) -> None:
    for labels, message in ((None, "Labelled does not know the labels"), (np.zeros((1, 3)), "these have several")):
        source = Labelled([1])
        source.info = replace(source.info, labels=labels)
        with pytest.raises(ValueError, match=message):
            make(source, 0, BATCH)
        with pytest.raises(ValueError, match="no sample of class b; so classes cannot be balanced"):
            s.balanced(Labelled([2, 0, 1]), 0, BATCH)


def test_a_subset_without_labels_is_not_stratified() -> None:
    source = Labelled([9, 1])
    source.info = replace(source.info, labels=None)
    assert len(s.subset(source, 0, BATCH, fraction=0.5, stratified=False)) == 5
    for keys, name in (({}, "stratified"), ({"equal_classes": True, "num_samples": 2}, "equal_classes")):
        with pytest.raises(ValueError, match=f"{name}: Labelled does not know the labels of its samples; set it to"):
            s.subset(source, 0, BATCH, **keys)  # type: ignore[arg-type]
