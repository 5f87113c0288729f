from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.contracts import Clock
from opabinia.tasks.selfsup.simsiam import SimSiam
from tests.tasks.selfsup.views import batch_of, linear_widths, make_task


def simsiam(**keys: Any) -> SimSiam:
    return make_task(SimSiam, **{"projection": 32, "hidden": 8, **keys})


def test_network_widths_are_those_of_the_paper() -> None:
    with torch.device("meta"):
        task = make_task(SimSiam)
    assert (linear_widths(task.projector), linear_widths(task.predictor)) == ([12, 2048, 2048, 2048], [2048, 512, 2048])
    last = task.projector[-1]
    assert isinstance(last, nn.BatchNorm1d) and not last.affine
    assert not isinstance(task.predictor[-1], nn.BatchNorm1d)
    assert linear_widths(simsiam(layers=2).projector) == [12, 32, 32]


def reference_loss(task: SimSiam, views: tuple[Tensor, Tensor], stop_gradient: bool) -> Tensor:
    """Compute the loss of algorithm 1, with or without the stop-gradient."""
    z1, z2 = (task.projector(task.backbone(task.normalize(view))) for view in views)
    p1, p2 = task.predictor(z1), task.predictor(z2)
    if stop_gradient:
        z1, z2 = z1.detach(), z2.detach()
    return -(F.cosine_similarity(p1, z2).mean() + F.cosine_similarity(p2, z1).mean()) / 2


def gradient(task: SimSiam, loss: Tensor) -> Tensor:
    return torch.autograd.grad(loss, task.backbone.layers[-1].weight)[0]


def test_the_loss_and_its_stop_gradient() -> None:
    task, batch = simsiam(), batch_of()
    loss, expected = task(batch, Clock())["loss"], reference_loss(task, batch["views"], stop_gradient=True)
    torch.testing.assert_close(loss, expected)
    grad = gradient(task, loss)
    torch.testing.assert_close(grad, gradient(task, expected))
    assert not torch.allclose(
        grad, gradient(task, reference_loss(task, batch["views"], stop_gradient=False)), rtol=0.01
    )
