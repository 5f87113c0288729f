"""What methods have in common that need no negatives: views go through one network, and nothing collapses."""

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
from tests.tasks.selfsup.views import FACTS, batch_of, make, trained

METHODS: dict[str, tuple[Callable[..., SelfSupervised], dict[str, Any], float]] = {
    "byol": (BYOL, {"hidden": 64, "projection": 16, "momentum": 0.9}, 0.05),
    "simsiam": (SimSiam, {"projection": 32, "hidden": 8}, 0.05),
    "barlow_twins": (BarlowTwins, {"hidden": 32, "projection": 16}, 0.1),
    "vicreg": (VICReg, {"hidden": 32, "projection": 16}, 0.01),
    "rotation": (Rotation, {}, 0.05),
}
"""With narrow networks, and a learning rate for them."""

every = pytest.mark.parametrize("name", METHODS)
comparing = pytest.mark.parametrize("name", [name for name in METHODS if name != "rotation"])


def task_of(name: str, dataset_info: DatasetInfo = FACTS, **keys: Any) -> SelfSupervised:
    kind, own, _ = METHODS[name]
    return make(kind, dataset_info, **{**own, **keys})


@every
def test_it_learns_without_labels_and_does_not_collapse(name: str) -> None:
    task = task_of(name)
    said = trained(task, 40, METHODS[name][2], task.hooks(FACTS))
    first, last = (sum(step["total"] for step in steps) / 5 for steps in (said[:5], said[-5:]))
    assert last < first - 0.2 * abs(first), (first, last)
    assert min(step["std"] for step in said) > 0.3


@every
def test_every_parameter_learns(name: str) -> None:
    task = task_of(name)
    trained(task, 1)
    silent = {
        key for key, one in task.named_parameters() if one.requires_grad and (one.grad is None or not one.grad.any())
    }
    # What is the same for all images is normalised away.
    assert all(key.endswith("bias") for key in silent)


@comparing
@pytest.mark.parametrize("views", [0, 1])
def test_too_few_views_are_reported(name: str, views: int) -> None:
    batch = batch_of()
    batch["views"] = batch["views"][:views]
    with pytest.raises(DataMismatch, match=r"learns from 2 views or more of an image; .*data\.train\.transforms"):
        task_of(name)(batch, Clock())


@comparing
def test_plain_images_are_reported(name: str) -> None:
    with pytest.raises(DataMismatch, match=r"data\.train\.transforms gives none; add views"):
        task_of(name)({"image": batch_of()["views"][0], "id": batch_of()["id"]}, Clock())


@comparing
def test_a_single_image_is_reported(name: str) -> None:
    with pytest.raises(DataMismatch, match=r"2 images or more per process, not 1; raise data\.batch_size"):
        task_of(name)(batch_of(images=1), Clock())


@every
def test_views_in_the_place_of_measured_images_are_reported(name: str) -> None:
    with pytest.raises(DataMismatch, match="is evaluated on whole images, not on views"):
        task_of(name).predict(batch_of())


@every
def test_many_views_of_any_size(name: str) -> None:
    task, batch = task_of(name), batch_of(views=3)
    batch["views"] = (*batch["views"], batch["views"][0][:, :, 2:8, 2:8])
    said = task(batch, Clock())
    assert all(value.isfinite() and value.shape == () for value in said.values())
    assert any(value.requires_grad for value in said.values())


@every
def test_collapsed_embeddings_show(name: str) -> None:
    task, batch = task_of(name), batch_of()
    batch["views"] = tuple(view[:1].expand(16, -1, -1, -1) for view in batch["views"])
    if name == "rotation":
        batch["views"] = tuple(torch.full_like(view, 0.5) for view in batch["views"])
    assert task(batch, Clock())["std"] < 0.02 < task(batch_of(), Clock())["std"]


@every
def test_what_is_measured_is_the_backbone(name: str) -> None:
    task = task_of(name).eval()
    image = batch_of()["views"][0]
    embedding: Tensor = task.predict({"image": image})["embedding"]
    torch.testing.assert_close(embedding, task.backbone(task.normalize(image)))
    assert task.trunk is task.backbone
    assert [type(one) for one in task.evaluators(FACTS)] == [Collapse]
    labelled = DatasetInfo(samples=4, channels=1, classes=("a", "b"))
    assert [type(one) for one in task_of(name, labelled).evaluators(labelled)] == [Knn, Collapse]
