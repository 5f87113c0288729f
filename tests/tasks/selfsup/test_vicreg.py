import pytest
import torch
from torch import nn

from opabinia.contracts import Clock
from opabinia.models.losses.redundancy import covariance, invariance, variance
from opabinia.tasks.selfsup.vicreg import VICReg
from tests.tasks.selfsup.views import batch_of, make, widths


def test_the_networks_of_the_paper() -> None:
    with torch.device("meta"):
        task = make(VICReg)
    assert widths(task.expander) == [12, 8192, 8192, 8192]
    assert isinstance(task.expander[-1], nn.Linear) and task.expander[-1].bias is None


@pytest.mark.parametrize("weights", [(25.0, 25.0, 1.0), (1.0, 2.0, 3.0)], ids=["of the paper", "others"])
def test_three_losses_with_their_weights(weights: tuple[float, float, float]) -> None:
    names = ("invariance", "variance", "covariance")
    keys = {} if weights[0] == 25 else dict(zip(names, weights, strict=True))
    task, batch = make(VICReg, hidden=32, projection=16, **keys), batch_of()
    vectors = [task.expander(task.backbone(task.normalize(view))) for view in batch["views"]]
    said = task(batch, Clock())
    assert said.keys() == {"invariance_loss", "variance_loss", "covariance_loss", "std"}
    for name, weight, loss in zip(names, weights, (invariance, variance, covariance), strict=True):
        torch.testing.assert_close(said[f"{name}_loss"], weight * loss(vectors))


def test_a_batch_may_not_go_through_in_pieces() -> None:
    assert make(VICReg, hidden=8, projection=8).requires_full_batch
