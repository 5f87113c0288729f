import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from opabinia.models.losses.redundancy import Normalize, barlow_twins, covariance, invariance, variance

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "selfsup" / "barlow.json").read_text())


def random_views(seed: int = 0, views: int = 2, rows: int = 6, columns: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, columns, generator=generator, requires_grad=True) for _ in range(views)]


# --- Barlow Twins -----------------------------------------------------------------------------------------------------


def vissl_loss(normalize: Normalize) -> tuple[Tensor, Tensor]:
    """Return the loss of VISSL's input, and the input."""
    inputs = GOLDEN["inputs"]
    rows = torch.tensor(inputs["embedding"], requires_grad=True)
    keys = {"off_diagonal": inputs["off_diagonal"], "scale": inputs["scale"]}
    return barlow_twins(rows.chunk(2), normalize=normalize, **keys), rows


def test_per_view_normalization_follows_the_paper() -> None:
    loss, _ = vissl_loss("per_view")
    assert loss.item() == pytest.approx(GOLDEN["outputs"]["each view"], abs=1e-7)
    assert barlow_twins(vissl_loss("joint")[1].chunk(2)).item() == loss.item(), "it is the default"


def test_the_loss_of_several_views_averages_over_pairs() -> None:
    first, second, third = random_views(views=3)
    pairs = [barlow_twins(pair) for pair in ([first, second], [first, third], [second, third])]
    torch.testing.assert_close(barlow_twins([first, second, third]), torch.stack(pairs).mean())
    torch.testing.assert_close(barlow_twins([third, first]), barlow_twins([first, third]))


# --- VICReg -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
def test_the_terms_of_vicreg(count: int) -> None:
    views = random_views(views=count)
    pairs = torch.stack([first - second for first, second in combinations(views, 2)])
    torch.testing.assert_close(invariance(views), pairs.square().mean())
    matrices = torch.stack([torch.cov(view.T) for view in views])
    off_diagonal = matrices.square().sum((1, 2)) - matrices.diagonal(dim1=1, dim2=2).square().sum(1)
    torch.testing.assert_close(covariance(views), 2 * off_diagonal.mean() / 4)
    below = (1 - (torch.stack([view.var(0) for view in views]) + 1e-4).sqrt()).relu()
    assert below.any()
    torch.testing.assert_close(variance(views), below.mean())
    collapsed = torch.ones(4, 3, requires_grad=True)
    variance([collapsed]).backward()  # type: ignore[no-untyped-call]
    assert collapsed.grad is not None and collapsed.grad.isfinite().all()


# --- all losses -------------------------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "barlow_twins": barlow_twins,
    "invariance": invariance,
    "variance": variance,
    "covariance": covariance,
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_autocast_does_not_change_losses(loss: Callable[[list[Tensor]], Tensor]) -> None:
    views = random_views(rows=16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(views)
    value.backward()  # type: ignore[no-untyped-call]
    assert all(view.grad is not None and view.grad.any() for view in views)
    assert value.dtype == torch.float32
    assert value.item() == loss(random_views(rows=16)).item()
