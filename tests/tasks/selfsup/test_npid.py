"""NPID: every image against what a memory keeps of all images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from opabinia.contracts import Batch, Clock, DataMismatch
from opabinia.models.losses.contrastive import estimate_log_normalizer, info_nce, memory_nce
from opabinia.tasks.selfsup.npid import NPID
from tests.tasks.selfsup.views import FACTS, at, batch_of, make

CLOCK = Clock(total_steps=10)


def small(samples: int = 64, **keys: Any) -> NPID:
    return make(NPID, replace(FACTS, samples=samples), **{"projection": 8, "negatives": 20, **keys})


def numbered(images: int = 16, views: int = 1, first: int = 0, seed: int = 1) -> Batch:
    return batch_of(images, views, seed) | {"index": torch.arange(first, first + images)}


def after_step(task: NPID) -> None:
    for hook in task.hooks(FACTS):
        hook.after_step(at(1, 10))


def seeded(task: NPID, batch: Batch, seed: int = 5) -> dict[str, torch.Tensor]:
    """What the task says, with what the step draws."""
    torch.manual_seed(seed)
    return task(batch, CLOCK)  # type: ignore[no-any-return]


# --- the loss ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("loss", ["nce", "info_nce"])
def test_the_loss_is_that_of_the_images_entries_among_those_drawn(loss: str, views: int) -> None:
    task, batch = small(loss=loss, temperature=0.2), numbered(first=8, views=views)
    queries = torch.cat([task.projector(task.backbone(view)) for view in task.views(batch, min_count=1)])
    keys = task.memory.vectors[8:24].repeat(views, 1)
    torch.manual_seed(5)
    others = task.memory.vectors[torch.randint(64, (20,))]
    if loss == "nce":
        z = estimate_log_normalizer(queries, keys, others, 64, 0.2)
        expected = memory_nce(queries, keys, others, z, 64, 0.2)
    else:
        expected = info_nce(queries, keys, others, 0.2)
    assert seeded(task, batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_others_are_drawn_anew_in_each_step() -> None:
    task, batch = small(), numbered()
    assert seeded(task, batch, 1)["loss"] != seeded(task, batch, 2)["loss"]


def test_the_network_alone_learns() -> None:
    task = small()
    task(numbered(), CLOCK)["loss"].backward()
    assert all(one.grad is not None and one.grad.any() for one in task.parameters())
    assert not task.memory.vectors.requires_grad


# --- the memory -------------------------------------------------------------------------------------------------------


def test_the_memory_takes_the_images_of_each_step() -> None:
    task, batch = small(momentum=0.25), numbered(first=8)
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
    assert torch.equal(task.memory.vectors, after), "a step counts once"


def test_the_first_batch_says_what_all_are_divided_by() -> None:
    task = small()
    seeded(task, numbered())
    assert task.log_normalizer.isnan()
    after_step(task)
    first = task.log_normalizer.clone()
    assert first.isfinite()
    batch, entries = numbered(first=30, seed=2), task.memory.vectors
    (images,) = task.views(batch, min_count=1)
    torch.manual_seed(5)
    others = entries[torch.randint(64, (20,))]
    queries = task.projector(task.backbone(images))
    expected = memory_nce(queries, entries[30:46], others, first, 64)
    assert seeded(task, batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    after_step(task)
    assert torch.equal(task.log_normalizer, first)


# --- training ---------------------------------------------------------------------------------------------------------


def train(task: NPID, steps: range) -> list[float]:
    """On the same 64 images again and again; every step draws from a seed of its own."""
    optimizer = torch.optim.SGD(task.parameters(), lr=0.03)
    losses = []
    for step in steps:
        loss = seeded(task, numbered(first=16 * (step % 4), seed=step % 4), seed=step)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step(task)
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("loss", ["nce", "info_nce"])
def test_it_learns(loss: str) -> None:
    losses = train(small(loss=loss, temperature=0.5), range(80))
    assert sum(losses[-8:]) < 0.85 * sum(losses[:8])


def test_a_resume_has_the_memory_as_it_was() -> None:
    whole, first = small(), small()
    second = make(NPID, FACTS, projection=8, negatives=20)
    expected = train(whole, range(12))
    train(first, range(6))
    with torch.no_grad():
        for value in second.state_dict().values():
            value.zero_()
    second.load_state_dict(first.state_dict())
    assert train(second, range(6, 12)) == expected[6:]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert {"memory.vectors", "log_normalizer"} <= whole.state_dict().keys()


# --- bad input --------------------------------------------------------------------------------------------------------


def test_images_without_numbers_are_reported() -> None:
    with pytest.raises(DataMismatch, match=r"NPID needs the index of each image, and batches have none; .* indexed"):
        small()(batch_of(views=1), CLOCK)


def test_a_batch_of_one_is_reported() -> None:
    with pytest.raises(DataMismatch, match="NPID learns from 2 images or more per process, not 1; raise"):
        small()(numbered(images=1), CLOCK)


def test_a_batch_without_views_is_reported() -> None:
    batch = numbered()
    with pytest.raises(DataMismatch, match="add views to"):
        small()({"image": batch.pop("views")[0], **batch}, CLOCK)
