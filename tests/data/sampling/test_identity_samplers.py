"""Batches of P identities with K images each: invariants of batches and passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opabinia.contracts import Sample, Sampler, Source, SourceInfo
from opabinia.data.sampling import identity_samplers as s


class People(Source):
    """The attributes of a source that samplers use."""

    def __init__(self, labels: Sequence[int], cameras: Sequence[int] | None = None) -> None:
        self.info = SourceInfo(
            classes=tuple(str(label) for label in range(max(labels, default=-1) + 1)),
            labels=np.array(labels, dtype=np.int64),
            cameras=None if cameras is None else np.array(cameras, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(np.asarray(self.info.labels))

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError


def people(counts: Sequence[int]) -> People:
    """Return identities with these numbers of images, in a shuffled order."""
    return People(np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts)).tolist())


def people_seen_by(cameras: list[list[int]]) -> People:
    """Return identities whose images are from these cameras."""
    return People([label for label, of_label in enumerate(cameras) for _ in of_label], list(chain(*cameras)))


def batches(sampler: Sampler, batch_size: int, epochs: int) -> Any:
    """Return indices of the source (batches x batch_size) of the first epochs."""
    positions = np.arange(len(sampler))
    return np.concatenate([sampler.order(epoch)(positions) for epoch in range(epochs)]).reshape(-1, batch_size)


def assert_p_by_k(labels: Any, instances: int) -> None:
    """Assert that labels (batches x batch_size) are groups of K equal ones, with distinct identities in a batch."""
    of_identities = labels.reshape(len(labels), -1, instances)
    assert (of_identities == of_identities[..., :1]).all()
    identities = np.sort(of_identities[..., 0])
    assert (identities[:, 1:] != identities[:, :-1]).all()


SEEDS = st.integers(0, 2**31 - 1)
FEW = people([5, 4, 2, 6, 1])

# --- identities -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 13), min_size=2, max_size=12), SEEDS, st.integers(1, 5), st.data())
def test_images_are_repeated_in_a_pass_only_if_their_identity_has_too_few(
    counts: list[int], seed: int, instances: int, data: st.DataObject
) -> None:
    source = people(counts)
    per_batch = data.draw(st.integers(1, len(counts)))
    size = instances * per_batch
    turns = [max(1, count // instances) for count in counts]
    length = s.max_batches(np.array(turns), per_batch)
    drawn = batches(s.identities(source, seed, size, instances=instances, length=length * size), size, 3)
    assert_p_by_k(source.info.labels[drawn], instances)
    for one_pass in np.split(drawn, 3):
        times = np.bincount(one_pass.ravel(), minlength=len(source))
        remaining = 0
        for label, count in enumerate(counts):
            of_label = times[source.info.labels == label]
            occurrences = of_label.sum() // instances
            assert occurrences <= min(turns[label], length)
            remaining += min(turns[label], length) - occurrences
            max_repeats = -(-instances // count) if count < instances else 1
            assert of_label.max() <= max_repeats
            assert count >= instances or not occurrences or of_label.min() >= max_repeats - 1
        assert remaining < per_batch


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.data())
def test_a_pass_has_as_many_batches_as_can_be_filled(turns: list[int], data: st.DataObject) -> None:
    per_batch = data.draw(st.integers(1, len(turns)))
    possible = [n for n in range(sum(turns) + 2) if sum(min(turn, n) for turn in turns) >= n * per_batch]
    assert s.max_batches(np.array(turns), per_batch) == max(possible)


def test_passes_do_not_depend_on_epochs() -> None:
    source = people([9, 3, 14, 1, 6, 6, 30, 2])
    one_epoch = batches(s.identities(source, 5, 12, instances=3, length=12 * 60), 12, 1)
    many_epochs = batches(s.identities(source, 5, 12, instances=3, length=12 * 4), 12, 15)
    assert many_epochs.tolist() == one_epoch.tolist()


def test_all_pairs_of_identities_are_equally_frequent() -> None:
    """An identity shares each of its 4 batches of a pass with 3 of the 19 others: in 100 passes 63.2 times with each,
    and 6 standard deviations are about 43."""
    source = people([16] * 20)
    counts = np.zeros((20, 20), dtype=int)
    for labels in source.info.labels[batches(s.identities(source, 1, 16, length=16 * 20 * 100), 16, 1)][:, ::4]:
        counts[np.ix_(labels, labels)] += 1
    assert np.diag(counts).tolist() == [400] * 20
    assert np.abs(counts[~np.eye(20, dtype=bool)] - 63.2).max() < 43


def test_identities_with_few_images_may_be_dropped() -> None:
    drawn = batches(s.identities(FEW, 0, 8, small_identities="drop"), 8, 20)
    assert {*FEW.info.labels[drawn].ravel().tolist()} == {0, 1, 3}
    assert all(len(set(batch)) == 8 for batch in drawn.tolist())


def test_an_epoch_has_whole_batches() -> None:
    lengths = [len(s.identities(FEW, 0, 8, length=length)) for length in (None, 40, 47, 3)]
    assert lengths == [16, 40, 40, 8]


# --- balanced ---------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=2, max_size=9),
    SEEDS,
    st.integers(1, 5),
    st.data(),
)
def test_every_identity_occurs_once_per_pass_with_images_of_other_cameras(
    cameras: list[list[int]], seed: int, instances: int, data: st.DataObject
) -> None:
    source = people_seen_by(cameras)
    size = instances * data.draw(st.integers(1, len(cameras)))
    rows = len(cameras) * instances // size
    drawn = batches(s.balanced_identities(source, seed, size, instances=instances, length=rows * size), size, 3)
    assert_p_by_k(source.info.labels[drawn], instances)
    for one_pass in np.split(drawn, 3):
        occurrences = Counter(source.info.labels[one_pass].ravel().tolist())
        assert set(occurrences.values()) == {instances} and len(occurrences) == rows * size // instances
    for first, *others in drawn.reshape(-1, instances).tolist():
        of_identity = np.flatnonzero(source.info.labels == source.info.labels[first])
        other_cameras = {*of_identity[source.info.cameras[of_identity] != source.info.cameras[first]].tolist()}
        assert all(index in other_cameras for index in others[: len(other_cameras)])
        num_distinct = min(instances, len(of_identity))
        assert len({first, *others}) == num_distinct == len({first, *others[: num_distinct - 1]})
        assert first not in others or len(of_identity) == 1


# --- mixed ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def concatenated() -> Any:
    """Three sources with 6, 4 and 5 identities."""
    labels = [people(counts).info.labels for counts in ([5, 2, 9, 4, 4, 1], [3, 8, 4, 4], [6, 6, 7, 1, 2])]
    source = People(np.concatenate([labels[0], labels[1] + 6, labels[2] + 10]).tolist())
    source.info = replace(source.info, starts=(0, len(labels[0]), len(labels[0]) + len(labels[1])))
    return source


@pytest.mark.parametrize(
    ("weights", "sources"),
    [
        ([1, 1, 1], [0, 1, 2, 0, 1, 2]),
        ([3, 2, 1], [0, 1, 0, 2, 1, 0]),
        ([1, 0, 1], [0, 2, 0, 2, 0, 2]),
    ],
)
def test_every_batch_has_its_share_of_each_source(concatenated: Any, weights: list[int], sources: list[int]) -> None:
    """The sources alternate, so that every process has images of each."""
    drawn = batches(s.mixed_identities(concatenated, 1, 24, weights=weights, length=24 * 20), 24, 3)
    assert_p_by_k(concatenated.info.labels[drawn], 4)
    source_of = np.searchsorted(concatenated.info.starts, np.arange(len(concatenated)), "right") - 1
    assert source_of[drawn[:, ::4]].tolist() == [sources] * 60
    assert {*drawn.ravel().tolist()} == {*np.flatnonzero(np.array(weights)[source_of]).tolist()}


@given(SEEDS)
def test_every_batch_has_its_share_of_each_camera(seed: int) -> None:
    source = people_seen_by([[0, 0, 1], [1, 1, 1, 1, 0], [0, 2], [2, 2, 2, 0, 1], [0, 1, 1]])
    sampler = s.mixed_identities(source, seed, 8, weights=[2, 1, 1], domain="camera", instances=2, length=80)
    for batch in batches(sampler, 8, 3).reshape(-1, 4, 2):
        cameras, labels = source.info.cameras[batch], source.info.labels[batch]
        assert (cameras[:, 0] == cameras[:, 1]).all() and (labels[:, 0] == labels[:, 1]).all()
        assert sorted(cameras[:, 0].tolist()) == [0, 0, 1, 2]
        assert len({*zip(cameras[:, 0].tolist(), labels[:, 0].tolist(), strict=True)}) == 4


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "size", "keys", "message"),
    [
        (FEW, 10, {}, "a batch of 10 cannot hold 4 images of each of its identities; batch_size 8 or 12 would do"),
        (FEW, 3, {}, "a batch of 3 cannot hold 4 images of each of its identities; batch_size 4 would do"),
        (FEW, 24, {}, "a batch of 24 with 4 images each has 6 identities, and there are 5; batch_size 20 would do"),
        (
            FEW,
            16,
            {"small_identities": "drop"},
            r"are 3 with 4 images or more \(small_identities: drop\); batch_size 12 would do",
        ),
        (
            FEW,
            14,
            {"small_identities": "drop", "instances": 7},
            r"identities: only 0 with 7 images or more \(small_identities: drop\)",
        ),
        (people([9]), 4, {}, "identities: only 1: there is nothing to compare with each other"),
        (People([]), 4, {}, "identities: only 0: there is nothing to compare"),
    ],
    ids=["K", "K alone", "P", "P with few", "K with few", "one", "none"],
)
def test_batches_that_cannot_be_filled(source: People, size: int, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        s.identities(source, 0, size, **keys)
    source.info = replace(source.info, cameras=np.zeros(len(source), dtype=np.int64))
    with pytest.raises(ValueError, match=message):
        s.balanced_identities(source, 0, size, **keys)


@pytest.mark.parametrize(
    ("size", "weights", "message"),
    [
        (24, [1, 1], "weights: 3 sources need as many weights, not all 0, instead of"),
        (24, [0, 0, 0], "not all 0"),
        (20, [2, 1, 0], "5 identities of a batch cannot be divided as 2:1:0; batch_size 12 or 24 would do"),
        (24, [0, 1, 0], "weights.1: each batch takes 6 identities of this source, which has 4; give it a smaller"),
        (22, [1, 1, 1], "instances: a batch of 22 cannot hold 4 images"),
    ],
    ids=["number", "nothing", "odd", "too few", "K"],
)
def test_weights_that_do_not_fit(concatenated: Any, size: int, weights: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        s.mixed_identities(concatenated, 0, size, weights=weights)


def test_sources_without_the_information() -> None:
    source = people([4, 4])
    with pytest.raises(ValueError, match="People does not know the cameras of its images"):
        s.balanced_identities(source, 0, 8)
    with pytest.raises(ValueError, match="does not know the cameras"):
        s.mixed_identities(source, 0, 8, weights=[1], domain="camera")
    with pytest.raises(ValueError, match="domain: source is for concatenated sources; this is a People"):
        s.mixed_identities(source, 0, 8, weights=[1])
    with pytest.raises(ValueError, match="identities: only 1"):
        s.mixed_identities(people_seen_by([[0, 1, 1, 0]]), 0, 8, weights=[1, 1], domain="camera")
