"""NPID: instance discrimination against a memory bank of embeddings of all images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from opabinia.contracts import Batch, Clock
from opabinia.models.losses.contrastive import estimate_log_normalizer, info_nce, memory_nce
from opabinia.tasks.selfsup.npid import NPID
from tests.tasks.selfsup.views import DATASET_INFO, batch_of, make_task, run_at_step

CLOCK = Clock(total_steps=10)


def small_npid(samples: int = 64, **keys: Any) -> NPID:
    return make_task(NPID, replace(DATASET_INFO, samples=samples), **{"projection": 8, "negatives": 20, **keys})


def indexed_batch(images: int = 16, views: int = 1, first: int = 0, seed: int = 1) -> Batch:
    return batch_of(images, views, seed) | {"index": torch.arange(first, first + images)}


def after_step(task: NPID) -> None:
    for hook in task.hooks(DATASET_INFO):
        hook.after_step(run_at_step(1, 10))


def losses_with_seed(task: NPID, batch: Batch, seed: int = 5) -> dict[str, torch.Tensor]:
    """Return the losses of the task with this seed of the random generator."""
    torch.manual_seed(seed)
    return task(batch, CLOCK)  # type: ignore[no-any-return]


# --- the loss ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("loss", ["nce", "info_nce"])
def test_the_loss_contrasts_the_images_entries_with_random_entries(loss: str, views: int) -> None:
    task, batch = small_npid(loss=loss, temperature=0.2), indexed_batch(first=8, views=views)
    queries = torch.cat([task.projector(task.backbone(view)) for view in task.views(batch, min_count=1)])
    keys = task.memory.vectors[8:24].repeat(views, 1)
    torch.manual_seed(5)
    negatives = task.memory.vectors[torch.randint(64, (20,))]
    if loss == "nce":
        log_normalizer = estimate_log_normalizer(queries, keys, negatives, 64, 0.2)
        expected = memory_nce(queries, keys, negatives, log_normalizer, 64, 0.2)
    else:
        expected = info_nce(queries, keys, negatives, 0.2)
    assert losses_with_seed(task, batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_each_step_has_new_random_negatives() -> None:
    task, batch = small_npid(), indexed_batch()
    assert losses_with_seed(task, batch, 1)["loss"] != losses_with_seed(task, batch, 2)["loss"]


# --- the memory -------------------------------------------------------------------------------------------------------


def test_the_memory_is_updated_with_the_images_of_each_step() -> None:
    task, batch = small_npid(momentum=0.25), indexed_batch(first=8)
    before = task.memory.vectors.clone()
    with torch.no_grad():
        new = F.normalize(task.projector(task.backbone(task.views(batch, min_count=1)[0])), dim=1)
    task(batch, CLOCK)
    assert torch.equal(task.memory.vectors, before), "forward changes nothing"
    after_step(task)
    torch.testing.assert_close(task.memory.vectors[8:24], F.normalize(0.25 * before[8:24] + 0.75 * new, dim=1))
    assert torch.equal(task.memory.vectors[:8], before[:8]) and torch.equal(task.memory.vectors[24:], before[24:])
    after = task.memory.vectors.clone()
    after_step(task)
    assert torch.equal(task.memory.vectors, after), "a step updates the memory once"


def test_the_first_batch_determines_the_normalizer() -> None:
    task = small_npid()
    losses_with_seed(task, indexed_batch())
    assert task.log_normalizer.isnan()
    after_step(task)
    first = task.log_normalizer.clone()
    assert first.isfinite()
    batch, entries = indexed_batch(first=30, seed=2), task.memory.vectors
    (images,) = task.views(batch, min_count=1)
    torch.manual_seed(5)
    negatives = entries[torch.randint(64, (20,))]
    queries = task.projector(task.backbone(images))
    expected = memory_nce(queries, entries[30:46], negatives, first, 64)
    assert losses_with_seed(task, batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    after_step(task)
    assert torch.equal(task.log_normalizer, first)
