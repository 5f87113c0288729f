"""Losses over the global batch of several processes have the same gradients as in a single process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from opabinia.models.losses.metric import circle, cross_batch_memory_loss, supervised_contrastive, triplet
from opabinia.runtime.collectives import gather_batch, gather_rows, mean_over_samples, shuffle_between_ranks
from opabinia.runtime.processes import all_gather, all_reduce_mean
from tests.faults.programs import Server
from tests.runtime.ranks import run_on_ranks

LABELS = torch.tensor([0, 1, 0, 2, 2, 1, 0, 3, 3, 0, 1, 2])
COUNTS = [12, 7, 2, 1]
"""Samples of a batch: equal shares, unequal shares, and fewer samples than processes."""

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
    """Return the gradient of a tiny model: a loss of the global batch's features, plus a mean over samples."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    images, row = torch.randn(12, 5).double(), GlobalBatch(step=0, epoch=0, first=0, count=count)
    parameters = list(model.parameters())
    if world > 1:
        model = DistributedDataParallel(model)
    indices = list(row.rank_range(rank, world))
    features = model(images[indices])
    global_features, labels = gather_batch(features, LABELS[indices], [f"sample {number}" for number in indices])
    assert labels.tolist() == LABELS[:count].tolist()
    weight = len(indices) * world / row.num_processed(world)  # as in engine/step.py
    (weight * (loss(global_features, labels) + features.square().mean())).backward()
    return [number for param in parameters if param.grad is not None for number in param.grad.flatten().tolist()]


# --- computed by every process ---------------------------------------------------------------------------------------


def gradients(rank: int, world: int) -> dict[str, list[float]]:
    return {
        f"{name} of {count}": gradient(loss, count, rank, world) for name, loss in LOSSES.items() for count in COUNTS
    }


def gathered_rows(rank: int, world: int) -> dict[str, list[Any]]:
    """Gather rows: rank r has r of them, and its loss has the weight 1 + r."""
    results: dict[str, list[Any]] = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        rows = torch.full((rank, 2, 1), float(rank), dtype=dtype, requires_grad=True)
        gathered = gather_rows(rows.transpose(1, 2), [f"{rank} {number}" for number in range(rank)])
        gathered.backward(torch.full_like(gathered, 1.0 + rank))
        assert rows.grad is not None and rows.grad.dtype == gathered.dtype == dtype
        assert list(gathered.shape) == [sum(range(world)), 1, 2]
        results[f"{dtype}"] = gathered[:, 0, 0].tolist()
        results[f"gradient in {dtype}"] = sorted(set(rows.grad.flatten().tolist()))
    integers = gather_rows(torch.arange(rank), [f"{rank} {number}" for number in range(rank)])
    results["integers"] = integers.tolist()
    assert integers.dtype == torch.int64
    return results


def backward_beside_other_collectives(rank: int, world: int) -> dict[str, list[Any]]:
    """Rank 0 begins to all-reduce gradients before the backward pass of the gathered rows, others do so afterwards. The
    backward pass does not change the incoming gradient."""
    row, gradients, incoming = torch.ones(1, requires_grad=True), torch.full((world,), 100.0), torch.ones(world)
    gathered = gather_rows(row, [str(rank)])
    early = dist.all_reduce(gradients, async_op=True) if rank == 0 else None
    gathered.backward(incoming)
    if early is None:
        dist.all_reduce(gradients)
    else:
        early.wait()
    assert row.grad is not None
    return {"gradients": gradients.tolist(), "row": row.grad.tolist(), "incoming": incoming.tolist()}


def queues(rank: int, world: int) -> dict[str, list[Any]]:
    """Queues of all processes are bitwise identical, and so is their mean, which checkpoints save."""
    queue = FeatureQueue(4, 5)
    torch.manual_seed(rank)
    for count in (12, 1):
        indices = list(GlobalBatch(step=0, epoch=0, first=0, count=count).rank_range(rank, world))
        queue.enqueue(*gather_batch(torch.randn(len(indices), 4), LABELS[indices], [str(number) for number in indices]))
    if world > 1:
        assert all(torch.equal(queue.features, queue_features) for queue_features in all_gather(queue.features))
        assert torch.equal(all_reduce_mean([queue.features])[0], queue.features)
    return {"labels": queue.labels.tolist()}


def compiled(rank: int, world: int) -> dict[str, list[Any]]:
    def double(features: Tensor) -> Tensor:
        rows: Tensor = gather_rows(features + 1, [str(rank)])
        return 2 * rows

    return {"rows": torch.compile(double, backend="eager")(torch.full((1,), float(rank))).tolist()}


def repeated_samples(rank: int, world: int) -> dict[str, list[Any]]:
    """Gather one sample of each process: the same id on all, or different ids, with the same label."""
    feature = torch.tensor([[float(rank)]])
    same_sample, _ = gather_batch(feature, torch.tensor([3]), ["a"])
    own_samples, _ = gather_batch(feature, torch.tensor([3]), [f"sample {rank}"])
    return {"one sample": same_sample.flatten().tolist(), "many samples": own_samples.flatten().tolist()}


def sample_means(rank: int, world: int) -> dict[str, list[Any]]:
    """Rank r has r + 1 samples, each with the value r + 1."""
    count = rank + 1
    training_mean = mean_over_samples(torch.tensor(count * count), count)
    with torch.no_grad():
        eval_mean = mean_over_samples(torch.tensor(count * count), count)
        rank_mean = [float(mean_over_samples(torch.tensor(3), 2))] if rank else []
    return {"training": [float(training_mean)], "evaluation": [float(eval_mean)], "single rank": rank_mean}


class Normalized(Task):
    """A gradient equal to positives per sample, divided by their mean over the global micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, batch: Batch, clock: Clock) -> Tensor:
        positives = batch["positives"]
        return self.weight * positives.mean() / mean_over_samples(positives.sum(), len(positives))


def accumulated(rank: int, world: int) -> dict[str, list[Any]]:
    """Return the gradient of ``world + 1`` samples in micro-batches of one: some processes repeat a sample, which
    counts 0."""
    task, row = Normalized(), GlobalBatch(step=0, epoch=0, first=0, count=world + 1)
    indices = list(row.rank_range(rank, world))
    batch = {"positives": torch.tensor([5.0, 1.0, 2.0, 7.0])[indices], "id": [str(number) for number in indices]}
    optimizer = torch.optim.SGD(task.parameters(), lr=1.0)
    parallel = ddp(task, [task], torch.device("cpu"))
    step = StandardStep(parallel, optimizer, {"lr": lambda clock: 1.0}, StepOptions(0, micro_batch=1))
    step(batch, row, Clock(total_steps=1), lambda: None)
    return {"gradient": [1.0 - float(task.weight)]}


def shuffled_rows(rank: int, world: int) -> dict[str, list[Any]]:
    """Shuffle rows: rank r has r + 2 of them, whose values identify it."""
    rows = torch.arange(10.0 * rank, 10.0 * rank + rank + 2)[:, None].requires_grad_()
    shuffled, restore = shuffle_between_ranks(rows, seed=1)
    same_seed, _ = shuffle_between_ranks(rows, seed=1)
    other_seed, _ = shuffle_between_ranks(rows, seed=2)
    assert not shuffled.requires_grad and torch.equal(shuffled, same_seed)
    return {
        "own": rows.flatten().tolist(),
        "shuffled": shuffled.flatten().tolist(),
        "other seed": other_seed.flatten().tolist(),
        "restored": restore(shuffled + 0.5).flatten().tolist(),
    }


CHECKS = (
    gradients,
    gathered_rows,
    backward_beside_other_collectives,
    repeated_samples,
    queues,
    compiled,
    sample_means,
    accumulated,
    shuffled_rows,
)


def run_checks() -> dict[str, Any]:
    """Return the results of a rank."""
    return {check.__name__: check(dist.get_rank(), dist.get_world_size()) for check in CHECKS}


WORLDS = (2, 3)


# --- expected results -------------------------------------------------------------------------------------------------

Reports = Callable[[int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def reports(warm_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Return the results of each process for a given number of processes."""
    folder = tmp_path_factory.mktemp("processes")
    results = {
        world: run_on_ranks(warm_server, folder / str(world), f"{__name__}:run_checks", world) for world in WORLDS
    }
    return results.__getitem__


all_worlds = pytest.mark.parametrize("world", WORLDS)


@all_worlds
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_those_of_a_single_process(reports: Reports, world: int, name: str, count: int) -> None:
    expected = gradient(LOSSES[name], count)
    zero = gradient(lambda features, labels: features.sum() * 0, count)
    assert count < 12 or expected != pytest.approx(zero, rel=1e-2), "otherwise this test could not fail"
    for result in reports(world):
        assert result["gradients"][f"{name} of {count}"] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@all_worlds
def test_rows_of_all_processes_are_gathered(reports: Reports, world: int) -> None:
    rows = [rank for rank in range(world) for _ in range(rank)]
    for rank, result in enumerate(reports(world)):
        gathered = result["gathered_rows"]
        assert gathered["integers"] == [number for other in range(world) for number in range(other)]
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            assert gathered[f"{dtype}"] == rows
            assert gathered[f"gradient in {dtype}"] == ([sum(range(1, world + 1))] if rank else [])


@all_worlds
def test_the_exchange_does_not_depend_on_what_else_a_rank_does(reports: Reports, world: int) -> None:
    for result in reports(world):
        expected = {"gradients": [100 * world] * world, "row": [world], "incoming": [1] * world}
        assert result["backward_beside_other_collectives"] == expected
        assert result["repeated_samples"] == {"one sample": [0], "many samples": list(range(world))}
        assert result["queues"] == queues(0, 1), "as of a single process"
        assert result["compiled"]["rows"] == [2 * (rank + 1) for rank in range(world)]
        # Each micro-batch adds its samples, each over the mean of those that count, to the mean over all samples.
        assert result["accumulated"]["gradient"] == [pytest.approx(1.0)]


def test_a_single_process_gathers_nothing_and_shuffles_rows() -> None:
    features, labels = torch.ones(2, 3), torch.tensor([0, 1])
    assert gather_rows(features, ["a", "b"]) is features
    assert gather_batch(features, labels, ["a", "b"]) == (features, labels)
    assert float(mean_over_samples(labels.sum(), 4)) == 0.25
    rows = torch.arange(12.0).view(6, 2)
    shuffled, restore = shuffle_between_ranks(rows, seed=1)
    assert shuffled.tolist() != rows.tolist() and sorted(shuffled.tolist()) == rows.tolist()
    assert torch.equal(restore(shuffled), rows)


@all_worlds
def test_rows_are_shuffled_between_ranks_and_returned(reports: Reports, world: int) -> None:
    results = [result["shuffled_rows"] for result in reports(world)]
    all_rows = [row for result in results for row in result["own"]]
    for name in ("shuffled", "other seed"):
        assert sorted(row for result in results for row in result[name]) == sorted(all_rows)
        assert any(result[name] != result["own"] for result in results)
    assert any(result["shuffled"] != result["other seed"] for result in results)
    for result in results:
        assert len(result["shuffled"]) == len(result["own"])
        assert result["restored"] == [row + 0.5 for row in result["own"]]


@all_worlds
def test_the_mean_over_samples_is_global_in_training(reports: Reports, world: int) -> None:
    counts = [rank + 1 for rank in range(world)]
    for rank, result in enumerate(reports(world)):
        means = result["sample_means"]
        assert means["training"] == [pytest.approx(sum(count * count for count in counts) / sum(counts))]
        assert means["evaluation"] == [rank + 1]
        assert means["single rank"] == ([1.5] if rank else [])
