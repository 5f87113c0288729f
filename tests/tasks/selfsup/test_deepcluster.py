"""DeepCluster v2: clusters of all images in the place of labels, made anew at the beginning of every epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import Batch, Clock, DataMismatch, DatasetInfo, Phase, Run
from opabinia.models.losses.clustering import normalized_entropy
from opabinia.tasks.selfsup.deepcluster import Clusters, DeepCluster
from tests.tasks.selfsup.views import at, batch_of, make

FACTS = DatasetInfo(samples=48, channels=1)
TRAIN = Phase("train", "train")


def deepcluster(**keys: Any) -> DeepCluster:
    return make(DeepCluster, **{"dataset_info": FACTS, "projection": 6, "prototypes": [5, 7], **keys})


def some(first: int, last: int, views: int = 2, seed: int = 0) -> Batch:
    """Images number ``first`` to ``last``, as they are seen with this seed."""
    batch = batch_of(FACTS.samples, views, seed=1)
    noise = 0.05 * torch.randn(views, *batch["views"][0].shape, generator=torch.Generator().manual_seed(seed))
    seen = tuple((view + one)[first:last].clamp(0, 1) for view, one in zip(batch["views"], noise, strict=True))
    return {"views": seen, "id": batch["id"][first:last], "index": torch.arange(first, last)}


def epoch(batch_size: int = 16, seed: int = 0, samples: int = FACTS.samples) -> Iterator[Batch]:
    yield from (some(first, first + batch_size, seed=seed) for first in range(0, samples, batch_size))


def run_at(clock: Clock, asked: list[tuple[str, int]] | None = None, samples: int = FACTS.samples) -> Run:
    """A run as the hooks of the task see it; what batches they ask for is written down."""

    def batches(name: str, count: int) -> Iterator[Batch]:
        if asked is not None:
            asked.append((name, count))
        return epoch(seed=99, samples=samples)

    return cast("Run", SimpleNamespace(clock=clock, batches=batches))


def clustered(**keys: Any) -> DeepCluster:
    task = deepcluster(**keys)
    task.hooks(FACTS)[0].before_phase(run_at(Clock(steps_per_epoch=3)), TRAIN)
    return task


def heads_of(task: DeepCluster) -> list[Clusters]:
    return [one for one in task.heads if isinstance(one, Clusters)]


def vectors_of(task: DeepCluster, view: int = 0) -> Tensor:
    return task.memories[view].get_buffer("vectors")


def embeddings_of(task: DeepCluster, batch: Batch) -> list[Tensor]:
    whole = task.projector(task.backbone(task.normalize(torch.cat(batch["views"]))))
    return list(F.normalize(whole, dim=1).chunk(len(batch["views"])))


# --- the loss ---------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_cross_entropy_with_the_clusters() -> None:
    task, batch = clustered(), some(8, 24)
    views, losses = embeddings_of(task, batch), []
    for head in heads_of(task):
        for view in views:
            for vector, index in zip(view, batch["index"].tolist(), strict=True):
                logits = head.centroids @ vector / 0.1
                losses.append((logits.logsumexp(0) - logits[head.labels[index]]) / len(views) / 16 / 2)
    expected, found = torch.stack(losses).sum(), task(batch, Clock())["loss"]
    torch.testing.assert_close(found, expected)
    parameters = list(task.backbone.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_an_image_without_a_cluster_has_no_loss() -> None:
    task = deepcluster(prototypes=[5])
    task.hooks(FACTS)[0].before_phase(run_at(Clock(steps_per_epoch=2), samples=32), TRAIN)
    (head,) = heads_of(task)
    assert head.labels[:32].min() >= 0 and head.labels[32:].eq(-1).all()
    assert task(some(32, 40), Clock())["loss"] == 0
    known, both = (task.eval()(some(*part), Clock())["loss"].item() for part in ((24, 32), (24, 40)))
    assert both == pytest.approx(known / 2)


# --- memory and clusters ----------------------------------------------------------------------------------------------


def test_the_memory_holds_the_newest_embeddings_of_each_image() -> None:
    task = deepcluster(assign=2)
    hooks = task.hooks(FACTS)
    expected = torch.zeros(2, 48, 6)
    for number, (first, last) in enumerate(((0, 16), (8, 24))):
        batch = some(first, last, seed=number)
        expected[:, first:last] = torch.stack(embeddings_of(task, batch)).detach()
        task(batch, Clock(step=number))
        for hook in hooks:
            hook.after_step(at(number + 1, 9))
    assert task.seen.tolist() == [number < 24 for number in range(48)]
    for view in range(2):
        torch.testing.assert_close(vectors_of(task, view)[:24], expected[view, :24])


def test_a_batch_in_pieces_is_kept_whole_and_a_pass_for_no_step_is_not() -> None:
    task = deepcluster()
    task(some(40, 48), Clock(step=0))
    for first in (0, 8):
        task(some(first, first + 8), Clock(step=1))
    task.update_memories()
    assert task.seen.nonzero().flatten().tolist() == list(range(16))


def test_what_is_not_finite_changes_no_memory() -> None:
    task = clustered()
    before = vectors_of(task).clone()
    with torch.no_grad():
        task.projector[0].weight.fill_(torch.nan)
    task(some(0, 16), Clock(step=1))
    task.update_memories()
    assert torch.equal(vectors_of(task), before)


def test_an_image_without_a_finite_embedding_was_not_seen() -> None:
    task, batch = deepcluster().eval(), some(0, 16)  # in training norms would hand it on to all images
    batch["views"][0][3] = torch.nan
    task(batch, Clock())
    task.update_memories()
    assert task.seen.nonzero().flatten().tolist() == [0, 1, 2, *range(4, 16)]


def test_the_run_begins_with_clusters_of_all_images() -> None:
    task, asked = deepcluster(), []
    task.hooks(FACTS)[0].before_phase(run_at(Clock(steps_per_epoch=3), asked), TRAIN)
    assert asked == [("train", 3)]
    assert task.seen.all()
    for head, count in zip(heads_of(task), (5, 7), strict=True):
        nearest = (vectors_of(task) @ head.centroids.T).argmax(1)
        assert torch.equal(head.labels, nearest)
        torch.testing.assert_close(head.centroids.norm(dim=1), torch.ones(count))
        assert head.entropy.item() == pytest.approx(normalized_entropy(torch.bincount(nearest, minlength=count)).item())
    said = task(some(0, 8), Clock())
    assert said["entropy"].item() == pytest.approx(sum(head.entropy.item() for head in heads_of(task)) / 2)
    assert said["entropy"] > 0.5


def state(task: DeepCluster) -> list[Tensor]:
    return [one.clone() for head in heads_of(task) for one in (head.centroids, head.labels)]


def test_clusters_are_made_when_a_training_epoch_begins_and_at_no_other_time() -> None:
    task, asked = clustered(), []
    before = state(task)
    (hook, _) = task.hooks(FACTS)
    for batch in epoch(seed=5):
        task(batch, Clock(step=1))
        task.update_memories()
    hook.before_phase(run_at(Clock(step=4, epoch=1, epoch_step=1, steps_per_epoch=3), asked), TRAIN)
    hook.before_phase(run_at(Clock(step=3, epoch=1, steps_per_epoch=3), asked), Phase("evaluate", "val"))
    assert all(map(torch.equal, state(task), before))
    hook.before_phase(run_at(Clock(step=3, epoch=1, steps_per_epoch=3), asked), TRAIN)
    assert not torch.equal(state(task)[0], before[0])
    assert not asked, "all images are seen once only"


def test_clusters_depend_on_epoch_and_number_alone() -> None:
    task = clustered(prototypes=[6, 6])
    first = state(task)
    assert not torch.equal(first[0], first[2]), "each clustering begins elsewhere"
    torch.manual_seed(123)
    task.cluster(0)
    assert all(map(torch.equal, state(task), first))
    task.cluster(1)
    assert not torch.equal(state(task)[0], first[0])


def test_clusterings_take_the_views_in_turn() -> None:
    task = clustered(prototypes=[6, 6, 6], assign=2)
    for number, head in enumerate(heads_of(task)):
        assert torch.equal(head.labels, (vectors_of(task, number % 2) @ head.centroids.T).argmax(1))


def test_all_of_it_is_saved_with_the_model() -> None:
    task, other = clustered(), deepcluster()
    other.load_state_dict(task.state_dict())
    batch = some(0, 16)
    assert other(batch, Clock())["loss"].item() == task(batch, Clock())["loss"].item()
    assert torch.equal(vectors_of(other), vectors_of(task)) and other.seen.all()


# --- what goes wrong, and what goes well ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "batch", "message"),
    [
        ({"assign": 3}, some(0, 8), "learns from 3 views or more of an image; data.train.transforms gives 2"),
        ({}, some(0, 1), "learns from 2 images or more per process, not 1"),
        ({}, batch_of(), "needs the index of each image.*source: {name: indexed, source: ...}"),
    ],
    ids=["more assigning views than views", "one image", "no numbers"],
)
def test_what_does_not_fit_is_reported(keys: dict[str, Any], batch: Batch, message: str) -> None:
    with pytest.raises(DataMismatch, match=message):
        deepcluster(**keys)(batch, Clock())


def test_more_clusters_than_images_are_reported_before_anything_is_computed() -> None:
    asked: list[tuple[str, int]] = []
    with pytest.raises(DataMismatch, match=r"task\.prototypes: 49 clusters cannot be made of 48 images"):
        deepcluster(prototypes=[49]).hooks(FACTS)[0].before_phase(run_at(Clock(), asked), TRAIN)
    assert not asked


def test_more_clusters_than_images_that_were_seen_are_reported() -> None:
    with pytest.raises(DataMismatch, match=r"task\.prototypes: 40 clusters cannot be made of 32 images"):
        deepcluster(prototypes=[40]).hooks(FACTS)[0].before_phase(run_at(Clock(), samples=32), TRAIN)


def test_no_prototypes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"prototypes: at least one clustering is needed, such as \[3000\]"):
        deepcluster(prototypes=[])


def test_it_learns_and_does_not_collapse() -> None:
    task = deepcluster(prototypes=[6, 6], projection=16)
    optimizer = torch.optim.SGD(task.parameters(), lr=0.02, momentum=0.9)
    hooks, losses, step, said = task.hooks(FACTS), [], 0, {}
    for number in range(8):
        hooks[0].before_phase(run_at(Clock(step=step, epoch=number, steps_per_epoch=3)), TRAIN)
        for batch in epoch(seed=number):
            said = task(batch, Clock(step=step, epoch=number, steps_per_epoch=3))
            optimizer.zero_grad()
            said["loss"].backward()
            optimizer.step()
            step += 1
            for hook in hooks:
                hook.after_step(at(step, 24))
            losses.append(said["loss"].item())
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3])
    assert sum(losses[-3:]) / 3 < 0.5 * math.log(6)
    assert said["entropy"] > 0.8 and said["std"] > 0.4
