"""Comparison with VISSL's StatefulDistributedSampler and its limits of the data.

The orders themselves differ, since those of VISSL depend on the history of generators; their properties are compared.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opabinia.contracts import Sample, Source, SourceInfo
from opabinia.data.loader import training_requests
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import epoch_order
from opabinia.data.sampling.samplers import Subset, apportion
from opabinia.runtime.durations import Duration

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "selfsup"
ORDERS: dict[str, Any] = json.loads((GOLDEN / "stateful_sampler.json").read_text())
PARTS: dict[str, Any] = json.loads((GOLDEN / "subsample.json").read_text())
SAMPLES, BATCH = ORDERS["samples"], ORDERS["batch_size"]


def rank_batches(
    start: int = 0, rank: int = 0, world: int = 1, seed: int = 0, epochs: int = 2
) -> list[tuple[int, list[int]]]:
    """Return epoch and indices of each batch of a process, from step ``start`` on."""
    orders = partial(epoch_order, seed, n=SAMPLES, shuffle=True)
    requests = training_requests(ConstantPlan(SAMPLES, BATCH, Duration(epochs, "ep")), orders, rank, world)
    return [(request.row.epoch, request.indices.tolist()) for request in requests(start)]


def of_epoch(batches: list[tuple[int, list[int]]], number: int) -> list[int]:
    return [index for epoch, indices in batches if epoch == number for index in indices]


def test_each_sample_occurs_once_per_epoch_in_a_new_order() -> None:
    vissl_epochs, own_epochs = (
        [ORDERS["epoch0"], ORDERS["epoch1"]],
        [of_epoch(rank_batches(), number) for number in (0, 1)],
    )
    for first, second in (vissl_epochs, own_epochs):
        assert sorted(first) == sorted(second) == list(range(SAMPLES)) and first != second
    assert of_epoch(rank_batches(seed=1), 0) != own_epochs[0]


def test_a_run_resumes_within_an_epoch() -> None:
    assert ORDERS["epoch0_from_step_2"] == ORDERS["epoch0"][2 * BATCH :]
    expected = rank_batches()
    for step in range(len(expected)):
        assert rank_batches(step) == expected[step:]
    assert of_epoch(rank_batches(2), 0) == of_epoch(expected, 0)[2 * BATCH :]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_no_sample_is_dropped_with_any_number_of_processes(world: int) -> None:
    """VISSL drops the last of 11 on two processes in every epoch."""
    assert 10 not in chain(*ORDERS["of_two_processes"])
    expected, per_rank = rank_batches(), [rank_batches(rank=rank, world=world) for rank in range(world)]
    for number in (0, 1):
        assert {index for batches in per_rank for index in of_epoch(batches, number)} == set(range(SAMPLES))
    for step, (_, batch) in enumerate(expected):
        copies = world if len(batch) < world else 1  # a batch smaller than the world size is repeated
        assert list(chain(*(batches[step][1] for batches in per_rank))) == batch * copies


def test_a_process_eventually_reads_every_sample() -> None:
    """Each process of VISSL shuffles its own slice, and never reads another."""
    slices = [set(indices) for indices in ORDERS["of_two_processes"]]
    assert not slices[0] & slices[1]
    for rank in (0, 1):
        assert {index for _, batch in rank_batches(rank=rank, world=2, epochs=12) for index in batch} == set(
            range(SAMPLES)
        )


# --- subsets ----------------------------------------------------------------------------------------------------------


class Labelled(Source):
    """The attributes of a source that a sampler uses."""

    info = SourceInfo(classes=("a", "b", "c"), labels=np.array(PARTS["labels"]))

    def __len__(self) -> int:
        return len(PARTS["labels"])

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError


def subset_indices(**keys: Any) -> list[int]:
    sampler = Subset(Labelled(), 3, 2, **keys)
    return sampler.order(0)(np.arange(len(sampler))).tolist()


def test_classes_have_equal_shares_of_a_subset() -> None:
    for count in (3, 5):
        result = np.bincount(Labelled.info.labels[subset_indices(num_samples=count)], minlength=3)
        assert result.tolist() == apportion(count, [3, 3, 4]), "VISSL draws the remainder at random"
        vissl_counts = np.bincount(
            Labelled.info.labels[PARTS["balanced_5" if count == 5 else "balanced_3_behind_3"]], minlength=3
        )
        assert result.sum() == vissl_counts.sum() and np.ptp(result) <= 1 and np.ptp(vissl_counts) <= 1


def test_a_subset_without_stratification() -> None:
    indices = subset_indices(num_samples=4, stratified=False)
    assert len(set(indices)) == 4 == len(set(PARTS["plain_4"]))
    assert subset_indices(num_samples=4, stratified=False) == indices, "the same in every run"
    assert (
        len({tuple(sorted(subset_indices(num_samples=4, stratified=False, subset_seed=seed))) for seed in range(20)})
        > 10
    )
