from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.contracts import Clock
from opabinia.tasks.selfsup.simsiam import SimSiam
from tests.tasks.selfsup.views import batch_of, make, widths


def simsiam(**keys: Any) -> SimSiam:
    return make(SimSiam, **{"projection": 32, "hidden": 8, **keys})


def test_the_networks_of_the_paper() -> None:
    with torch.device("meta"):
        task = make(SimSiam)
    assert (widths(task.projector), widths(task.predictor)) == ([12, 2048, 2048, 2048], [2048, 512, 2048])
    last = task.projector[-1]
    assert isinstance(last, nn.BatchNorm1d) and not last.affine
    assert not isinstance(task.predictor[-1], nn.BatchNorm1d)
    assert widths(simsiam(layers=2).projector) == [12, 32, 32]


def by_the_paper(task: SimSiam, views: tuple[Tensor, Tensor], stop: bool) -> Tensor:
    """Algorithm 1."""
    z1, z2 = (task.projector(task.backbone(task.normalize(view))) for view in views)
    p1, p2 = task.predictor(z1), task.predictor(z2)
    if stop:
        z1, z2 = z1.detach(), z2.detach()
    return -(F.cosine_similarity(p1, z2).mean() + F.cosine_similarity(p2, z1).mean()) / 2


def gradient(task: SimSiam, loss: Tensor) -> Tensor:
    return torch.autograd.grad(loss, task.backbone.layers[-1].weight)[0]


def test_the_loss_and_where_its_gradient_stops() -> None:
    task, batch = simsiam(), batch_of()
    loss, expected = task(batch, Clock())["loss"], by_the_paper(task, batch["views"], stop=True)
    torch.testing.assert_close(loss, expected)
    found = gradient(task, loss)
    torch.testing.assert_close(found, gradient(task, expected))
    assert not torch.allclose(found, gradient(task, by_the_paper(task, batch["views"], stop=False)), rtol=0.01)
