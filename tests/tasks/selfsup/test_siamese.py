"""Losses of methods without negatives, compared with those computed by hand from the projections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import Clock
from opabinia.models.losses.redundancy import barlow_twins, covariance, invariance, variance
from opabinia.tasks.selfsup.barlow_twins import BarlowTwins
from opabinia.tasks.selfsup.byol import BYOL
from opabinia.tasks.selfsup.simsiam import SimSiam
from opabinia.tasks.selfsup.vicreg import VICReg
from tests.tasks.selfsup.views import batch_of, make_task

NARROW = {"hidden": 32, "projection": 16}


def byol_loss(task: Any, views: list[Tensor]) -> dict[str, Tensor]:
    """Two squared distances between a prediction and the teacher's projection of the other view (equation 2)."""
    predictions = [F.normalize(task.predictor(task.projector(task.backbone(view)))) for view in views]
    targets = [F.normalize(task.teacher(view)) for view in views]
    distances = [(p - t).square().sum(1).mean() for p, t in zip(predictions, reversed(targets), strict=True)]
    return {"loss": distances[0] + distances[1]}


def simsiam_loss(task: Any, views: list[Tensor]) -> dict[str, Tensor]:
    """Algorithm 1: the projections have no gradient."""
    z1, z2 = (task.projector(task.backbone(view)) for view in views)
    cosines = [F.cosine_similarity(task.predictor(p), z.detach()).mean() for p, z in ((z1, z2), (z2, z1))]
    return {"loss": -(cosines[0] + cosines[1]) / 2}


def vicreg_losses(weights: tuple[float, float, float]) -> Callable[..., dict[str, Tensor]]:
    def losses(task: Any, views: list[Tensor]) -> dict[str, Tensor]:
        vectors = [task.expander(task.backbone(view)) for view in views]
        terms = zip(weights, (invariance, variance, covariance), strict=True)
        return {f"{loss.__name__}_loss": weight * loss(vectors) for weight, loss in terms}

    return losses


def barlow_twins_loss(**keys: Any) -> Callable[..., dict[str, Tensor]]:
    return lambda task, views: {"loss": barlow_twins([task.projector(task.backbone(view)) for view in views], **keys)}


OTHER_WEIGHTS = {"invariance": 1.0, "variance": 2.0, "covariance": 3.0}


@pytest.mark.parametrize(
    ("kind", "keys", "reference"),
    [
        pytest.param(BYOL, NARROW, byol_loss, id="byol"),
        pytest.param(SimSiam, {"projection": 32, "hidden": 8}, simsiam_loss, id="simsiam"),
        pytest.param(VICReg, NARROW, vicreg_losses((25, 25, 1)), id="vicreg of the paper"),
        pytest.param(VICReg, NARROW | OTHER_WEIGHTS, vicreg_losses((1, 2, 3)), id="vicreg with other weights"),
        pytest.param(BarlowTwins, NARROW, barlow_twins_loss(), id="barlow_twins"),
        *(
            pytest.param(BarlowTwins, NARROW | keys, barlow_twins_loss(**keys), id=f"barlow_twins {keys}")
            for keys in ({"normalize": "joint"}, {"off_diagonal": 0.5}, {"scale": 1.0})
        ),
    ],
)
def test_losses_and_gradients_equal_those_of_the_papers(kind: Any, keys: dict[str, Any], reference: Any) -> None:
    task, batch = make_task(kind, **keys), batch_of()
    if kind is BYOL:
        with torch.no_grad():
            for param in task.teacher.parameters():
                param += 0.1 * torch.randn_like(param)
    losses = task(batch, Clock())
    expected = reference(task, [task.normalize(view) for view in batch["views"]])
    assert losses.keys() == {*expected, "std"}
    weight = task.backbone.layers[-1].weight
    for name, loss in expected.items():
        torch.testing.assert_close(losses[name], loss)
        gradients = (torch.autograd.grad(value, weight, retain_graph=True)[0] for value in (losses[name], loss))
        torch.testing.assert_close(*gradients)


def test_all_gradients_of_byol_pass_the_predictor() -> None:
    task = make_task(BYOL, **NARROW)
    task.predictor.register_forward_hook(lambda module, inputs, output: output.detach())
    assert not task(batch_of(), Clock())["loss"].requires_grad
