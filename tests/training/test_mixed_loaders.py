"""Batches of multi-task runs are a pure function of seed and step."""

from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import RGB, RandomHorizontalFlip

from opabinia.config import ConfigError
from opabinia.contracts import Sample
from opabinia.data import Data, Stream
from opabinia.data.mixed_batches import mixed_requests
from opabinia.data.sampling.identity_samplers import identities
from opabinia.data.sources import Digits, Mixture
from opabinia.data.sources.mixture import MixedStream
from opabinia.runtime.durations import Duration
from opabinia.training.mixed_loaders import check_streams
from opabinia.training.planning import plan_training


class Numbers(Digits):
    """The first digits."""

    def __init__(self, n: int) -> None:
        super().__init__(split="train")
        self.n = n
        self.info = self.info.select(np.arange(n))

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Sample:
        return super().__getitem__(range(self.n)[index])


def plan(length: int = 20, workers: int = 0, **mixture: Any) -> Any:
    streams = {
        "plain": MixedStream(source=Numbers(50), transforms=[RandomHorizontalFlip()]),
        "identities": MixedStream(source=Numbers(90), sampler=partial(identities, instances=2), share=0.5),
    }
    source = Mixture(streams=mixture.pop("streams", streams), **mixture)
    data = Data(train=Stream(source=source), batch_size=16, drop_last=True, num_workers=workers)
    return plan_training(data, Duration(length, "it"), None, 7)


def requests(batches: Any, start: int = 0) -> list[tuple[int, dict[str, tuple[int, int, list[int]]]]]:
    """Return the step of each request, and for each stream its epoch, step and indices."""
    iterate = mixed_requests(
        batches.plan, batches.cycle, {name: stream.requests() for name, stream in batches.streams.items()}
    )
    return [
        (request.row.step, {name: facts(stream_request) for name, stream_request in request.streams.items()})
        for request in iterate(start)
    ]


def facts(request: Any) -> tuple[int, int, list[int]]:
    return request.row.epoch, request.row.step, request.indices.tolist()


def test_every_task_needs_a_minimum_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(min_samples: int, micro_batch_size: int | None = None, **mixture: Any) -> None:
        subtask = SimpleNamespace(min_samples_per_rank=min_samples)
        task = SimpleNamespace(tasks={"a": subtask}, stream_of=lambda name: "plain")
        check_streams(task, plan(**mixture), micro_batch_size)

    check(8), check(4, 8), check(16, mixing="steps")
    monkeypatch.setattr("opabinia.training.mixed_loaders.world_size", lambda: 3)
    check(2), check(5, mixing="steps")
    for min_samples, keys, available in (
        (9, {}, 2),
        (3, {}, 2),
        (2, {"micro_batch_size": 3}, 1),
        (6, {"mixing": "steps"}, 5),
    ):
        with pytest.raises(
            ConfigError, match=rf"^task\.tasks\.a: it learns from {min_samples} or more .* and has {available}: raise"
        ):
            check(min_samples, **keys)


@pytest.mark.parametrize("mixing", ["batch", "steps"])
def test_requests_from_any_step_equal_those_of_a_run_from_the_start(mixing: Any) -> None:
    batches = plan(mixing=mixing, temperature=2.0)
    expected = requests(batches)
    assert [step for step, _ in expected] == list(range(20))
    for start in (1, 7, 13, 19, 20):
        assert requests(plan(mixing=mixing, temperature=2.0), start) == expected[start:]
    for name, stream in batches.streams.items():
        mixed = [streams[name] for _, streams in expected if name in streams]
        single = list(map(facts, islice(stream.requests()(0), len(mixed))))
        assert mixed == single, "those of a run on this stream only"
        assert len({index for _, _, row in mixed[:3] for index in row}) > 8
    assert {len(streams) for _, streams in expected} == ({2} if mixing == "batch" else {1})


def test_ranks_divide_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    from opabinia.training import loaders

    expected = requests(plan())
    for world in (2, 3):
        shares = []
        for rank in range(world):
            monkeypatch.setattr(loaders, "rank", lambda rank=rank: rank)
            monkeypatch.setattr(loaders, "world_size", lambda world=world: world)
            shares.append(requests(plan()))
        for step, (_, streams) in enumerate(expected):
            for name, (*_, indices) in streams.items():
                assert [index for share in shares for index in share[step][1][name][2]] == indices


def test_batches_do_not_depend_on_workers_and_keep_pairs_of_identities() -> None:
    expected = [batch for _, batch in plan(5).loader(torch.device("cpu")).iterate()]
    for batch in expected:
        assert [len(stream_batch["id"]) for stream_batch in batch["streams"].values()] == [8, 8]
        assert batch["id"] == [
            sample_id for stream_batch in batch["streams"].values() for sample_id in stream_batch["id"]
        ]
        labels = batch["streams"]["identities"]["label"].tolist()
        assert all(labels.count(label) == 2 for label in labels), "P x K"
    loaded = [batch for _, batch in plan(5, workers=2).loader(torch.device("cpu")).iterate()]
    for batch, expected_batch in zip(loaded, expected, strict=True):
        assert batch["id"] == expected_batch["id"]
        for name, stream_batch in expected_batch["streams"].items():
            assert torch.equal(batch["streams"][name]["image"], stream_batch["image"])


def test_streams_that_do_not_fit_are_errors() -> None:
    small, color = MixedStream(source=Numbers(5)), MixedStream(source=Numbers(50), transforms=[RGB()])
    plain, large_share = MixedStream(source=Numbers(50)), MixedStream(source=Numbers(8), share=0.6)
    cases: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"a": plain, "b": large_share}, "data.train.source.streams.b", "8 samples cannot fill its part"),
        ({"a": plain, "b": color}, "data.train.source.streams.b", "its images have 3 channels, those of a 1"),
        ({"a": small, "b": small}, "data", "batch_size: the streams have 10 samples together"),
        ({str(number): plain for number in range(17)}, "data.batch_size", "cannot be divided among 17 streams"),
    )
    for streams, path, text in cases:
        with pytest.raises(ConfigError) as caught:
            plan(streams=streams)
        (problem,) = caught.value.problems
        assert problem.path == path and text in str(problem)
    mixture = Mixture(streams={"a": plain})
    for options, text in (
        ({"mix": [lambda batch, info: batch]}, "mix: each stream of a mixture has its own"),
        ({"sampler": partial(identities, instances=2)}, "sampler: each stream"),
        ({"shuffle": False}, "shuffle: each stream"),
        ({"drop_last": False}, "drop_last: the streams of a mixture drop"),
        ({"augment_on": "device"}, "augment_on: the streams"),
        ({"train": Stream(source=mixture, transforms=[RGB()])}, "train.transforms: each stream"),
    ):
        keys: dict[str, Any] = {"train": Stream(source=mixture), "batch_size": 4, "drop_last": True, **options}
        with pytest.raises(ConfigError, match=text):
            plan_training(Data(**keys), Duration(1, "it"), None, 0)
    with pytest.raises(ValueError, match=r"streams\.a: it has no samples"):
        Mixture(streams={"a": MixedStream(source=Numbers(0))})


def test_a_mixture_indexes_the_samples_of_its_streams() -> None:
    mixture = Mixture(streams={"a": MixedStream(source=Numbers(3)), "b": MixedStream(source=Numbers(4))})
    ids = [mixture[index]["id"] for index in range(len(mixture))]
    assert [mixture.id(index) for index in range(7)] == ids
    assert [name.split("/")[0] for name in ids] == ["a"] * 3 + ["b"] * 4
    assert np.isclose(sum(mixture.shares.values()), 1)
    with pytest.raises(IndexError, match="index 7 of 7 samples"):
        mixture[7]
