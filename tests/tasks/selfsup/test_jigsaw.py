"""Jigsaw puzzles, and PIRL, which compares them with a memory bank."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from opabinia.contracts import Clock, DataMismatch
from opabinia.models.losses.contrastive import estimate_log_normalizer, info_nce, memory_nce
from opabinia.tasks.selfsup.jigsaw import Jigsaw, cut_patches, distant_permutations
from opabinia.tasks.selfsup.pirl import PIRL
from opabinia.tasks.selfsup.rotation import quarter_turns
from tests.tasks.selfsup.views import DATASET_INFO, batch_of, make_task, run_at_step

CLOCK = Clock(total_steps=10)


def test_epoch_orders_are_far_apart_and_depend_on_the_seed() -> None:
    permutations = distant_permutations(12, seed=3).numpy()
    assert (np.sort(permutations) == np.arange(9)).all() and len(np.unique(permutations, axis=0)) == 12
    assert (distant_permutations(12, seed=3).numpy() == permutations).all()
    assert (distant_permutations(12, seed=4).numpy() != permutations).any()
    distances = (permutations[:, None] != permutations).sum(2)
    assert distances.sum() / (12 * 11) > 8.5, "8 at random, 8.59 at most"
    with pytest.raises(ValueError, match="permutations: 100000 is too many; at most 10000"):
        distant_permutations(100_000)


def test_patches_lie_in_their_cells() -> None:
    rows = torch.arange(12.0).view(1, 1, 12, 1).expand(1, 1, 12, 12)
    patches = cut_patches(torch.cat([rows, rows.mT]), 0.25)
    assert patches.shape == (2, 9, 1, 3, 3)
    for number in range(9):
        for image, cell in ((0, number // 3), (1, number % 3)):
            first = patches[image, number].min().item()
            assert first - 4 * cell in (0, 1) and patches[image, number].max() == first + 2
    with pytest.raises(DataMismatch, match="square images of some pixels, not 12 x 12 with a gap of 1"):
        cut_patches(torch.zeros(1, 1, 12, 12), 1)
    with pytest.raises(DataMismatch, match="not 12 x 10"):
        cut_patches(torch.zeros(1, 1, 12, 10), 0.25)


@pytest.mark.parametrize("views", [0, 2])
def test_the_loss_is_the_cross_entropy_of_the_order(views: int) -> None:
    task, batch = make_task(Jigsaw, permutations=5, hidden=6).eval(), batch_of(views=views or 1)
    if not views:
        batch["image"], _ = batch.pop("views")[0], None
    torch.manual_seed(5)
    losses = task(batch, CLOCK)
    torch.manual_seed(5)
    images = [task.normalize(view) for view in batch.get("views", (batch.get("image"),))]
    patches = torch.cat([cut_patches(view, 0.25) for view in images])
    classes = torch.randint(5, (len(patches),))
    logits = []
    for image, number in zip(patches, classes, strict=True):
        ordered = image[task.permutations[number]]
        logits.append(task.head(task.projector(task.backbone(ordered)).flatten()))
    torch.testing.assert_close(losses["loss"], F.cross_entropy(torch.stack(logits), classes))
    assert losses.keys() == {"loss", "top1", "std"}


def indexed_batch(first: int = 0, seed: int = 1) -> dict[str, Any]:
    return batch_of(16, 2, seed) | {"index": torch.arange(first, first + 16)}


@pytest.mark.parametrize("pretext", ["jigsaw", "rotation"])
@pytest.mark.parametrize("loss", ["nce", "info_nce"])
def test_image_and_transformed_view_are_compared_with_the_memory(pretext: str, loss: str) -> None:
    dataset_info = replace(DATASET_INFO, samples=64)
    keys: dict[str, Any] = {"projection": 8, "negatives": 20, "temperature": 0.2}
    task, batch = (
        make_task(PIRL, dataset_info, pretext=pretext, loss=loss, transformed_weight=0.25, **keys).eval(),
        indexed_batch(8),
    )
    torch.manual_seed(5)
    losses = task(batch, CLOCK)
    torch.manual_seed(5)
    negatives = task.memory.vectors[torch.randint(64, (20,))]
    image, transformed_view = task.views(batch, 2)
    queries = task.projector(task.backbone(image))
    if pretext == "rotation":
        turns = torch.randint(4, (16,)).tolist()
        rotated = torch.stack([quarter_turns([transformed_view[i : i + 1]])[turn][0] for i, turn in enumerate(turns)])
        transformed = task.transformed_projector(task.backbone(rotated))
    else:
        order = torch.rand(16, 9).argsort(1)
        patches = cut_patches(transformed_view, 0.25)
        embedded = [task.transformed_projector(task.backbone(patches[i, order[i]])).flatten() for i in range(16)]
        transformed = task.puzzle_projector(torch.stack(embedded))
    memory = task.memory.vectors[8:24].clone()
    log_normalizer = estimate_log_normalizer(queries, memory, negatives, 64, 0.2)

    def compare(vectors: torch.Tensor) -> torch.Tensor:
        if loss == "nce":
            return memory_nce(vectors, memory, negatives, log_normalizer, 64, 0.2)
        return info_nce(vectors, memory, negatives, 0.2)

    torch.testing.assert_close(losses["image_loss"], 0.75 * compare(queries))
    torch.testing.assert_close(losses["transformed_loss"], 0.25 * compare(transformed))
    for hook in task.hooks(dataset_info):
        hook.after_step(run_at_step(1, 10))
    torch.testing.assert_close(task.memory.vectors[8:24], F.normalize(memory + F.normalize(queries, dim=1), dim=1))
