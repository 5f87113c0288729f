"""MoCo v2: queries against keys and a queue, to which the keys of every step are added."""

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
from tests.tasks.selfsup.views import DATASET_INFO, SmallBackbone, batch_of, make_task, run_at_step

CLOCK = Clock(total_steps=10)


def small_moco(**keys: Any) -> MoCo:
    return make_task(MoCo, **{"projection": 8, "queue": 64, **keys})


def after_step(task: MoCo) -> None:
    for hook in task.hooks(DATASET_INFO):
        hook.after_step(run_at_step(1, 10))


def keys_of(task: MoCo, batch: Batch) -> Tensor:
    with torch.no_grad():
        return F.normalize(task.teacher.projector(task.teacher.backbone(task.views(batch)[1])), dim=1)  # type: ignore[operator]


# --- the loss ---------------------------------------------------------------------------------------------------------


def test_the_loss_is_equation_1() -> None:
    task, batch = small_moco(temperature=0.3), batch_of()
    queries = F.normalize(task.projector(task.backbone(task.views(batch)[0])), dim=1)
    keys = keys_of(task, batch)
    logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ task.queue.features.T], 1) / 0.3
    expected = F.cross_entropy(logits, torch.zeros(16, dtype=torch.int64))
    assert task(batch, CLOCK)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


# --- the queue --------------------------------------------------------------------------------------------------------


def test_the_queue_starts_random_and_takes_the_keys_of_each_step() -> None:
    task = small_moco(queue=40)
    initial = task.queue.features.clone()
    torch.testing.assert_close(initial.norm(dim=1), torch.ones(40))
    expected = initial.clone()
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


def test_non_finite_keys_are_not_stored() -> None:
    task, batch = small_moco(), batch_of()
    batch["views"][1][3] = torch.nan
    task(batch, CLOCK)
    after_step(task)
    assert task.queue.features.isfinite().all()
    assert not task.queue.features[3].any() and task.queue.features[2].any()


def test_a_queue_smaller_than_a_batch_is_reported() -> None:
    with pytest.raises(DataMismatch, match=r"queue: it holds 15 keys, and a batch has 16; .* raise task.queue"):
        small_moco(queue=15)(batch_of(), CLOCK)


# --- the teacher ------------------------------------------------------------------------------------------------------


class WithBatchNorm(SmallBackbone):
    """A backbone that ends with batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.layers.append(nn.BatchNorm1d(self.out_channels))


class WithGhostBatchNorm(WithBatchNorm):
    """A backbone that ends with ghost batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        norms.convert_ghost_batch_norm(self, 2)


def moco_with_norm(backbone: type[Backbone] = WithBatchNorm) -> MoCo:
    torch.manual_seed(0)
    return MoCo(DATASET_INFO, backbone=backbone, projection=8, queue=32, mean=[0.5], std=[0.25])


def test_images_are_shuffled_if_batch_norm_does_not_use_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def reverse(rows: Tensor, seed: int) -> Any:
        seeds.append(seed)
        return rows.flip(0), lambda keys: keys.flip(0)

    monkeypatch.setattr(moco, "shuffle_between_ranks", reverse)
    task, batch = moco_with_norm(WithGhostBatchNorm), batch_of()
    expected = keys_of(copy.deepcopy(task), batch)
    for step in (0, 0, 1):
        task(batch, Clock(step=step, total_steps=10))
    assert seeds[0] == seeds[1] != seeds[2]
    after_step(task)
    torch.testing.assert_close(task.queue.features[:16], expected)  # keys are in the order of their images
    for unshuffled_task in (small_moco(), moco_with_norm()):
        unshuffled_task(batch, CLOCK)
    assert len(seeds) == 3, "without batch norm, or with one process, keys do not depend on the other images"


def test_synchronized_batch_norm_needs_no_shuffling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(moco, "shuffle_between_ranks")
    task = moco_with_norm()
    for network in (task.backbone, task.teacher.backbone):
        network.layers[-1] = SyncBatchNorm(12)  # type: ignore[operator, index, union-attr]
    assert task(batch_of(), CLOCK)["loss"].isfinite()
