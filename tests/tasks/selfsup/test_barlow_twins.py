from typing import Any

import pytest
import torch
from torch import nn

from opabinia.contracts import Clock
from opabinia.models.losses.redundancy import barlow_twins
from opabinia.tasks.selfsup.barlow_twins import BarlowTwins
from tests.tasks.selfsup.views import batch_of, linear_widths, make_task


def test_network_widths_are_those_of_the_paper() -> None:
    with torch.device("meta"):
        task = make_task(BarlowTwins)
    assert linear_widths(task.projector) == [12, 8192, 8192, 8192]
    assert isinstance(task.projector[-1], nn.Linear) and task.projector[-1].bias is None


@pytest.mark.parametrize(
    "keys",
    [{}, {"normalize": "joint"}, {"off_diagonal": 0.5}, {"scale": 1.0}],
    ids=["defaults", "joint", "off_diagonal", "scale"],
)
def test_the_loss_is_barlow_twins_of_the_projections(keys: dict[str, Any]) -> None:
    task, batch = make_task(BarlowTwins, hidden=32, projection=16, **keys), batch_of()
    projections = [task.projector(task.backbone(task.normalize(view))) for view in batch["views"]]
    loss = task(batch, Clock())["loss"]
    torch.testing.assert_close(loss, barlow_twins(projections, **keys))
    assert not keys or not torch.isclose(loss, barlow_twins(projections))


def test_the_full_batch_is_required() -> None:
    assert make_task(BarlowTwins, hidden=8, projection=8).requires_full_batch
