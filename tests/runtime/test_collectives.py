"""A loss over the batch of all processes has the gradient that it has on one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from opabinia.contracts import Batch, Clock, GlobalBatch, StepOptions, Task
from opabinia.engine.loop.parallel import ddp
from opabinia.engine.loop.step import StandardStep
from opabinia.models.feature_queue import FeatureQueue
from opabinia.models.losses.metric import circle, count_pairs, cross_batch_memory_loss, supervised_contrastive, triplet
from opabinia.runtime.collectives import gather_batch, gather_rows, mean_over_samples, shuffle_between_ranks
from opabinia.runtime.processes import all_reduce_mean, gather
from tests.faults.programs import Server

LABELS = torch.tensor([0, 1, 0, 2, 2, 1, 0, 3, 3, 0, 1, 2])
COUNTS = [12, 11, 7, 3, 2, 1]
"""Samples of a batch: as many on each process, more on some, and fewer than there are processes."""

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "triplet": partial(triplet, margin=5.0),
    "weighted triplet": partial(triplet, margin=5.0, mining="weighted"),
    "circle": partial(circle, gamma=8.0),
    "contrastive": supervised_contrastive,
    "memory": partial(
        cross_batch_memory_loss, queue_features=torch.eye(4).double(), queue_labels=torch.tensor([0, 1, 2, -1])
    ),
}


def gradient(loss: Loss, count: int, rank: int = 0, world: int = 1) -> list[float]:
    """Of a tiny model, after a loss of the global batch's features and one of each sample by itself."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    images, row = torch.randn(12, 5).double(), GlobalBatch(step=0, epoch=0, first=0, count=count)
    parameters = list(model.parameters())
    if world > 1:
        model = DistributedDataParallel(model)
    mine = list(row.share(rank, world))
    features = model(images[mine])
    whole, labels = gather_batch(features, LABELS[mine], [f"sample {number}" for number in mine])
    assert labels.tolist() == LABELS[:count].tolist()
    weight = len(mine) * world / row.num_processed(world)  # as in engine/step.py
    (weight * (loss(whole, labels) + features.square().mean())).backward()
    return [number for one in parameters if one.grad is not None for number in one.grad.flatten().tolist()]


# --- what every process does ------------------------------------------------------------------------------------------


def gradients(rank: int, world: int) -> dict[str, list[float]]:
    return {
        f"{name} of {count}": gradient(loss, count, rank, world) for name, loss in LOSSES.items() for count in COUNTS
    }


def rows_of_all(rank: int, world: int) -> dict[str, list[Any]]:
    """Rank 0 has no rows, rank 1 has one and so on; the loss of each process counts by a weight of its own."""
    found: dict[str, list[Any]] = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        own = torch.full((rank, 2, 1), float(rank), dtype=dtype, requires_grad=True)
        whole = gather_rows(own.transpose(1, 2), [f"{rank} {number}" for number in range(rank)])
        whole.backward(torch.full_like(whole, 1.0 + rank))
        assert own.grad is not None and own.grad.dtype == whole.dtype == dtype
        assert list(whole.shape) == [sum(range(world)), 1, 2]
        found[f"{dtype}"] = whole[:, 0, 0].tolist()
        found[f"gradient in {dtype}"] = sorted(set(own.grad.flatten().tolist()))
    numbers = gather_rows(torch.arange(rank), [f"{rank} {number}" for number in range(rank)])
    found["integers"] = numbers.tolist()
    assert numbers.dtype == torch.int64
    return found


def the_gradient_given_stays(rank: int, world: int) -> dict[str, list[Any]]:
    own = torch.ones(1, requires_grad=True)
    given = torch.ones(world)
    gather_rows(own, [str(rank)]).backward(given)
    return {"given": given.tolist(), "own": [] if own.grad is None else own.grad.tolist()}


def copies(rank: int, world: int) -> dict[str, list[Any]]:
    """Each process has the same sample, or one of its own of the same label."""
    own = torch.tensor([[float(rank)]])
    known, _ = gather_batch(own, torch.tensor([3]), ["a"])
    other, _ = gather_batch(own, torch.tensor([3]), [f"sample {rank}"])
    return {"one sample": known.flatten().tolist(), "many samples": other.flatten().tolist()}


def queues(rank: int, world: int) -> dict[str, list[Any]]:
    """Queues of all processes are the same to the last bit, and so is their mean, which is what is saved."""
    queue = FeatureQueue(4, 5)
    torch.manual_seed(rank)
    for count in (12, 1):
        mine = list(GlobalBatch(step=0, epoch=0, first=0, count=count).share(rank, world))
        queue.enqueue(*gather_batch(torch.randn(len(mine), 4), LABELS[mine], [str(number) for number in mine]))
    assert all(torch.equal(queue.features, other) for other in gather(queue.features))
    assert torch.equal(all_reduce_mean([queue.features])[0], queue.features)
    return {"labels": queue.labels.tolist()}


def compiled(rank: int, world: int) -> dict[str, list[Any]]:
    def doubled(features: Tensor) -> Tensor:
        rows: Tensor = gather_rows(features + 1, [str(rank)])
        return 2 * rows

    return {"rows": torch.compile(doubled, backend="eager")(torch.full((1,), float(rank))).tolist()}


def numbers(rank: int, world: int) -> dict[str, list[Any]]:
    """Each process has one sample more than the one before, and in each sample as much as it has samples."""
    count = rank + 1
    learned = mean_over_samples(torch.tensor(count * count), count)
    with torch.no_grad():
        evaluated = mean_over_samples(torch.tensor(count * count), count)
        alone = [float(mean_over_samples(torch.tensor(3), 2))] if rank else []
    return {"learned": [float(learned)], "evaluated": [float(evaluated)], "alone": alone}


class Normalized(Task):
    """Its gradient is the number of positives per sample, divided by their mean over the global micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, batch: Batch, clock: Clock) -> Tensor:
        positives = batch["positives"]
        return self.weight * positives.mean() / mean_over_samples(positives.sum(), len(positives))


def accumulated(rank: int, world: int) -> dict[str, list[Any]]:
    """The gradient of one sample more than there are processes, in micro-batches of one: all but the last process
    repeat their sample, which counts 0."""
    task, row = Normalized(), GlobalBatch(step=0, epoch=0, first=0, count=world + 1)
    mine = list(row.share(rank, world))
    batch = {"positives": torch.tensor([5.0, 1.0, 2.0, 7.0])[mine], "id": [str(number) for number in mine]}
    optimizer = torch.optim.SGD(task.parameters(), lr=1.0)
    parallel = ddp([task], torch.device("cpu"))
    step = StandardStep(parallel, optimizer, {"lr": lambda clock: 1.0}, StepOptions(0, micro_batch=1))
    step(batch, row, Clock(total_steps=1), lambda: None)
    return {"gradient": [1.0 - float(task.weight)]}


def dealt(rank: int, world: int) -> dict[str, list[Any]]:
    """Rank 0 has two rows, rank 1 three and so on, of numbers that tell whose they are."""
    own = torch.arange(10.0 * rank, 10.0 * rank + rank + 2)[:, None].requires_grad_()
    rows, back = shuffle_between_ranks(own, seed=1)
    again, _ = shuffle_between_ranks(own, seed=1)
    other, _ = shuffle_between_ranks(own, seed=2)
    assert not rows.requires_grad and torch.equal(rows, again)
    return {
        "own": own.flatten().tolist(),
        "dealt": rows.flatten().tolist(),
        "with another seed": other.flatten().tolist(),
        "back": back(rows + 0.5).flatten().tolist(),
    }


TOLD = (gradients, rows_of_all, the_gradient_given_stays, copies, queues, compiled, numbers, accumulated, dealt)


def together(world: int, folder: str) -> None:
    """Become as many processes, and have each write what it found."""
    rank = 0
    children: list[int] = []
    while rank == 0 and len(children) < world - 1:
        children.append(os.fork())
        rank = 0 if children[-1] else len(children)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    found = {part.__name__: part(rank, world) for part in TOLD}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    if rank:
        os._exit(0)
    assert not any(os.waitpid(child, 0)[1] for child in children)


WORLDS = (2, 3)


def each_together(folders: dict[int, str]) -> None:
    """The same for each number of processes, all of them forked from one that has computed nothing."""
    for world, folder in folders.items():
        leader = os.fork()
        if not leader:
            together(world, folder)
            os._exit(0)
        assert not os.waitpid(leader, 0)[1]


# --- what is to come of it --------------------------------------------------------------------------------------------

Found = Callable[[int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(warm_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each process of some number of them found."""
    folders = {world: tmp_path_factory.mktemp("processes") for world in WORLDS}
    names = {world: str(folder) for world, folder in folders.items()}
    warm_server.run(code=f"from {__name__} import each_together; each_together({names})", seconds=200)
    reports = {
        world: [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
        for world, folder in folders.items()
    }
    return reports.__getitem__


many = pytest.mark.parametrize("world", WORLDS)


@many
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_one_process(found: Found, world: int, name: str, count: int) -> None:
    expected = gradient(LOSSES[name], count)
    for one in found(world):
        assert one["gradients"][f"{name} of {count}"] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_losses_have_gradients() -> None:
    """Otherwise the test above says nothing."""
    nothing = gradient(lambda features, labels: features.sum() * 0, 12)
    for name, loss in LOSSES.items():
        assert gradient(loss, 12) != pytest.approx(nothing, rel=1e-2), name
    assert count_pairs(LABELS).anchors == 1


@many
def test_rows_are_those_of_all_processes(found: Found, world: int) -> None:
    rows = [rank for rank in range(world) for _ in range(rank)]
    for rank, one in enumerate(found(world)):
        of_rows = one["rows_of_all"]
        assert of_rows["integers"] == [number for other in range(world) for number in range(other)]
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            assert of_rows[f"{dtype}"] == rows
            assert of_rows[f"gradient in {dtype}"] == ([sum(range(1, world + 1))] if rank else [])


@many
def test_backward_does_not_change_the_incoming_gradient(found: Found, world: int) -> None:
    for one in found(world):
        assert one["the_gradient_given_stays"] == {"given": [1] * world, "own": [world]}


@many
def test_copies_of_a_batch_count_once(found: Found, world: int) -> None:
    for one in found(world):
        assert one["copies"] == {"one sample": [0], "many samples": list(range(world))}


@many
def test_queues_are_identical_on_all_ranks(found: Found, world: int) -> None:
    for one in found(world):
        assert one["queues"]["labels"] == queue_alone()


def queue_alone() -> list[int]:
    queue = FeatureQueue(4, 5)
    for count in (12, 1):
        queue.enqueue(torch.ones(count, 4), LABELS[:count])
    return queue.labels.tolist()


@many
def test_rows_are_shuffled_between_ranks_and_returned(found: Found, world: int) -> None:
    reports = [one["dealt"] for one in found(world)]
    everything = [number for one in reports for number in one["own"]]
    for name in ("dealt", "with another seed"):
        assert sorted(number for one in reports for number in one[name]) == sorted(everything)
        assert any(one[name] != one["own"] for one in reports)
    assert any(one["dealt"] != one["with another seed"] for one in reports)
    for one in reports:
        assert len(one["dealt"]) == len(one["own"])
        assert one["back"] == [number + 0.5 for number in one["own"]]


def test_a_single_process_shuffles_rows() -> None:
    rows = torch.arange(12.0).view(6, 2)
    dealt, back = shuffle_between_ranks(rows, seed=1)
    assert dealt.tolist() != rows.tolist() and sorted(dealt.tolist()) == rows.tolist()
    assert torch.equal(back(dealt), rows)


@many
def test_it_can_be_compiled(found: Found, world: int) -> None:
    for one in found(world):
        assert one["compiled"]["rows"] == [2 * (rank + 1) for rank in range(world)]


@many
def test_the_mean_over_samples_is_global_in_training(found: Found, world: int) -> None:
    counts = [rank + 1 for rank in range(world)]
    for rank, one in enumerate(found(world)):
        reports = one["numbers"]
        assert reports["learned"] == [pytest.approx(sum(count * count for count in counts) / sum(counts))]
        assert reports["evaluated"] == [rank + 1]
        assert reports["alone"] == ([1.5] if rank else [])


@many
def test_a_repeated_sample_stays_out_of_normalizers(found: Found, world: int) -> None:
    """Each micro-batch adds its samples, each over the mean of those that count, to the mean over all samples."""
    for one in found(world):
        assert one["accumulated"]["gradient"] == [pytest.approx(1.0)]


def test_a_single_process_gathers_nothing() -> None:
    features, labels = torch.ones(2, 3), torch.tensor([0, 1])
    assert gather_rows(features, ["a", "b"]) is features
    assert gather_batch(features, labels, ["a", "b"]) == (features, labels)
    assert float(mean_over_samples(labels.sum(), 4)) == 0.25
