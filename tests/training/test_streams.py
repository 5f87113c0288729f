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
from opabinia.contracts import Sample, Stream, SubtaskData
from opabinia.data import Data
from opabinia.data.sampling.identity_samplers import identities
from opabinia.data.sources import Digits
from opabinia.data.streams.batches import joint_requests
from opabinia.runtime.durations import Duration
from opabinia.tasks.multitask.settings import Subtask
from opabinia.training.planning import check_streams, plan_training


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


def stream(n: int, *transforms: Any, share: float | None = None, **keys: Any) -> Subtask:
    train = Stream(source=Numbers(n), transforms=transforms)
    return Subtask(task=lambda info: None, data=SubtaskData(train=train, **keys), batch_share=share)  # type: ignore[arg-type]


STREAMS = {
    "plain": stream(50, RandomHorizontalFlip()),
    "identities": stream(90, sampler=partial(identities, instances=2), share=0.5),
}


def plan(length: int = 20, workers: int = 0, tasks: Any = STREAMS, **sharing: Any) -> Any:
    task: Any = partial(lambda info, **keys: None, tasks=tasks, **sharing)
    return plan_training(task, Data(batch_size=16, num_workers=workers), Duration(length, "it"), None, 7)


def requests(batches: Any, start: int = 0) -> list[tuple[int, dict[str, tuple[int, int, list[int]]]]]:
    """Return the step of each request, and for each stream its epoch, step and indices."""
    iterate = joint_requests(
        batches.plan, batches.cycle, {name: stream.requests() for name, stream in batches.streams.items()}
    )
    return [
        (request.global_batch.step, {name: facts(stream_request) for name, stream_request in request.streams.items()})
        for request in iterate(start)
    ]


def facts(request: Any) -> tuple[int, int, list[int]]:
    return request.global_batch.epoch, request.global_batch.step, request.indices.tolist()


def test_every_task_needs_a_minimum_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(min_samples: int, micro_batch_size: int | None = None, **sharing: Any) -> None:
        subtask = SimpleNamespace(min_samples_per_rank=min_samples)
        task = SimpleNamespace(tasks={"a": subtask}, stream_of=lambda name: "plain")
        check_streams(task, plan(**sharing), micro_batch_size)

    check(8), check(4, 8), check(16, alternate=True)
    monkeypatch.setattr("opabinia.training.planning.world_size", lambda: 3)
    check(2), check(5, alternate=True)
    for min_samples, keys, available in (
        (9, {}, 2),
        (3, {}, 2),
        (2, {"micro_batch_size": 3}, 1),
        (6, {"alternate": True}, 5),
    ):
        with pytest.raises(
            ConfigError, match=rf"^task\.tasks\.a: it learns from {min_samples} or more .* and has {available}: raise"
        ):
            check(min_samples, **keys)


@pytest.mark.parametrize("alternate", [False, True])
def test_requests_from_any_step_equal_those_of_a_run_from_the_start(alternate: bool) -> None:
    batches = plan(alternate=alternate, temperature=2.0)
    expected = requests(batches)
    assert [step for step, _ in expected] == list(range(20))
    for start in (1, 7, 13, 19, 20):
        assert requests(plan(alternate=alternate, temperature=2.0), start) == expected[start:]
    for name, stream in batches.streams.items():
        mixed = [streams[name] for _, streams in expected if name in streams]
        single = list(map(facts, islice(stream.requests()(0), len(mixed))))
        assert mixed == single, "those of a run on this stream only"
        assert len({index for _, _, row in mixed[:3] for index in row}) > 8
    assert {len(streams) for _, streams in expected} == ({1} if alternate else {2})


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
    small, color, plain = stream(5), stream(50, RGB()), stream(50)
    cases: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"a": plain, "b": stream(8, share=0.6)}, "task.tasks.b.data.train", "8 samples cannot fill its part"),
        ({"a": plain, "b": color}, "task.tasks.b.data.train", "its images have 3 channels, those of a 1"),
        ({"a": small, "b": small}, "data", "batch_size: the streams have 10 samples together"),
        ({str(number): plain for number in range(17)}, "data.batch_size", "cannot be divided among 17 streams"),
        ({"a": plain, "b": stream(0)}, "task.tasks.b.data.train", "it has no samples"),
    )
    for tasks, path, text in cases:
        with pytest.raises(ConfigError) as caught:
            plan(tasks=tasks)
        (problem,) = caught.value.problems
        assert problem.path == path and text in str(problem)
