from typing import Any

import pytest
import torch
from torch import nn

from opabinia.contracts import Clock
from opabinia.models.losses.redundancy import barlow_twins
from opabinia.tasks.selfsup.barlow_twins import BarlowTwins
from tests.tasks.selfsup.views import batch_of, make, widths


def test_the_networks_of_the_paper() -> None:
    with torch.device("meta"):
        task = make(BarlowTwins)
    assert widths(task.projector) == [12, 8192, 8192, 8192]
    assert isinstance(task.projector[-1], nn.Linear) and task.projector[-1].bias is None


@pytest.mark.parametrize(
    "keys",
    [{}, {"normalize": "joint"}, {"off_diagonal": 0.5}, {"scale": 1.0}],
    ids=["defaults", "joint", "off_diagonal", "scale"],
)
def test_the_loss_is_that_of_the_projections(keys: dict[str, Any]) -> None:
    task, batch = make(BarlowTwins, hidden=32, projection=16, **keys), batch_of()
    projections = [task.projector(task.backbone(task.normalize(view))) for view in batch["views"]]
    found = task(batch, Clock())["loss"]
    torch.testing.assert_close(found, barlow_twins(projections, **keys))
    assert not keys or not torch.isclose(found, barlow_twins(projections))


def test_a_batch_may_not_go_through_in_pieces() -> None:
    assert make(BarlowTwins, hidden=8, projection=8).requires_full_batch
