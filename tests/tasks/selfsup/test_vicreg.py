import pytest
import torch
from torch import nn

from opabinia.contracts import Clock
from opabinia.models.losses.redundancy import covariance, invariance, variance
from opabinia.tasks.selfsup.vicreg import VICReg
from tests.tasks.selfsup.views import batch_of, linear_widths, make_task


def test_network_widths_are_those_of_the_paper() -> None:
    with torch.device("meta"):
        task = make_task(VICReg)
    assert linear_widths(task.expander) == [12, 8192, 8192, 8192]
    assert isinstance(task.expander[-1], nn.Linear) and task.expander[-1].bias is None


@pytest.mark.parametrize("weights", [(25.0, 25.0, 1.0), (1.0, 2.0, 3.0)], ids=["of the paper", "others"])
def test_three_losses_with_their_weights(weights: tuple[float, float, float]) -> None:
    names = ("invariance", "variance", "covariance")
    keys = {} if weights[0] == 25 else dict(zip(names, weights, strict=True))
    task, batch = make_task(VICReg, hidden=32, projection=16, **keys), batch_of()
    vectors = [task.expander(task.backbone(task.normalize(view))) for view in batch["views"]]
    losses = task(batch, Clock())
    assert losses.keys() == {"invariance_loss", "variance_loss", "covariance_loss", "std"}
    for name, weight, loss in zip(names, weights, (invariance, variance, covariance), strict=True):
        torch.testing.assert_close(losses[f"{name}_loss"], weight * loss(vectors))


def test_the_full_batch_is_required() -> None:
    assert make_task(VICReg, hidden=8, projection=8).requires_full_batch
