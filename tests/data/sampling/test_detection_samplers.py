"""Aspect-ratio batches, and repeat-factor sampling of rare classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opabinia.contracts import Indices, RaggedArray, Sample, Source, SourceInfo
from opabinia.data.sampling import detection_samplers as s
from opabinia.data.sampling.epoch_order import EpochSampler

SEEDS = st.integers(0, 2**31 - 1)


class Images(Source):
    """Images that are wide or tall, and contain these classes."""

    def __init__(self, wide: list[bool] | None = None, present: list[list[int]] | None = None) -> None:
        sizes = [(40, 60) if is_wide else (60, 40) for is_wide in wide or ()]
        self._count = len(wide or present or [])
        self.info = SourceInfo(
            classes=("a", "b", "c"),
            sizes=None if wide is None else np.array(sizes, dtype=np.int64).reshape(-1, 2),
            present=None if present is None else RaggedArray(present),
        )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError


def epoch(sampler: Any, number: int = 0) -> Indices:
    result: Indices = sampler.order(number)(np.arange(len(sampler)))
    return result


# --- wide or tall -----------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=60), SEEDS, st.integers(1, 9))
def test_each_image_occurs_once_in_the_fewest_mixed_batches(wide: list[bool], seed: int, size: int) -> None:
    result = epoch(s.aspect_ratio_batches(Images(wide), seed, size), 4)
    assert sorted(result.tolist()) == list(range(len(wide)))
    num_uniform = sum(wide) // size + (len(wide) - sum(wide)) // size
    kinds = np.array(wide)[result] if wide else np.array([], dtype=bool)
    for batch in np.split(kinds[: num_uniform * size], max(1, num_uniform)):
        assert len({*batch.tolist()}) <= 1
    rest = kinds[num_uniform * size :]
    assert len(rest) <= 2 * (size - 1) and (np.diff(rest.astype(int)) <= 0).all()


def test_batches_are_shuffled_and_a_square_is_tall() -> None:
    wide = np.arange(400) % 2 == 0
    kinds = wide[epoch(s.aspect_ratio_batches(Images(wide.tolist()), 1, 4))][::4]
    changes = int((kinds[1:] != kinds[:-1]).sum())
    assert 30 < changes < 70, "of 99; alternating and sorted ones would have 99 and 1"
    squares = Images([True, False, False, False])
    squares.info.sizes[1] = 50  # type: ignore[index]
    assert {*epoch(s.aspect_ratio_batches(squares, 0, 3))[:3].tolist()} == {1, 2, 3}


def test_another_sampler_chooses_the_images() -> None:
    """The rare class is in two wide images of 100: each occurs four or five times."""
    source = Images([True] * 60 + [False] * 40, [[0, 1]] * 2 + [[0]] * 98)
    sampler = s.aspect_ratio_batches(
        source,
        5,
        8,
        sampler=lambda *args: s.repeat_factor(*args, threshold=0.4),  # sqrt(0.4 / 0.02) = 4.47
    )
    assert len(sampler) == 107
    result = epoch(sampler, 3)
    counts = np.bincount(result, minlength=100)
    assert set(counts[:2].tolist()) <= {4, 5} and (counts[2:] == 1).all()
    kinds = (result < 60)[: 107 // 8 * 8 - 8].reshape(-1, 8)
    assert (kinds.all(1) | ~kinds.any(1)).all()


def test_without_another_sampler_images_have_the_usual_order() -> None:
    """If all images are wide, batches contain the same images as without groups."""
    usual = EpochSampler(24, 9).order(2)(np.arange(24)).reshape(-1, 6)
    result = epoch(s.aspect_ratio_batches(Images([True] * 24), 9, 6), 2).reshape(-1, 6)
    assert sorted(result.tolist()) == sorted(usual.tolist())


# --- rare classes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sqrt", "factors"), [(True, [1, 1.0540925533894598, 3.1622776601683795]), (False, [1, 1.1111111111111112, 10])]
)
def test_detectron2s_repeat_factors(sqrt: bool, factors: list[float]) -> None:
    """Classes in 0.99, 0.09 and 0.01 of the images, at a threshold of 0.1; the last image has none."""
    present = [np.flatnonzero(index < np.array([99, 9, 1])) for index in range(100)]
    result = s.repeat_factors(present, 3, 0.1, sqrt)
    assert result.dtype == np.float64
    assert result[[50, 5, 0, 99]].tolist() == pytest.approx([*factors, 1], abs=1e-12)


def test_repeat_factors_of_edge_cases() -> None:
    assert s.repeat_factors([], 3, 0.1).tolist() == []
    assert s.repeat_factors([np.array([], dtype=np.int64)] * 2, 3, 0.1).tolist() == [1, 1]
    assert s.repeat_factors([np.array([2])] * 2, 3, 1.0).tolist() == [1, 1]  # two classes do not occur


@given(st.lists(st.floats(1, 6), max_size=30), SEEDS)
def test_each_image_occurs_as_often_as_its_rounded_factor(factors: list[float], seed: int) -> None:
    sampler = s.stochastic_rounding(np.array(factors), seed)
    for number in range(3):
        counts = np.bincount(epoch(sampler, number), minlength=len(factors))
        assert counts.sum() == len(sampler) and abs(len(sampler) - sum(factors)) < 0.500001
        assert (counts >= np.floor(factors)).all() and (counts <= np.ceil(factors)).all()


def test_the_mean_number_of_occurrences_is_the_factor() -> None:
    """Over 300 epochs; 0.15 is 5 standard deviations."""
    factors = [1, 2.5, 3, 1.2, 1.8, 4.5]
    sampler = s.stochastic_rounding(np.array(factors), 7)
    counts = sum(np.bincount(epoch(sampler, number), minlength=6) for number in range(300))
    assert (counts / 300).tolist() == pytest.approx(factors, abs=0.15)


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=20))
def test_rescaled_probabilities_have_an_integer_sum(probabilities: list[float]) -> None:
    before = np.array(probabilities)
    for total in {int(before.sum()), int(np.ceil(before.sum()))}:
        after = s.rescale_to_sum(before, total)
        assert after.sum() == pytest.approx(total) and after.min() >= 0 and after.max() <= 1 + 1e-12
        assert (after[before == 0] == 0).all()
        assert (np.diff(after[np.argsort(before)]) >= -1e-12).all()
    assert s.rescale_to_sum(np.array([0.5, 0.5, 0.7]), 2).tolist() == pytest.approx([0.615, 0.615, 0.769], abs=5e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (s.aspect_ratio_batches, "Images does not know the sizes of its images, which aspect_ratio_batches needs"),
        (s.repeat_factor, "Images does not know the classes in its images, which repeat_factor needs"),
    ],
)
def test_sources_without_the_information(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(Images(), 0, 4)
