"""What VISSL's StatefulDistributedSampler and its limits to the data are for, and what they leave out.

Our orders have other numbers: those of VISSL come from the history of generators. What holds of them is compared.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opabinia.contracts import Sample
from opabinia.data.loader import training_requests
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import epoch_order
from opabinia.data.sampling.samplers import Subset, apportion
from opabinia.runtime.durations import Duration

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "selfsup"
ORDERS: dict[str, Any] = json.loads((GOLDEN / "stateful_sampler.json").read_text())
PARTS: dict[str, Any] = json.loads((GOLDEN / "subsample.json").read_text())
SAMPLES, BATCH = ORDERS["samples"], ORDERS["batch_size"]


def seen(start: int = 0, rank: int = 0, world: int = 1, seed: int = 0, epochs: int = 2) -> list[tuple[int, list[int]]]:
    """Epoch and samples of each batch of a process, from a step on."""
    orders = partial(epoch_order, seed, n=SAMPLES, shuffle=True)
    requests = training_requests(ConstantPlan(SAMPLES, BATCH, Duration(epochs, "ep")), orders, rank, world)
    return [(one.row.epoch, one.indices.tolist()) for one in requests(start)]


def of_epoch(batches: list[tuple[int, list[int]]], number: int) -> list[int]:
    return [index for epoch, indices in batches if epoch == number for index in indices]


def test_each_sample_once_in_an_epoch_and_in_another_order_in_the_next() -> None:
    theirs, ours = [ORDERS["epoch0"], ORDERS["epoch1"]], [of_epoch(seen(), number) for number in (0, 1)]
    for first, second in (theirs, ours):
        assert sorted(first) == sorted(second) == list(range(SAMPLES)) and first != second
    assert of_epoch(seen(seed=1), 0) != ours[0]


def test_a_run_goes_on_in_the_middle_of_an_epoch() -> None:
    assert ORDERS["epoch0_from_step_2"] == ORDERS["epoch0"][2 * BATCH :]
    whole = seen()
    for step in range(len(whole)):
        assert seen(step) == whole[step:]
    assert of_epoch(seen(2), 0) == of_epoch(whole, 0)[2 * BATCH :]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_no_sample_is_dropped_on_any_number_of_processes(world: int) -> None:
    """VISSL drops the last of 11 on two processes in every epoch."""
    assert 10 not in chain(*ORDERS["of_two_processes"])
    alone, together = seen(), [seen(rank=rank, world=world) for rank in range(world)]
    for number in (0, 1):
        assert {index for own in together for index in of_epoch(own, number)} == set(range(SAMPLES))
    for step, (_, batch) in enumerate(alone):
        times = world if len(batch) < world else 1  # of too few each process takes all
        assert list(chain(*(own[step][1] for own in together))) == batch * times


def test_a_process_sees_every_sample_sooner_or_later() -> None:
    """Each process of VISSL shuffles a slice of its own, and never sees another."""
    slices = [set(one) for one in ORDERS["of_two_processes"]]
    assert not slices[0] & slices[1]
    for rank in (0, 1):
        assert {index for _, batch in seen(rank=rank, world=2, epochs=12) for index in batch} == set(range(SAMPLES))


# --- a part of the data -----------------------------------------------------------------------------------------------


class Labelled:
    """As much of a source as a sampler looks at."""

    channels = 1
    classes = ("a", "b", "c")
    labels = np.array(PARTS["labels"])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError


def chosen(**keys: Any) -> list[int]:
    sampler = Subset(Labelled(), 3, 2, **keys)
    return sampler.order(0)(np.arange(len(sampler))).tolist()


def test_as_many_of_every_class_as_the_number_allows() -> None:
    for count in (3, 5):
        result = np.bincount(Labelled.labels[chosen(num_samples=count)], minlength=3)
        assert result.tolist() == apportion(count, [3, 3, 4]), "VISSL leaves to chance who gets what is left"
        theirs = np.bincount(Labelled.labels[PARTS["balanced_5" if count == 5 else "balanced_3_behind_3"]], minlength=3)
        assert result.sum() == theirs.sum() and np.ptp(result) <= 1 and np.ptp(theirs) <= 1


def test_samples_chosen_regardless_of_their_class() -> None:
    some = chosen(num_samples=4, stratified=False)
    assert len(set(some)) == 4 == len(set(PARTS["plain_4"]))
    assert chosen(num_samples=4, stratified=False) == some, "the same in every run"
    assert len({tuple(sorted(chosen(num_samples=4, stratified=False, subset_seed=seed))) for seed in range(20)}) > 10
