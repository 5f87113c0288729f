"""Aspect-ratio batches, and repeat-factor sampling of rare classes."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opabinia.contracts import Indices, RaggedArray, Sample, Source, SourceInfo
from opabinia.data.loader import BatchReader, Loader, training_requests
from opabinia.data.sampling import detection_samplers as s
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import EpochSampler
from opabinia.runtime.durations import Duration

SEEDS = st.integers(0, 2**31 - 1)


class Images(Source):
    """Images that are wide or tall, and contain these classes."""

    def __init__(
        self, wide: list[bool] | None = None, present: list[list[int]] | None = None, classes: int = 3
    ) -> None:
        sizes = [(40, 60) if is_wide else (60, 40) for is_wide in wide or ()]
        self._count = len(wide or present or [])
        self.info = SourceInfo(
            classes=tuple(f"class {number}" for number in range(classes)),
            sizes=None if wide is None else np.array(sizes, dtype=np.int64).reshape(-1, 2),
            present=None if present is None else RaggedArray(present),
        )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Sample:
        return {"image": np.zeros((1, 2, 2), np.uint8), "label": 0, "id": str(index)}


def epoch(sampler: Any, number: int = 0) -> Indices:
    result: Indices = sampler.order(number)(np.arange(len(sampler)))
    return result


# --- wide or tall -----------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=60), SEEDS, st.integers(1, 9))
def test_each_image_occurs_once_in_the_fewest_mixed_batches(wide: list[bool], seed: int, size: int) -> None:
    source = Images(wide)
    result = epoch(s.AspectRatioBatches(source, seed, size), 4)
    assert sorted(result.tolist()) == list(range(len(wide)))
    num_uniform = sum(wide) // size + (len(wide) - sum(wide)) // size
    kinds = np.array(wide)[result] if wide else np.array([], dtype=bool)
    for batch in np.split(kinds[: num_uniform * size], max(1, num_uniform)):
        assert len({*batch.tolist()}) <= 1
    rest = kinds[num_uniform * size :]
    assert len(rest) <= 2 * (size - 1) and (np.diff(rest.astype(int)) <= 0).all()


def test_seven_wide_and_six_tall_images() -> None:
    wide = np.array([True] * 7 + [False] * 6)
    sampler = s.AspectRatioBatches(Images(wide.tolist()), 0, 4)
    firsts = set()
    for number in range(20):
        kinds = wide[epoch(sampler, number)]
        firsts.add(bool(kinds[0]))
        assert kinds[:4].all() != kinds[4:8].all() and kinds[8:].tolist() == [True] * 3 + [False] * 2
    assert firsts == {True, False}


def test_a_square_is_tall() -> None:
    source: Any = Images([True, False, False, False])
    source.info.sizes[1] = 50
    assert {*epoch(s.AspectRatioBatches(source, 0, 3))[:3].tolist()} == {1, 2, 3}


def test_batches_are_shuffled() -> None:
    wide = np.arange(400) % 2 == 0
    kinds = wide[epoch(s.AspectRatioBatches(Images(wide.tolist()), 1, 4))][::4]
    changes = int((kinds[1:] != kinds[:-1]).sum())
    assert 30 < changes < 70  # of 99; alternating and sorted ones would have 99 and 1


def test_another_sampler_chooses_the_images() -> None:
    """The rare class is in two wide images of 100: each occurs four or five times."""
    source = Images([True] * 60 + [False] * 40, [[0, 1]] * 2 + [[0]] * 98)
    sampler = s.AspectRatioBatches(
        source,
        5,
        8,
        sampler=lambda *args: s.repeat_factor(*args, threshold=0.4),  # sqrt(0.4 / 0.02) = 4.47
    )
    assert len(sampler) == 107
    for number in range(5):
        result = epoch(sampler, number)
        counts = np.bincount(result, minlength=100)
        assert set(counts[:2].tolist()) <= {4, 5} and (counts[2:] == 1).all()
        kinds = (result < 60)[: 107 // 8 * 8 - 8].reshape(-1, 8)
        assert (kinds.all(1) | ~kinds.any(1)).all()


# --- rare classes -----------------------------------------------------------------------------------------------------


def images_with(shares: list[float], count: int) -> list[Indices]:
    """Return the labels of ``count`` images; each class is in its share of them, from the first."""
    return [
        np.array([number for number, share in enumerate(shares) if index < round(share * count)], dtype=np.int64)
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("sqrt", "factors"), [(True, [1, 1.0540925533894598, 3.1622776601683795]), (False, [1, 1.1111111111111112, 10])]
)
def test_detectron2s_repeat_factors(sqrt: bool, factors: list[float]) -> None:
    """Classes in 0.99, 0.09 and 0.01 of the images, at a threshold of 0.1."""
    result = s.repeat_factors(images_with([0.99, 0.09, 0.01], 100), 3, 0.1, sqrt)
    assert result.dtype == np.float64
    assert result[[50, 5, 0, 99]].tolist() == pytest.approx([*factors, 1], abs=1e-12)


def test_repeat_factors_of_edge_cases() -> None:
    assert s.repeat_factors([], 3, 0.1).tolist() == []
    assert s.repeat_factors([np.array([], dtype=np.int64)] * 2, 3, 0.1).tolist() == [1, 1]
    assert s.repeat_factors([np.array([2])] * 2, 3, 1.0).tolist() == [1, 1]  # two classes do not occur


@given(st.lists(st.floats(1, 6), max_size=30), SEEDS)
def test_each_image_occurs_as_often_as_its_rounded_factor(factors: list[float], seed: int) -> None:
    sampler = s.StochasticRounding(np.array(factors), seed)
    for number in range(3):
        counts = np.bincount(epoch(sampler, number), minlength=len(factors))
        assert counts.sum() == len(sampler) and abs(len(sampler) - sum(factors)) < 0.500001
        assert (counts >= np.floor(factors)).all() and (counts <= np.ceil(factors)).all()


def test_the_mean_number_of_occurrences_is_the_factor() -> None:
    """Over 1,000 epochs; 0.08 is 5 standard deviations."""
    factors = [1, 2.5, 3, 1.2, 1.8, 4.5]
    sampler = s.StochasticRounding(np.array(factors), 7)
    counts = sum(np.bincount(epoch(sampler, number), minlength=6) for number in range(1000))
    assert (counts / 1000).tolist() == pytest.approx(factors, abs=0.08)


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=20))
def test_rescaled_probabilities_have_an_integer_sum(probabilities: list[float]) -> None:
    before = np.array(probabilities)
    for total in {int(before.sum()), int(np.ceil(before.sum()))}:
        after = s.rescale_to_sum(before, total)
        assert after.sum() == pytest.approx(total) and after.min() >= 0 and after.max() <= 1 + 1e-12
        assert (after[before == 0] == 0).all()
        assert (np.diff(after[np.argsort(before)]) >= -1e-12).all()


def test_rescale_to_sum() -> None:
    assert s.rescale_to_sum(np.array([0.5, 0.5, 0.7]), 2).tolist() == pytest.approx([0.615, 0.615, 0.769], abs=5e-4)


def test_rounding_and_order_differ_between_epochs() -> None:
    sampler = s.StochasticRounding(np.full(40, 1.5), 1)
    first, second = epoch(sampler, 0), epoch(sampler, 1)
    assert len(first) == 60 and Counter(first.tolist()) != Counter(second.tolist())
    assert (first[1:] == first[:-1]).sum() < 10  # the two occurrences of an image are not adjacent


# --- both -------------------------------------------------------------------------------------------------------------

SOURCE = Images([number % 3 > 0 for number in range(41)], [[number % 7 % 3] for number in range(41)])
SAMPLERS: dict[str, Any] = {
    "aspect_ratio_batches": lambda seed: s.AspectRatioBatches(SOURCE, seed, 6),
    "repeat_factor": lambda seed: s.repeat_factor(SOURCE, seed, 6, threshold=0.9),
    "combined": lambda seed: s.AspectRatioBatches(
        SOURCE, seed, 6, sampler=lambda *args: s.repeat_factor(*args, threshold=0.9)
    ),
}
for_each_sampler = pytest.mark.parametrize("name", SAMPLERS)


@for_each_sampler
def test_a_single_position_has_the_same_index(name: str) -> None:
    sampler = SAMPLERS[name](3)
    for number in (7, 0, 1):
        order = sampler.order(number)
        expected = order(np.arange(len(sampler)))
        assert expected.dtype == np.int64
        assert [int(order(np.array(position))) for position in range(len(sampler))] == expected.tolist()
        backwards = order(np.arange(len(sampler) // 2 * 2)[::-1].reshape(2, -1))
        assert backwards.ravel().tolist() == expected[: len(sampler) // 2 * 2][::-1].tolist()


@for_each_sampler
def test_the_order_depends_on_seed_and_epoch(name: str) -> None:
    first, repeated, other = (epoch(SAMPLERS[name](seed), 2).tolist() for seed in (3, 3, 4))
    assert first == repeated != other
    assert epoch(SAMPLERS[name](3), 3).tolist() != first


@for_each_sampler
def test_other_generators_are_unchanged(name: str) -> None:
    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    epoch(SAMPLERS[name](0))
    assert np.random.rand() == expected


def read(name: str, world: int, start: int = 0) -> list[list[int]]:
    """Return the images of every global batch from step ``start`` on."""
    sampler = SAMPLERS[name](11)
    plan = ConstantPlan(len(sampler), 6, Duration.parse("3ep"), drop_last=False)
    slices = []
    for rank in range(world):
        loader = Loader(BatchReader(SOURCE), training_requests(plan, sampler.order, rank, world))
        slices.append([[int(sample_id) for sample_id in batch["id"]] for _, batch in loader.iterate(start)])
    return [list(chain.from_iterable(parts)) for parts in zip(*slices, strict=True)]


@for_each_sampler
def test_batches_are_the_same_with_any_number_of_processes(name: str) -> None:
    expected = read(name, 1)
    for world in (2, 3):
        for batch, parts in zip(expected, read(name, world), strict=True):
            assert batch == parts[: len(batch)] or (len(batch) < world and parts == batch * world)
    assert read(name, 1, start=5) == expected[5:]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (s.AspectRatioBatches, "Images does not know the sizes of its images, which aspect_ratio_batches needs"),
        (s.repeat_factor, "Images does not know the classes in its images, which repeat_factor needs"),
    ],
)
def test_sources_without_the_information(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(Images(), 0, 4)


def test_without_another_sampler_images_have_the_usual_order() -> None:
    """If all images are wide, batches contain the same images as without groups."""
    usual = EpochSampler(24, 9).order(2)(np.arange(24)).reshape(-1, 6)
    result = epoch(s.AspectRatioBatches(Images([True] * 24), 9, 6), 2).reshape(-1, 6)
    assert sorted(result.tolist()) == sorted(usual.tolist())
