"""SwAV: assignments by Sinkhorn, swapped predictions, prototypes and the queue."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import Batch, Clock, DataMismatch
from opabinia.models.prototypes import Prototypes
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.swav import SwAV, SwavQueue
from tests.models.losses.test_clustering import sinkhorn
from tests.tasks.selfsup.views import batch_of, make_task, run_at_step, train_steps


def swav(**keys: Any) -> SwAV:
    return make_task(SwAV, **{"projection": 6, "prototypes": [5, 7], **keys})


def crops_of(batch: Batch) -> Batch:
    """Add three smaller views."""
    small = tuple(batch["views"][number % 2][:, :, :6, :6] for number in range(3))
    return {**batch, "views": (*batch["views"], *small)}


def embeddings_of(task: SwAV, batch: Batch) -> list[Tensor]:
    """Return the embeddings of the views; those of one size share a forward pass, and so batch statistics."""
    sizes = [batch["views"][:2], batch["views"][2:]]
    passes = [task.projector(task.backbone(task.normalize(torch.cat(views)))) for views in sizes if views]
    count = len(batch["id"])
    return [F.normalize(view, dim=1) for projections in passes for view in projections.split(count)]


def reference_loss(task: SwAV, batch: Batch, earlier: list[Tensor] | None = None) -> Tensor:
    """Compute equations 1 to 4, or section 4.3 with a queue: means over pairs of views and over heads."""
    views, losses = embeddings_of(task, batch), []
    for head in task.prototypes.heads:
        for assigned in range(2):
            vectors = torch.cat([views[assigned], *([earlier[assigned]] if earlier else [])])
            codes = sinkhorn((vectors @ head.T).detach(), 0.05, 3)[: len(views[assigned])]
            for predicted_view in range(len(views)):
                if predicted_view != assigned:
                    predicted = F.log_softmax(views[predicted_view] @ head.T / 0.1, dim=1)
                    losses.append(-(codes * predicted).sum(1).mean() / (len(views) - 1) / 2 / 2)
    return torch.stack(losses).sum()


@pytest.mark.parametrize("crops", [False, True])
def test_the_loss_equals_that_of_the_paper(crops: bool) -> None:
    task = swav()
    batch = crops_of(batch_of()) if crops else batch_of()
    loss, expected = task(batch, Clock())["loss"], reference_loss(task, batch)
    torch.testing.assert_close(loss, expected)
    parameters = [task.prototypes.heads[0], *task.backbone.parameters()]
    for grad, expected_grad in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(grad, expected_grad, atol=1e-5, rtol=1e-4)


def test_more_views_may_assign() -> None:
    batch = crops_of(batch_of(8))
    losses = [swav(assign=assign)(batch, Clock())["loss"].item() for assign in (1, 2, 5)]
    assert len(set(losses)) == 3


def test_assignments_are_hard_in_the_first_steps() -> None:
    task, batch = swav(hard=Duration(3, "it")), batch_of()
    soft = swav()(batch, Clock())["loss"].item()
    assert task(batch, Clock(step=3))["loss"].item() == pytest.approx(soft)
    assert task(batch, Clock(step=2))["loss"].item() != pytest.approx(soft, rel=1e-3)


# --- prototypes -------------------------------------------------------------------------------------------------------


def lengths(prototypes: Prototypes) -> Tensor:
    return torch.cat([head.detach().norm(dim=1) for head in prototypes.heads])


def test_prototypes_are_frozen_at_first_and_keep_their_length() -> None:
    task = swav(freeze=Duration(2, "it"))
    optimizer = torch.optim.SGD(task.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1)
    torch.testing.assert_close(lengths(task.prototypes), torch.ones(12))
    for step in range(4):
        before = [head.detach().clone() for head in task.prototypes.heads]
        optimizer.zero_grad()
        task(batch_of(seed=step), Clock(step=step))["loss"].backward()
        for hook in task.hooks(task.dataset_info):
            hook.after_backward(run_at_step(step, 4))
        optimizer.step()
        for hook in task.hooks(task.dataset_info):
            hook.after_step(run_at_step(step + 1, 4))
        unchanged = [
            torch.allclose(old, new, atol=1e-6) for old, new in zip(before, task.prototypes.heads, strict=True)
        ]
        assert unchanged == [step < 2] * 2
        torch.testing.assert_close(lengths(task.prototypes), torch.ones(12))


def test_prototypes_are_compared_in_full_precision() -> None:
    vectors = F.normalize(torch.randn(3, 8, generator=torch.Generator().manual_seed(1)), dim=1)
    prototypes = Prototypes(8, [4])
    with torch.autocast("cpu", torch.bfloat16):
        (logits,) = prototypes(vectors.bfloat16())
    torch.testing.assert_close(logits, vectors.bfloat16().float() @ prototypes.heads[0].T)


# --- the queue --------------------------------------------------------------------------------------------------------


def step(task: SwAV, batch: Batch, clock: Clock) -> float:
    loss = task(batch, clock)["loss"].item()
    for hook in task.hooks(task.dataset_info):
        hook.after_step(run_at_step(clock.step + 1, 99))
    return loss


def test_the_queue_holds_the_newest_vectors_if_batches_do_not_divide_its_length() -> None:
    task = swav(queue=SwavQueue(length=10, start=Duration(0, "it")))
    history: list[list[Tensor]] = []
    for number, count in enumerate((4, 4, 4, 3)):
        batch = batch_of(count, seed=number)
        history.append([embedding.detach() for embedding in embeddings_of(task, batch)])
        step(task, batch, Clock(step=number))
    for view, queue in enumerate(task.queues):
        newest = torch.cat([views[view] for views in history])[-10:]
        stored = queue.get_buffer("features")
        # Batches are stored one after the other; the last five vectors replace the oldest.
        torch.testing.assert_close(stored[torch.arange(5, 15) % 10], newest)


def test_the_queue_is_used_once_started_and_full() -> None:
    task, batch = swav(queue=SwavQueue(length=6, start=Duration(3, "it"))), batch_of(4, seed=9)
    for number in range(2):
        step(task, batch_of(4, seed=number), Clock(step=number, samples=4 * number))
    plain = reference_loss(task, batch).item()
    earlier = [queue.get_buffer("features") for queue in task.queues]
    queued = reference_loss(task, batch, earlier).item()
    assert queued != pytest.approx(plain, rel=1e-3)
    for step_number, samples, expected in ((2, 8, plain), (3, 5, plain), (3, 6, queued)):
        assert task(batch, Clock(step=step_number, samples=samples))["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_non_finite_vectors_are_not_stored_in_the_queue() -> None:
    task, batch = swav(queue=SwavQueue(length=4)), batch_of(4)
    with torch.no_grad():
        task.projector[0].weight.fill_(torch.nan)
    step(task, batch, Clock())
    assert all(queue.get_buffer("features").eq(0).all() for queue in task.queues)


# --- errors and the teacher -------------------------------------------------------------------------------------------


def test_fewer_views_than_assign_are_reported() -> None:
    with pytest.raises(DataMismatch, match=r"^SwAV learns from 3 views or more of an image; .*transforms gives 2"):
        swav(assign=3)(batch_of(), Clock())


def test_no_prototypes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"prototypes: at least one head is needed, such as \[3000\]"):
        swav(prototypes=[])


def test_a_teacher_with_momentum_0_gives_the_same_assignments() -> None:
    """With momentum 0 the teacher equals the network; otherwise its older prototypes give the assignments."""
    tasks = [swav(momentum=momentum, freeze=Duration(0, "it")) for momentum in (None, 0.0, 0.9)]
    plain, same, slow = ([logged["loss"] for logged in train_steps(task, 4)] for task in tasks)
    assert plain == pytest.approx(same, rel=1e-5)
    assert slow[0] == pytest.approx(plain[0], rel=1e-5) and slow[3] != pytest.approx(plain[3], rel=1e-5)
    assert not any(name.startswith("teacher.") for name in tasks[0].state_dict())
