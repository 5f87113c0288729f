"""DeepCluster v2: cluster assignments of all images as labels, recomputed at the start of every epoch."""

from __future__ import annotations

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
from tests.tasks.selfsup.views import batch_of, make_task, run_at_step

DATASET_INFO = DatasetInfo(samples=48, channels=1)
TRAIN = Phase("train", "train")


def deepcluster(**keys: Any) -> DeepCluster:
    return make_task(DeepCluster, **{"dataset_info": DATASET_INFO, "projection": 6, "prototypes": [5, 7], **keys})


def batch_slice(first: int, last: int, num_views: int = 2, seed: int = 0) -> Batch:
    """Return the views of images ``first`` to ``last`` - 1, with noise of this seed."""
    batch = batch_of(DATASET_INFO.samples, num_views, seed=1)
    noise = 0.05 * torch.randn(num_views, *batch["views"][0].shape, generator=torch.Generator().manual_seed(seed))
    views = tuple(
        (view + view_noise)[first:last].clamp(0, 1) for view, view_noise in zip(batch["views"], noise, strict=True)
    )
    return {"views": views, "id": batch["id"][first:last], "index": torch.arange(first, last)}


def epoch(batch_size: int = 16, seed: int = 0, samples: int = DATASET_INFO.samples) -> Iterator[Batch]:
    yield from (batch_slice(first, first + batch_size, seed=seed) for first in range(0, samples, batch_size))


def epoch_run(clock: Clock, requests: list[tuple[str, int]] | None = None, samples: int = DATASET_INFO.samples) -> Run:
    """Return a run with the attributes that hooks of the task read; ``requests`` records the batches they request."""

    def batches(name: str, count: int) -> Iterator[Batch]:
        if requests is not None:
            requests.append((name, count))
        return epoch(seed=99, samples=samples)

    return cast("Run", SimpleNamespace(clock=clock, batches=batches))


def make_clustered(**keys: Any) -> DeepCluster:
    task = deepcluster(**keys)
    task.hooks(DATASET_INFO)[0].before_phase(epoch_run(Clock(steps_per_epoch=3)), TRAIN)
    return task


def cluster_heads(task: DeepCluster) -> list[Clusters]:
    return [head for head in task.heads if isinstance(head, Clusters)]


def vectors_of(task: DeepCluster, view: int = 0) -> Tensor:
    return task.memories[view].get_buffer("vectors")


def embeddings_of(task: DeepCluster, batch: Batch) -> list[Tensor]:
    projections = task.projector(task.backbone(task.normalize(torch.cat(batch["views"]))))
    return list(F.normalize(projections, dim=1).chunk(len(batch["views"])))


# --- the loss ---------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_cross_entropy_with_the_clusters() -> None:
    task, batch = make_clustered(), batch_slice(8, 24)
    views, losses = embeddings_of(task, batch), []
    for head in cluster_heads(task):
        for view in views:
            for vector, index in zip(view, batch["index"].tolist(), strict=True):
                logits = head.centroids @ vector / 0.1
                losses.append((logits.logsumexp(0) - logits[head.labels[index]]) / len(views) / 16 / 2)
    expected, loss = torch.stack(losses).sum(), task(batch, Clock())["loss"]
    torch.testing.assert_close(loss, expected)
    parameters = list(task.backbone.parameters())
    for grad, expected_grad in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(grad, expected_grad, atol=1e-5, rtol=1e-4)


def test_an_image_without_a_cluster_has_no_loss() -> None:
    task = deepcluster(prototypes=[5])
    task.hooks(DATASET_INFO)[0].before_phase(epoch_run(Clock(steps_per_epoch=2), samples=32), TRAIN)
    (head,) = cluster_heads(task)
    assert head.labels[:32].min() >= 0 and head.labels[32:].eq(-1).all()
    assert task(batch_slice(32, 40), Clock())["loss"] == 0
    clustered_loss, mixed_loss = (
        task.eval()(batch_slice(*span), Clock())["loss"].item() for span in ((24, 32), (24, 40))
    )
    assert mixed_loss == pytest.approx(clustered_loss / 2)


# --- memory and clusters ----------------------------------------------------------------------------------------------


def test_the_memory_holds_the_newest_embeddings_of_each_image() -> None:
    task = deepcluster(assign=2)
    hooks = task.hooks(DATASET_INFO)
    expected = torch.zeros(2, 48, 6)
    for number, (first, last) in enumerate(((0, 16), (8, 24))):
        batch = batch_slice(first, last, seed=number)
        expected[:, first:last] = torch.stack(embeddings_of(task, batch)).detach()
        task(batch, Clock(step=number))
        for hook in hooks:
            hook.after_step(run_at_step(number + 1, 9))
    assert task.seen.tolist() == [number < 24 for number in range(48)]
    for view in range(2):
        torch.testing.assert_close(vectors_of(task, view)[:24], expected[view, :24])


def test_micro_batches_of_a_step_are_stored_but_not_passes_without_a_step() -> None:
    task = deepcluster()
    task(batch_slice(40, 48), Clock(step=0))
    for first in (0, 8):
        task(batch_slice(first, first + 8), Clock(step=1))
    task.update_memories()
    assert task.seen.nonzero().flatten().tolist() == list(range(16))


def test_non_finite_embeddings_are_not_stored() -> None:
    task, batch = deepcluster().eval(), batch_slice(0, 16)  # in training, batch norm would spread NaN to all images
    task(batch_slice(4, 8), Clock())
    task.update_memories()
    before = vectors_of(task)[4].clone()
    batch["views"][0][3:5] = torch.nan
    task(batch, Clock(step=1))
    task.update_memories()
    assert task.seen.nonzero().flatten().tolist() == [0, 1, 2, *range(4, 16)], "one was seen before"
    assert torch.equal(vectors_of(task)[4], before)


def test_the_run_begins_with_clusters_of_all_images() -> None:
    task, requests, restored = deepcluster(), [], deepcluster()
    task.hooks(DATASET_INFO)[0].before_phase(epoch_run(Clock(steps_per_epoch=3), requests), TRAIN)
    assert requests == [("train", 3)]
    restored.load_state_dict(task.state_dict())
    assert restored(batch_slice(0, 16), Clock())["loss"] == task(batch_slice(0, 16), Clock())["loss"]
    assert task.seen.all()
    for head, count in zip(cluster_heads(task), (5, 7), strict=True):
        nearest = (vectors_of(task) @ head.centroids.T).argmax(1)
        assert torch.equal(head.labels, nearest)
        torch.testing.assert_close(head.centroids.norm(dim=1), torch.ones(count))
        assert head.entropy.item() == pytest.approx(normalized_entropy(torch.bincount(nearest, minlength=count)).item())
    losses = task(batch_slice(0, 8), Clock())
    assert losses["entropy"].item() == pytest.approx(sum(head.entropy.item() for head in cluster_heads(task)) / 2)
    assert losses["entropy"] > 0.5


def cluster_state(task: DeepCluster) -> list[Tensor]:
    return [value.clone() for head in cluster_heads(task) for value in (head.centroids, head.labels)]


def test_clusters_are_computed_only_at_the_start_of_training_epochs() -> None:
    task, requests = make_clustered(), []
    before = cluster_state(task)
    (hook, _) = task.hooks(DATASET_INFO)
    for batch in epoch(seed=5):
        task(batch, Clock(step=1))
        task.update_memories()
    hook.before_phase(epoch_run(Clock(step=4, epoch=1, epoch_step=1, steps_per_epoch=3), requests), TRAIN)
    hook.before_phase(epoch_run(Clock(step=3, epoch=1, steps_per_epoch=3), requests), Phase("evaluate", "val"))
    assert all(map(torch.equal, cluster_state(task), before))
    hook.before_phase(epoch_run(Clock(step=3, epoch=1, steps_per_epoch=3), requests), TRAIN)
    assert not torch.equal(cluster_state(task)[0], before[0])
    assert not requests, "the memory already has all images"


def test_clusters_depend_only_on_epoch_and_head() -> None:
    task = make_clustered(prototypes=[6, 6])
    first = cluster_state(task)
    assert not torch.equal(first[0], first[2]), "each clustering has its own initialization"
    torch.manual_seed(123)
    task.cluster(0)
    assert all(map(torch.equal, cluster_state(task), first))
    task.cluster(1)
    assert not torch.equal(cluster_state(task)[0], first[0])


def test_clusterings_take_the_views_in_turn() -> None:
    task = make_clustered(prototypes=[6, 6, 6], assign=2)
    for number, head in enumerate(cluster_heads(task)):
        assert torch.equal(head.labels, (vectors_of(task, number % 2) @ head.centroids.T).argmax(1))


# --- errors and training ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "batch", "message"),
    [
        ({"assign": 3}, batch_slice(0, 8), "learns from 3 views or more of an image; data.train.transforms gives 2"),
        ({}, batch_slice(0, 1), "learns from 2 images or more per process, not 1"),
        ({}, batch_of(), "needs the index of each image.*source: {name: indexed, source: ...}"),
    ],
    ids=["more assigning views than views", "one image", "no indices"],
)
def test_batches_that_do_not_fit_are_reported(keys: dict[str, Any], batch: Batch, message: str) -> None:
    with pytest.raises(DataMismatch, match=message):
        deepcluster(**keys)(batch, Clock())


def test_more_clusters_than_images_and_no_clusters_are_refused() -> None:
    requests: list[tuple[str, int]] = []
    with pytest.raises(DataMismatch, match=r"task\.prototypes: 49 clusters cannot be made of 48 images"):
        deepcluster(prototypes=[49]).hooks(DATASET_INFO)[0].before_phase(epoch_run(Clock(), requests), TRAIN)
    assert not requests, "before anything is computed"
    with pytest.raises(DataMismatch, match=r"task\.prototypes: 40 clusters cannot be made of 32 images"):
        deepcluster(prototypes=[40]).hooks(DATASET_INFO)[0].before_phase(epoch_run(Clock(), samples=32), TRAIN)
    with pytest.raises(ValueError, match=r"prototypes: at least one clustering is needed, such as \[3000\]"):
        deepcluster(prototypes=[])
