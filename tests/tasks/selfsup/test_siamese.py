"""Common behavior of self-supervised methods without negatives: shared networks, and no collapse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import Clock, DataMismatch, DatasetInfo
from opabinia.evaluation.representation.collapse import Collapse
from opabinia.evaluation.representation.knn import Knn
from opabinia.tasks.selfsup.barlow_twins import BarlowTwins
from opabinia.tasks.selfsup.base import SelfSupervised
from opabinia.tasks.selfsup.byol import BYOL
from opabinia.tasks.selfsup.rotation import Rotation
from opabinia.tasks.selfsup.simsiam import SimSiam
from opabinia.tasks.selfsup.vicreg import VICReg
from tests.tasks.selfsup.views import DATASET_INFO, batch_of, make_task, train_steps

METHODS: dict[str, tuple[Callable[..., SelfSupervised], dict[str, Any], float]] = {
    "byol": (BYOL, {"hidden": 64, "projection": 16, "momentum": 0.9}, 0.05),
    "simsiam": (SimSiam, {"projection": 32, "hidden": 8}, 0.05),
    "barlow_twins": (BarlowTwins, {"hidden": 32, "projection": 16}, 0.1),
    "vicreg": (VICReg, {"hidden": 32, "projection": 16}, 0.01),
    "rotation": (Rotation, {}, 0.05),
}
"""Methods, their options for narrow networks, and learning rates."""

all_methods = pytest.mark.parametrize("name", METHODS)
view_methods = pytest.mark.parametrize("name", [name for name in METHODS if name != "rotation"])


def task_of(name: str, dataset_info: DatasetInfo = DATASET_INFO, **keys: Any) -> SelfSupervised:
    kind, method_keys, _ = METHODS[name]
    return make_task(kind, dataset_info, **{**method_keys, **keys})


@all_methods
def test_it_learns_without_labels_and_does_not_collapse(name: str) -> None:
    task = task_of(name)
    history = train_steps(task, 40, METHODS[name][2], task.hooks(DATASET_INFO))
    first, last = (sum(step["total"] for step in steps) / 5 for steps in (history[:5], history[-5:]))
    assert last < first - 0.2 * abs(first), (first, last)
    assert min(step["std"] for step in history) > 0.3


@all_methods
def test_every_parameter_learns(name: str) -> None:
    task = task_of(name)
    train_steps(task, 1)
    without_gradient = {
        key
        for key, param in task.named_parameters()
        if param.requires_grad and (param.grad is None or not param.grad.any())
    }
    # Batch norm removes biases, which are the same for all images.
    assert all(key.endswith("bias") for key in without_gradient)


@view_methods
@pytest.mark.parametrize("views", [0, 1])
def test_too_few_views_are_reported(name: str, views: int) -> None:
    batch = batch_of()
    batch["views"] = batch["views"][:views]
    with pytest.raises(DataMismatch, match=r"learns from 2 views or more of an image; .*data\.train\.transforms"):
        task_of(name)(batch, Clock())


@view_methods
def test_plain_images_are_reported(name: str) -> None:
    with pytest.raises(DataMismatch, match=r"data\.train\.transforms gives none; add views"):
        task_of(name)({"image": batch_of()["views"][0], "id": batch_of()["id"]}, Clock())


@view_methods
def test_a_single_image_is_reported(name: str) -> None:
    with pytest.raises(DataMismatch, match=r"2 images or more per process, not 1; raise data\.batch_size"):
        task_of(name)(batch_of(images=1), Clock())


@all_methods
def test_views_in_evaluation_batches_are_reported(name: str) -> None:
    with pytest.raises(DataMismatch, match="is evaluated on whole images, not on views"):
        task_of(name).predict(batch_of())


@all_methods
def test_views_may_be_many_and_of_several_sizes(name: str) -> None:
    task, batch = task_of(name), batch_of(views=3)
    batch["views"] = (*batch["views"], batch["views"][0][:, :, 2:8, 2:8])
    losses = task(batch, Clock())
    assert all(value.isfinite() and value.shape == () for value in losses.values())
    assert any(value.requires_grad for value in losses.values())


@all_methods
def test_std_is_small_for_collapsed_embeddings(name: str) -> None:
    task, batch = task_of(name), batch_of()
    batch["views"] = tuple(view[:1].expand(16, -1, -1, -1) for view in batch["views"])
    if name == "rotation":
        batch["views"] = tuple(torch.full_like(view, 0.5) for view in batch["views"])
    assert task(batch, Clock())["std"] < 0.02 < task(batch_of(), Clock())["std"]


@all_methods
def test_the_embedding_is_the_output_of_the_backbone(name: str) -> None:
    task = task_of(name).eval()
    image = batch_of()["views"][0]
    embedding: Tensor = task.predict({"image": image})["embedding"]
    torch.testing.assert_close(embedding, task.backbone(task.normalize(image)))
    assert task.trunk is task.backbone
    assert [type(evaluator) for evaluator in task.evaluators(DATASET_INFO)] == [Collapse]
    labeled = DatasetInfo(samples=4, channels=1, classes=("a", "b"))
    assert [type(evaluator) for evaluator in task_of(name, labeled).evaluators(labeled)] == [Knn, Collapse]
