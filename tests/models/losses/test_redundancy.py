import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from opabinia.models.losses.redundancy import Normalize, barlow_twins, covariance, invariance, variance

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "selfsup" / "barlow.json").read_text())


def some(seed: int = 0, views: int = 2, rows: int = 6, columns: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, columns, generator=generator, requires_grad=True) for _ in range(views)]


# --- Barlow Twins -----------------------------------------------------------------------------------------------------


def of_vissl(normalize: Normalize) -> tuple[Tensor, Tensor]:
    """The loss of VISSL's input, and the input."""
    inputs = GOLDEN["inputs"]
    rows = torch.tensor(inputs["embedding"], requires_grad=True)
    keys = {"off_diagonal": inputs["off_diagonal"], "scale": inputs["scale"]}
    return barlow_twins(rows.chunk(2), normalize=normalize, **keys), rows


def test_the_joint_form_of_vissl() -> None:
    loss, rows = of_vissl("joint")
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(GOLDEN["outputs"]["joint"], abs=1e-7)
    torch.testing.assert_close(rows.grad, torch.tensor(GOLDEN["outputs"]["gradient of joint"]), rtol=1e-5, atol=1e-7)


def test_each_view_on_its_own_as_in_the_paper() -> None:
    loss, _ = of_vissl("per_view")
    assert loss.item() == pytest.approx(GOLDEN["outputs"]["each view"], abs=1e-7)
    assert barlow_twins(of_vissl("joint")[1].chunk(2)).item() == loss.item(), "it is the default"


def plain_barlow(one: Tensor, other: Tensor, off_diagonal: float, scale: float) -> float:
    """Of views that are normalised already."""
    total = 0.0
    for i in range(one.shape[1]):
        for j in range(one.shape[1]):
            correlation = sum((one[n, i] * other[n, j]).item() for n in range(len(one))) / len(one)
            total += (1 - correlation) ** 2 if i == j else off_diagonal * correlation**2
    return scale * total


def plainly_normalized(view: Tensor) -> Tensor:
    return (view - view.mean(0)) / (view.var(0, correction=0) + 1e-5).sqrt()


def test_barlow_by_plain_loops() -> None:
    one, other = some()
    expected = plain_barlow(plainly_normalized(one), plainly_normalized(other), 0.1, 0.5)
    assert barlow_twins([one, other], 0.1, 0.5).item() == pytest.approx(expected, rel=1e-5)
    together = plainly_normalized(torch.cat([one, other]))
    expected = plain_barlow(together[:6], together[6:], 0.1, 0.5)
    assert barlow_twins([one, other], 0.1, 0.5, normalize="joint").item() == pytest.approx(expected, rel=1e-5)


def test_of_many_views_every_pair_counts_in_either_order() -> None:
    one, other, third = some(views=3)
    pairs = [barlow_twins(pair) for pair in ([one, other], [one, third], [other, third])]
    torch.testing.assert_close(barlow_twins([one, other, third]), torch.stack(pairs).mean())
    torch.testing.assert_close(barlow_twins([third, one]), barlow_twins([one, third]))


def test_what_is_independent_and_alike_costs_nothing() -> None:
    independent = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    assert barlow_twins([independent, 5 * independent + 3]).item() == pytest.approx(0, abs=1e-9)
    same = independent[:, :1].expand(-1, 3)
    assert barlow_twins([same, same], 0.5, 1.0).item() == pytest.approx(0.5 * 6, rel=1e-4)


# --- VICReg -----------------------------------------------------------------------------------------------------------


def test_invariance_is_the_mean_squared_difference() -> None:
    one, other, third = some(views=3)
    torch.testing.assert_close(invariance([one, other]), (one - other).square().mean())
    pairs = [(one - other), (one - third), (other - third)]
    torch.testing.assert_close(invariance([one, other, third]), torch.stack(pairs).square().mean())
    assert invariance([one, one]).item() == 0


def test_variance_counts_what_lacks_to_one() -> None:
    # Deviations 0.5 (lacks 0.5) and 3 (enough), of an unbiased variance.
    view = torch.tensor([[0.0, 0], [0.5 * math.sqrt(2), 3 * math.sqrt(2)]])
    assert variance([view], eps=0).item() == pytest.approx(0.25)
    assert variance([view, 10 * view], eps=0).item() == pytest.approx(0.125)
    assert variance([view], target=4, eps=0).item() == pytest.approx((3.5 + 1) / 2)


def test_variance_of_collapsed_vectors_has_finite_gradients() -> None:
    view = torch.ones(4, 3, requires_grad=True)
    loss = variance([view])
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(1 - 0.01)
    assert view.grad is not None and view.grad.isfinite().all()


def plain_covariance(view: Tensor) -> float:
    found = torch.cov(view.T)
    columns = range(view.shape[1])
    return sum(found[i, j].item() ** 2 for i in columns for j in columns if i != j) / view.shape[1]


def test_covariance_is_the_sum_over_both_views() -> None:
    one, other, third = some(views=3)
    assert covariance([one, other]).item() == pytest.approx(plain_covariance(one) + plain_covariance(other), rel=1e-5)
    of_three = sum(plain_covariance(view) for view in (one, other, third))
    assert covariance([one, other, third]).item() == pytest.approx(of_three * 2 / 3, rel=1e-5)
    assert covariance([one[:, :1], other[:, :1]]).item() == pytest.approx(0, abs=1e-6)


# --- all of them ------------------------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "barlow_twins": barlow_twins,
    "invariance": invariance,
    "variance": variance,
    "covariance": covariance,
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_under_autocast_they_are_the_same(loss: Callable[[list[Tensor]], Tensor]) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(some(rows=16))
    assert found.dtype == torch.float32
    assert found.item() == loss(some(rows=16)).item()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_every_view_learns(loss: Callable[[list[Tensor]], Tensor]) -> None:
    views = some()
    loss(views).backward()  # type: ignore[no-untyped-call]
    assert all(view.grad is not None and view.grad.any() for view in views)
