"""MoCo v2: queries against keys and a queue, which takes the keys of every step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.contracts import Backbone, Batch, Clock, DataMismatch
from opabinia.models import norms
from opabinia.models.norms import SyncBatchNorm
from opabinia.tasks.selfsup import moco
from opabinia.tasks.selfsup.moco import MoCo
from tests.tasks.selfsup.views import FACTS, Small, at, batch_of, make, trained

CLOCK = Clock(total_steps=10)


def small(**keys: Any) -> MoCo:
    return make(MoCo, **{"projection": 8, "queue": 64, **keys})


def after_step(task: MoCo) -> None:
    for hook in task.hooks(FACTS):
        hook.after_step(at(1, 10))


def keys_of(task: MoCo, batch: Batch) -> Tensor:
    with torch.no_grad():
        return F.normalize(task.teacher.projector(task.teacher.backbone(task.views(batch)[1])), dim=1)  # type: ignore[operator]


# --- the loss ---------------------------------------------------------------------------------------------------------


def test_the_loss_is_equation_1() -> None:
    task, batch = small(temperature=0.3), batch_of()
    queries = F.normalize(task.projector(task.backbone(task.views(batch)[0])), dim=1)
    keys = keys_of(task, batch)
    logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ task.queue.features.T], 1) / 0.3
    expected = F.cross_entropy(logits, torch.zeros(16, dtype=torch.int64))
    assert task(batch, CLOCK)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_student_alone_learns() -> None:
    task = small()
    task(batch_of(), CLOCK)["loss"].backward()
    assert all(
        one.grad is not None and one.grad.any() for one in (*task.backbone.parameters(), *task.projector.parameters())
    )
    assert all(one.grad is None and not one.requires_grad for one in task.teacher.parameters())
    assert not task.queue.features.requires_grad


def test_the_projector_has_no_batch_norm() -> None:
    widths = [(one.in_features, one.out_features) for one in small().projector if isinstance(one, nn.Linear)]
    assert widths == [(12, 12), (12, 8)] and len(small().projector) == 3
    assert small(hidden=20).projector[0].out_features == 20


# --- the queue --------------------------------------------------------------------------------------------------------


def test_it_begins_with_drawn_vectors_and_takes_the_keys_of_each_step() -> None:
    task = small(queue=40)
    drawn = task.queue.features.clone()
    torch.testing.assert_close(drawn.norm(dim=1), torch.ones(40))
    expected = drawn.clone()
    for step in range(4):
        batch = batch_of(seed=step)
        keys = keys_of(task, batch)
        task(batch, CLOCK)
        torch.testing.assert_close(task.queue.features, expected)  # forward changes nothing
        after_step(task)
        for number, key in enumerate(keys):
            expected[(16 * step + number) % 40] = key
    torch.testing.assert_close(task.queue.features, expected)
    assert task.queue.pointer.item() == 64 % 40


def test_a_forward_pass_that_is_done_again_counts_once() -> None:
    once, twice = small(), small()
    for task, times in ((once, 1), (twice, 2)):
        for _ in range(times):
            task(batch_of(), CLOCK)
        after_step(task)
        after_step(task)
    assert torch.equal(once.queue.features, twice.queue.features)
    assert once.queue.pointer.item() == twice.queue.pointer.item() == 16


def test_keys_that_are_not_finite_do_not_stay() -> None:
    task, batch = small(), batch_of()
    batch["views"][1][3] = torch.nan
    task(batch, CLOCK)
    after_step(task)
    assert task.queue.features.isfinite().all()
    assert not task.queue.features[3].any() and task.queue.features[2].any()


@pytest.mark.parametrize("size", [16, 17, 100])
def test_any_size_from_a_batch_on_will_do(size: int) -> None:
    assert trained(task := small(queue=size), 3, hooks=task.hooks(FACTS))[-1]["loss"] > 0


def test_a_queue_smaller_than_a_batch_is_reported() -> None:
    with pytest.raises(DataMismatch, match=r"queue: it holds 15 keys, and a batch has 16; .* raise task.queue"):
        small(queue=15)(batch_of(), CLOCK)


# --- the teacher ------------------------------------------------------------------------------------------------------


def test_the_teacher_follows() -> None:
    task = small(momentum=0.75)
    old = [one.clone() for one in task.teacher.parameters()]
    with torch.no_grad():
        for one in (*task.backbone.parameters(), *task.projector.parameters()):
            one += 1
    after_step(task)
    for before, now in zip(old, task.teacher.parameters(), strict=True):
        torch.testing.assert_close(now, before + 0.25)


class Normed(Small):
    """With a batch norm at its end."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.layers.append(nn.BatchNorm1d(self.out_channels))


class Ghostly(Normed):
    """The same, whose norm sees parts of the batch."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        norms.convert_ghost_batch_norm(self, 2)


def with_norm(backbone: type[Backbone] = Normed) -> MoCo:
    torch.manual_seed(0)
    return MoCo(FACTS, backbone=backbone, projection=8, queue=32, mean=[0.5], std=[0.25])


def test_images_are_dealt_for_batch_norms_that_see_a_part_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def turned_round(rows: Tensor, seed: int) -> Any:
        seeds.append(seed)
        return rows.flip(0), lambda made: made.flip(0)

    monkeypatch.setattr(moco, "shuffle_between_ranks", turned_round)
    task, batch = with_norm(Ghostly), batch_of()
    expected = keys_of(copy.deepcopy(task), batch)
    for step in (0, 0, 1):
        task(batch, Clock(step=step, total_steps=10))
    assert seeds[0] == seeds[1] != seeds[2]
    after_step(task)
    torch.testing.assert_close(task.queue.features[:16], expected)  # each key is of its own image
    for other in (small(), with_norm()):
        other(batch, CLOCK)
    assert len(seeds) == 3, "no norm, or one process: nothing in it depends on the company"


def test_synchronised_norms_see_all_images_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(moco, "shuffle_between_ranks")
    task = with_norm()
    for part in (task.backbone, task.teacher.backbone):
        part.layers[-1] = SyncBatchNorm(12)  # type: ignore[operator, index, union-attr]
    assert task(batch_of(), CLOCK)["loss"].isfinite()


# --- training ---------------------------------------------------------------------------------------------------------


def test_it_learns() -> None:
    task = small(queue=32, momentum=0.99)
    said = trained(task, 60, hooks=task.hooks(FACTS))
    # At first the queue has drawn vectors, which are easy to tell from keys.
    first, last = (sum(one["loss"] for one in said[part]) / 8 for part in (slice(4, 12), slice(-8, None)))
    assert last < first - 0.5
    assert said[-1]["std"] > 0.3


def test_a_resume_goes_on_as_if_nothing_had_happened() -> None:
    whole, first = small(), small()
    optimizers = [torch.optim.SGD(one.backbone.parameters(), lr=0.1) for one in (whole, first)]

    def train(task: MoCo, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            task(batch_of(seed=step), Clock(step=step, total_steps=6))["loss"].backward()
            optimizer.step()
            after_step(task)

    train(whole, optimizers[0], range(6))
    train(first, optimizers[1], range(3))
    second = small(projection=8)
    with torch.no_grad():
        for one in second.parameters():
            one.zero_()
    second.load_state_dict(first.state_dict())
    train(second, torch.optim.SGD(second.backbone.parameters(), lr=0.1), range(3, 6))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [1, 3])
def test_another_number_of_views_is_reported(views: int) -> None:
    with pytest.raises(
        DataMismatch, match=f"MoCo learns from 2 views of an image; data.train.transforms gives {views}"
    ):
        small()(batch_of(views=views), CLOCK)


def test_a_batch_of_one_is_reported() -> None:
    with pytest.raises(DataMismatch, match="MoCo learns from 2 images or more per process, not 1; raise"):
        small()(batch_of(images=1), CLOCK)
