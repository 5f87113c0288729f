"""Batches of P identities with K images each: invariants of batches, passes and epochs with any number of processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors

from opabinia.contracts import GlobalBatch, Sample, Sampler, Source, SourceInfo
from opabinia.data.loader import BatchReader, Loader, training_requests
from opabinia.data.sampling import identity_samplers as s
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import EpochSampler
from opabinia.data.sampling.samplers import sample_weights
from opabinia.runtime.durations import Duration

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # 3 workers on 2 cores, on purpose

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "fastreid"


class People(Source):
    """The attributes of a source that samplers and loader use."""

    def __init__(self, labels: Sequence[int], cameras: Sequence[int] | None = None) -> None:
        self.info = SourceInfo(
            channels=1,
            classes=tuple(str(label) for label in range(max(labels, default=-1) + 1)),
            labels=np.array(labels, dtype=np.int64),
            cameras=None if cameras is None else np.array(cameras, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(np.asarray(self.info.labels))

    def __getitem__(self, index: int) -> Sample:
        image = tv_tensors.Image(torch.zeros(1, 2, 2, dtype=torch.uint8))
        return {"image": image, **self.info.labels_of(index), "id": str(index)}


def people(counts: Sequence[int]) -> People:
    """Return identities with these numbers of images, in a shuffled order."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return People(np.random.default_rng(0).permutation(labels).tolist())


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def fastreid_people(name: str) -> People:
    identities, cameras = zip(*golden(name)["inputs"]["items_pid_cam"], strict=True)
    return People([identity - 10 for identity in identities], cameras)


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


COUNTS = st.lists(st.integers(1, 13), min_size=2, max_size=12)
SEEDS = st.integers(0, 2**31 - 1)


# --- comparison with FastReID -----------------------------------------------------------------------------------------


def test_batches_have_the_same_invariants_as_fastreids() -> None:
    case = golden("sampler_naive")
    source, size, instances = fastreid_people("sampler_naive"), 8, case["inputs"]["num_instances"]
    fastreid_batches = np.array(case["outputs"]["first_48"]).reshape(-1, size)
    assert (source.info.labels[fastreid_batches] + 10).tolist() == case["outputs"]["pids"]
    for seed in range(50):
        own_batches = batches(s.identities(source, seed, size, instances=instances), size, 3)
        assert own_batches.shape == fastreid_batches.shape
        for stream in (fastreid_batches, own_batches):
            assert_p_by_k(source.info.labels[stream], instances)
            for one_pass in np.split(stream, 3):  # of two batches each
                repeated = [index for index in one_pass.ravel().tolist() if source.info.labels[index] in (0, 1, 3)]
                assert len(set(repeated)) == len(repeated)
                assert len({*source.info.labels[one_pass].ravel().tolist()}) == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_has_the_same_identities_as_in_fastreid(rank: int) -> None:
    case = golden("reorder")
    world = case["inputs"]["world_size"]
    share = GlobalBatch(step=0, epoch=0, first=0, count=8).share(rank, world)
    assert case["outputs"]["out"][rank::world] == list(share)


def test_fastreids_weights_of_rare_identities() -> None:
    case = golden("sampler_imbalanced")
    result = sample_weights(fastreid_people("sampler_imbalanced"), "inverse")
    assert result.tolist() == pytest.approx(case["outputs"]["weights"])


def test_fastreids_plain_sampler_has_each_sample_once_a_pass() -> None:
    case = golden("sampler_training")
    size = case["inputs"]["size"]
    own_batches = batches(EpochSampler(size, case["inputs"]["seed"]), size, 3)
    for stream in (np.array(case["outputs"]["first_21"]).reshape(3, size), own_batches):
        assert np.sort(stream).tolist() == [list(range(size))] * 3
        assert len({tuple(order) for order in stream.tolist()}) == 3


# --- identities -------------------------------------------------------------------------------------------------------


@given(COUNTS, SEEDS, st.integers(1, 5), st.data())
def test_every_batch_has_p_identities_with_k_images(
    counts: list[int], seed: int, instances: int, data: st.DataObject
) -> None:
    source = people(counts)
    size = instances * data.draw(st.integers(1, len(counts)))
    drawn = batches(s.identities(source, seed, size, instances=instances, length=5 * size), size, 3)
    assert len(drawn) == 15
    assert_p_by_k(source.info.labels[drawn], instances)


@given(COUNTS, SEEDS, st.integers(1, 5), st.data())
def test_images_are_repeated_in_a_pass_only_if_their_identity_has_too_few(
    counts: list[int], seed: int, instances: int, data: st.DataObject
) -> None:
    source = people(counts)
    per_batch = data.draw(st.integers(1, len(counts)))
    size = instances * per_batch
    turns = [max(1, count // instances) for count in counts]
    length = s.max_batches(np.array(turns), per_batch)
    drawn = batches(s.identities(source, seed, size, instances=instances, length=length * size), size, 3)
    for one_pass in np.split(drawn, 3):
        times = np.bincount(one_pass.ravel(), minlength=len(source))
        remaining = 0
        for label, count in enumerate(counts):
            of_label = times[source.info.labels == label]
            occurrences = of_label.sum() // instances
            assert occurrences <= min(turns[label], length)
            remaining += min(turns[label], length) - occurrences
            max_repeats = -(-instances // count) if count < instances else 1
            assert of_label.max() <= max_repeats and (
                count >= instances or not occurrences or of_label.min() >= max_repeats - 1
            )
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
    """An identity shares each of its 4 batches of a pass with 3 of the 19 others: in 500 passes 315.8 times with each,
    and 6 standard deviations are about 96."""
    source = people([16] * 20)
    sampler = s.identities(source, 1, 16, length=16 * 20 * 500)
    labels = source.info.labels[batches(sampler, 16, 1)][:, ::4]
    counts = np.zeros((20, 20), dtype=int)
    for identities in labels:
        counts[np.ix_(identities, identities)] += 1
    others = counts[~np.eye(20, dtype=bool)]
    assert np.diag(counts).tolist() == [2000] * 20
    assert others.min() > 315.8 - 96 and others.max() < 315.8 + 96


def test_every_image_is_sampled() -> None:
    source = people([5, 4, 2, 6, 1])
    assert {*batches(s.identities(source, 0, 8), 8, 20).ravel().tolist()} == set(range(18))


def test_identities_with_few_images_may_be_dropped() -> None:
    source = people([5, 4, 2, 6, 1])
    drawn = batches(s.identities(source, 0, 8, small_identities="drop"), 8, 20)
    assert {*source.info.labels[drawn].ravel().tolist()} == {0, 1, 3}
    assert all(len(set(batch)) == 8 for batch in drawn.tolist())


@pytest.mark.parametrize(("length", "samples"), [(None, 16), (40, 40), (47, 40), (3, 8)])
def test_an_epoch_has_whole_batches(length: int | None, samples: int) -> None:
    assert len(s.identities(people([5, 4, 2, 6, 1]), 0, 8, length=length)) == samples


# --- balanced ---------------------------------------------------------------------------------------------------------


CAMERAS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=2, max_size=9)
"""The cameras of each identity's images."""


def people_seen_by(cameras: list[list[int]]) -> People:
    labels = [label for label, of_label in enumerate(cameras) for _ in of_label]
    return People(labels, list(chain(*cameras)))


@given(CAMERAS, SEEDS, st.integers(1, 5), st.data())
def test_every_identity_occurs_once_per_pass(
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


@given(CAMERAS, SEEDS, st.integers(1, 5))
def test_images_of_other_cameras_are_preferred(cameras: list[list[int]], seed: int, instances: int) -> None:
    source = people_seen_by(cameras)
    size = instances * len(cameras)
    drawn = batches(s.balanced_identities(source, seed, size, instances=instances, length=size), size, 2)
    for images in drawn.reshape(-1, instances).tolist():
        first, others = images[0], images[1:]
        of_identity = np.flatnonzero(source.info.labels == source.info.labels[first])
        other_cameras = {*of_identity[source.info.cameras[of_identity] != source.info.cameras[first]].tolist()}
        assert [index in other_cameras for index in others[: len(other_cameras)]] == [True] * len(
            others[: len(other_cameras)]
        )
        num_distinct = min(instances, len(of_identity))
        assert len(set(images)) == num_distinct == len(set(images[:num_distinct]))
        assert first not in others or len(of_identity) == 1


def test_each_image_is_equally_often_the_first() -> None:
    """Each of 5 images is the first 600 of 3,000 times; 6 standard deviations are 131."""
    source = people_seen_by([[0, 0, 1, 2, 2], [1, 1]])
    drawn = batches(s.balanced_identities(source, 2, 8, length=8 * 3000), 8, 1)
    firsts = np.bincount(drawn.reshape(-1, 4)[:, 0], minlength=7)[:5]
    assert firsts.sum() == 3000 and np.abs(firsts - 600).max() < 131


def test_the_identities_dropped_from_a_pass_change() -> None:
    source = people_seen_by([[0, 1]] * 5)
    drawn = batches(s.balanced_identities(source, 0, 8, length=8), 8, 30)
    assert {*source.info.labels[drawn].ravel().tolist()} == set(range(5))


# --- mixed ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def concatenated() -> Any:
    """Three sources with 6, 4 and 5 identities."""
    source: Any = people([5, 2, 9, 4, 4, 1])
    others: list[Any] = [people([3, 8, 4, 4]), people([6, 6, 7, 1, 2])]
    labels = [source.info.labels, others[0].info.labels + 6, others[1].info.labels + 10]
    starts = (0, len(labels[0]), len(labels[0]) + len(labels[1]))
    source.info = replace(source.info, labels=np.concatenate(labels), starts=starts)
    return source


@pytest.mark.parametrize("weights", [[1, 1, 1], [3, 2, 1], [1, 0, 1]])
def test_every_batch_has_its_share_of_each_source(concatenated: Any, weights: list[int]) -> None:
    drawn = batches(s.mixed_identities(concatenated, 1, 24, weights=weights, length=24 * 20), 24, 3)
    assert_p_by_k(concatenated.info.labels[drawn], 4)
    takes = np.array(weights) * 6 // sum(weights)
    for batch in np.searchsorted(concatenated.info.starts, drawn[:, ::4], "right") - 1:
        assert np.bincount(batch, minlength=3).tolist() == takes.tolist()
    assert {*drawn.ravel().tolist()} == {
        index
        for index in range(len(concatenated))
        if weights[np.searchsorted(concatenated.info.starts, index, "right") - 1]
    }


@given(SEEDS)
def test_every_batch_has_its_share_of_each_camera(seed: int) -> None:
    source = people_seen_by([[0, 0, 1], [1, 1, 1, 1, 0], [0, 2], [2, 2, 2, 0, 1], [0, 1, 1]])
    sampler = s.mixed_identities(source, seed, 8, weights=[2, 1, 1], domain="camera", instances=2, length=80)
    for batch in batches(sampler, 8, 3).reshape(-1, 4, 2):
        cameras, labels = source.info.cameras[batch], source.info.labels[batch]
        assert (cameras[:, 0] == cameras[:, 1]).all() and (labels[:, 0] == labels[:, 1]).all()
        assert sorted(cameras[:, 0].tolist()) == [0, 0, 1, 2]
        assert len({*zip(cameras[:, 0].tolist(), labels[:, 0].tolist(), strict=True)}) == 4


def test_every_process_has_images_of_every_source(concatenated: Any) -> None:
    drawn = batches(s.mixed_identities(concatenated, 1, 16, weights=[1, 1, 2]), 16, 1)
    sources = np.searchsorted(concatenated.info.starts, drawn, "right") - 1
    assert s.interleave([1, 1, 2]).tolist() == [2, 0, 1, 2]
    assert (np.sort(sources[:, :8:4]) == [0, 2]).all() and (np.sort(sources[:, 8::4]) == [1, 2]).all()


# --- several processes, and resuming ----------------------------------------------------------------------------------

SOURCE = people_seen_by([[0, 1, 2, 0], [1, 1], [2, 0, 0, 1, 1, 2, 2, 0], [0], [1, 2, 2], [0, 1, 2]])
SAMPLERS: dict[str, Any] = {
    "identities": lambda seed: s.identities(SOURCE, seed, 12, instances=3),
    "balanced_identities": lambda seed: s.balanced_identities(SOURCE, seed, 12, instances=3),
    "mixed_identities": lambda seed: s.mixed_identities(
        SOURCE, seed, 12, weights=[2, 1, 1], domain="camera", instances=3, length=36
    ),
}
for_each_sampler = pytest.mark.parametrize("name", SAMPLERS)


@for_each_sampler
def test_a_single_position_has_the_same_index(name: str) -> None:
    sampler = SAMPLERS[name](3)
    for number in (7, 0, 1):
        order = sampler.order(number)
        expected = order(np.arange(len(sampler)))
        assert [int(order(np.array(position))) for position in range(len(sampler))] == expected.tolist()
        backwards = order(np.arange(len(sampler))[::-1].reshape(2, -1))
        assert backwards.dtype == np.int64 and backwards.ravel().tolist() == expected[::-1].tolist()


@for_each_sampler
def test_the_order_depends_on_seed_and_epoch(name: str) -> None:
    first, repeated, other = (batches(SAMPLERS[name](seed), 12, 4).tolist() for seed in (3, 3, 4))
    assert first == repeated != other
    assert first[: len(first) // 2] != first[len(first) // 2 :]


@for_each_sampler
def test_other_generators_are_unchanged(name: str) -> None:
    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    batches(SAMPLERS[name](0), 12, 2)
    assert np.random.rand() == expected


def read(name: str, world: int, workers: int = 0, start: int = 0) -> list[list[str]]:
    """Return the ids of every global batch from step ``start`` on."""
    sampler = SAMPLERS[name](11)
    plan = ConstantPlan(len(sampler), 12, Duration.parse("3ep"), drop_last=True)
    slices = []
    for rank in range(world):
        loader = Loader(BatchReader(SOURCE), training_requests(plan, sampler.order, rank, world), num_workers=workers)
        slices.append([batch["id"] for _, batch in loader.iterate(start)])
        loader.close()
    return [list(chain.from_iterable(parts)) for parts in zip(*slices, strict=True)]


@for_each_sampler
def test_batches_are_the_same_with_any_number_of_processes(name: str) -> None:
    expected = read(name, world=1)
    assert [list(map(int, batch)) for batch in expected] == batches(SAMPLERS[name](11), 12, 3).tolist()
    for world in (2, 3, 4):
        assert read(name, world) == expected
    assert read(name, 1, start=2) == expected[2:]


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_are_the_same_with_any_number_of_workers(workers: int) -> None:
    assert read("balanced_identities", 1, workers, start=1) == read("balanced_identities", 1)[1:]


def test_an_identity_is_on_one_process_if_identities_can_be_divided() -> None:
    drawn = SOURCE.info.labels[batches(SAMPLERS["identities"](0), 12, 3)]
    shares = [GlobalBatch(step=0, epoch=0, first=0, count=12).share(rank, 4) for rank in range(4)]
    for batch in drawn:
        assert [len({*batch[share.start : share.stop].tolist()}) for share in shares] == [1] * 4


# --- errors -----------------------------------------------------------------------------------------------------------


FEW = people([5, 4, 2, 6, 1])
EMPTY = People([])


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
        (EMPTY, 4, {}, "identities: only 0: there is nothing to compare"),
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
    without_cameras: Any = people([4, 4])
    with pytest.raises(ValueError, match="People does not know the cameras of its images"):
        s.balanced_identities(without_cameras, 0, 8)
    with pytest.raises(ValueError, match="does not know the cameras"):
        s.mixed_identities(without_cameras, 0, 8, weights=[1], domain="camera")
    with pytest.raises(ValueError, match="domain: source is for concatenated sources; this is a People"):
        s.mixed_identities(without_cameras, 0, 8, weights=[1])
    single_identity: Any = people_seen_by([[0, 1, 1, 0]])
    with pytest.raises(ValueError, match="identities: only 1"):
        s.mixed_identities(single_identity, 0, 8, weights=[1, 1], domain="camera")
    without_cameras.info = replace(without_cameras.info, labels=None)
    with pytest.raises(ValueError, match="People does not know the labels"):
        s.identities(without_cameras, 0, 8)
