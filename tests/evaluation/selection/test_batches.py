"""The choice of batches of samples."""

from __future__ import annotations

import time

import numpy as np
import pytest

from opabinia.evaluation.selection.batches import (
    Chosen,
    Floats,
    Pool,
    k_center,
    most_uncertain,
    nearest_distances,
    unit_rows,
    weighted_seeding,
)


def circle(*degrees: float) -> Floats:
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def pool(
    features: Floats, *, labeled: Floats | None = None, groups: list[int] | None = None, taken: tuple[int, ...] = ()
) -> Pool:
    is_taken = np.isin(np.arange(len(features)), taken)
    known = features[:0] if labeled is None else labeled
    numbers = np.array(groups) if groups else np.arange(len(features))
    return Pool(features, numbers, nearest_distances(features, known), is_taken)


def seeded(chosen_from: Pool, count: int, uncertainty: Floats, seed: int = 0) -> Chosen:
    return weighted_seeding(chosen_from, count, uncertainty, np.random.default_rng(seed))


def test_distances_are_those_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    features, labeled = unit_rows(rng.normal(size=(5000, 3))), unit_rows(rng.normal(size=(4500, 3)))
    rows = rng.integers(0, 5000, 50)
    expected = ((features[rows, None] - labeled) ** 2).sum(2).min(1)
    assert nearest_distances(features, labeled)[rows] == pytest.approx(expected, abs=1e-5)
    assert np.isinf(nearest_distances(features, features[:0])).all()
    assert unit_rows(np.zeros((1, 3))).tolist() == [[0, 0, 0]]


def test_the_most_uncertain() -> None:
    uncertainty = np.array([0.1, 0.9, 0.9, 0.5])
    chosen = most_uncertain(pool(circle(0, 1, 2, 3)), 3, uncertainty)
    assert chosen.indices.tolist() == [1, 2, 3]


def test_k_center_takes_the_farthest_from_labeled_and_chosen_ones() -> None:
    features = circle(10, 90, 100, 180, 280)
    chosen = k_center(pool(features, labeled=circle(0)), 3)
    assert chosen.indices.tolist() == [3, 1, 4]  # 280 is 80 from the labeled 0, 90 is 90
    assert chosen.distances[0] == pytest.approx(2) and chosen.distances[1] == pytest.approx(2**0.5)
    unlabeled = k_center(pool(features), 2)
    assert unlabeled.indices.tolist() == [1, 4], "the first is that nearest to the mean"
    assert np.isinf(unlabeled.distances[0])


def test_k_center_covers_better_than_chance() -> None:
    rng = np.random.default_rng(0)
    features = unit_rows(rng.normal(size=(2000, 8)))
    radius = nearest_distances(features, features[k_center(pool(features), 40).indices]).max()
    random = [nearest_distances(features, features[rng.choice(2000, 40, replace=False)]).max() for _ in range(5)]
    assert radius < min(random)


def test_seeding_avoids_what_is_certain_and_what_is_alike() -> None:
    features = circle(*np.repeat([0, 90, 180, 270], 50).tolist())
    uncertainty = np.where(np.arange(200) < 150, 0.5, 0.0)
    for seed in range(5):
        chosen = seeded(pool(features), 3, uncertainty, seed)
        assert sorted(chosen.indices // 50) == [0, 1, 2]
    near = seeded(pool(features, labeled=circle(0)), 2, uncertainty)
    assert sorted(near.indices // 50) == [1, 2]


def test_seeding_is_in_proportion_to_uncertainty_and_squared_distance() -> None:
    """From a labeled sample at 0 degrees: 60 degrees are 1 away, 180 are 2."""
    counts = np.zeros(2)
    for seed in range(400):
        counts[seeded(pool(circle(60, 180), labeled=circle(0)), 1, np.array([1.0, 0.5]), seed).indices[0]] += 1
    assert counts[1] / 400 == pytest.approx(2 / 3, abs=0.08)


def test_seeding_without_uncertainty_or_distance_still_chooses() -> None:
    same = circle(0, 0, 0)
    assert sorted(seeded(pool(same, labeled=circle(0)), 3, np.array([0.0, 0, 0])).indices) == [0, 1, 2]
    assert len(seeded(pool(same), 9, np.ones(3)).indices) == 3


@pytest.mark.parametrize("strategy", ["uncertainty", "diversity", "both"])
def test_near_duplicates_and_taken_samples(strategy: str) -> None:
    features, uncertainty = circle(0, 1, 90, 91, 180, 270), np.linspace(1, 0.5, 6)
    chosen_from = pool(features, groups=[0, 0, 1, 1, 2, 3], taken=(4,))
    chosen = {
        "uncertainty": lambda: most_uncertain(chosen_from, 6, uncertainty),
        "diversity": lambda: k_center(chosen_from, 6),
        "both": lambda: seeded(chosen_from, 6, uncertainty),
    }[strategy]()
    assert len(chosen.indices) == 3 and 4 not in chosen.indices
    assert {index // 2 for index in chosen.indices.tolist()} == {0, 1, 2}


def test_the_same_seed_gives_the_same_choice() -> None:
    features = unit_rows(np.random.default_rng(0).normal(size=(300, 4)))
    uncertainty = np.random.default_rng(1).random(300)
    first, again, other = (seeded(pool(features), 20, uncertainty, seed).indices.tolist() for seed in (3, 3, 4))
    assert first == again != other and len(set(first)) == 20


def test_large_pools_take_linear_memory_and_time() -> None:
    features = unit_rows(np.random.default_rng(0).normal(size=(40_000, 16)))
    start = time.process_time()
    chosen = k_center(pool(features), 100)
    assert len(set(chosen.indices.tolist())) == 100 and time.process_time() - start < 20
