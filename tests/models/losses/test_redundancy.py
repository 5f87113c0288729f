import json
import math
from collections.abc import Callable
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


def test_joint_normalization_matches_vissl() -> None:
    loss, rows = vissl_loss("joint")
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(GOLDEN["outputs"]["joint"], abs=1e-7)
    torch.testing.assert_close(rows.grad, torch.tensor(GOLDEN["outputs"]["gradient of joint"]), rtol=1e-5, atol=1e-7)


def test_per_view_normalization_follows_the_paper() -> None:
    loss, _ = vissl_loss("per_view")
    assert loss.item() == pytest.approx(GOLDEN["outputs"]["each view"], abs=1e-7)
    assert barlow_twins(vissl_loss("joint")[1].chunk(2)).item() == loss.item(), "it is the default"


def reference_barlow_twins(first: Tensor, second: Tensor, off_diagonal: float, scale: float) -> float:
    """Compute the loss of normalized views with loops."""
    total = 0.0
    for i in range(first.shape[1]):
        for j in range(first.shape[1]):
            correlation = sum((first[n, i] * second[n, j]).item() for n in range(len(first))) / len(first)
            total += (1 - correlation) ** 2 if i == j else off_diagonal * correlation**2
    return scale * total


def normalized(view: Tensor) -> Tensor:
    return (view - view.mean(0)) / (view.var(0, correction=0) + 1e-5).sqrt()


def test_barlow_twins_matches_the_reference_implementation() -> None:
    first, second = random_views()
    expected = reference_barlow_twins(normalized(first), normalized(second), 0.1, 0.5)
    assert barlow_twins([first, second], 0.1, 0.5).item() == pytest.approx(expected, rel=1e-5)
    joint = normalized(torch.cat([first, second]))
    expected = reference_barlow_twins(joint[:6], joint[6:], 0.1, 0.5)
    assert barlow_twins([first, second], 0.1, 0.5, normalize="joint").item() == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_several_views_averages_over_pairs() -> None:
    first, second, third = random_views(views=3)
    pairs = [barlow_twins(pair) for pair in ([first, second], [first, third], [second, third])]
    torch.testing.assert_close(barlow_twins([first, second, third]), torch.stack(pairs).mean())
    torch.testing.assert_close(barlow_twins([third, first]), barlow_twins([first, third]))


def test_independent_features_of_equal_views_have_no_loss() -> None:
    independent = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    assert barlow_twins([independent, 5 * independent + 3]).item() == pytest.approx(0, abs=1e-9)
    identical_columns = independent[:, :1].expand(-1, 3)
    assert barlow_twins([identical_columns, identical_columns], 0.5, 1.0).item() == pytest.approx(0.5 * 6, rel=1e-4)


# --- VICReg -----------------------------------------------------------------------------------------------------------


def test_invariance_is_the_mean_squared_difference() -> None:
    first, second, third = random_views(views=3)
    torch.testing.assert_close(invariance([first, second]), (first - second).square().mean())
    pairs = [(first - second), (first - third), (second - third)]
    torch.testing.assert_close(invariance([first, second, third]), torch.stack(pairs).square().mean())
    assert invariance([first, first]).item() == 0


def test_variance_penalizes_deviations_below_the_target() -> None:
    # Unbiased standard deviations of 0.5 (0.5 below the target) and 3 (above it).
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


def reference_covariance(view: Tensor) -> float:
    matrix = torch.cov(view.T)
    columns = range(view.shape[1])
    return sum(matrix[i, j].item() ** 2 for i in columns for j in columns if i != j) / view.shape[1]


def test_covariance_is_the_sum_over_both_views() -> None:
    first, second, third = random_views(views=3)
    assert covariance([first, second]).item() == pytest.approx(
        reference_covariance(first) + reference_covariance(second), rel=1e-5
    )
    sum_of_three = sum(reference_covariance(view) for view in (first, second, third))
    assert covariance([first, second, third]).item() == pytest.approx(sum_of_three * 2 / 3, rel=1e-5)
    assert covariance([first[:, :1], second[:, :1]]).item() == pytest.approx(0, abs=1e-6)


# --- all losses -------------------------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "barlow_twins": barlow_twins,
    "invariance": invariance,
    "variance": variance,
    "covariance": covariance,
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_autocast_does_not_change_losses(loss: Callable[[list[Tensor]], Tensor]) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(random_views(rows=16))
    assert value.dtype == torch.float32
    assert value.item() == loss(random_views(rows=16)).item()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_every_view_has_a_gradient(loss: Callable[[list[Tensor]], Tensor]) -> None:
    views = random_views()
    loss(views).backward()  # type: ignore[no-untyped-call]
    assert all(view.grad is not None and view.grad.any() for view in views)
