import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.models.losses.regression import cosine_regression


def some(seed: int, views: int = 2, rows: int = 5, columns: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, columns, generator=generator).requires_grad_() for _ in range(views)]


def test_by_hand() -> None:
    predictions, targets = torch.tensor([[[1.0, 0]], [[0, 1]]]), torch.tensor([[[3.0, 4]], [[2, 0]]])
    assert cosine_regression(list(predictions), list(targets)).item() == pytest.approx(-(1 + 0.8) / 2)


def test_two_views_are_the_formulas_of_both_papers() -> None:
    (p1, p2), (z1, z2) = some(0), some(1)
    loss = cosine_regression([p1, p2], [z1, z2])
    simsiam = -(F.cosine_similarity(p1, z2) / 2 + F.cosine_similarity(p2, z1) / 2).mean()
    torch.testing.assert_close(loss, simsiam)
    squared = [(F.normalize(p) - F.normalize(z)).square().sum(1).mean() for p, z in ((p1, z2), (p2, z1))]
    torch.testing.assert_close(2 * (2 + 2 * loss), squared[0] + squared[1])


def test_of_many_views_every_ordered_pair_counts() -> None:
    predictions, targets = some(0, views=3), some(1, views=3)
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    expected = -sum(F.cosine_similarity(predictions[one], targets[other]).mean() for one, other in pairs) / 6
    torch.testing.assert_close(cosine_regression(predictions, targets), expected)


def test_targets_learn_nothing() -> None:
    predictions, targets = some(0), some(1)
    cosine_regression(predictions, targets).backward()  # type: ignore[no-untyped-call]
    assert all(one.grad is None for one in targets)
    assert all(one.grad is not None and one.grad.any() for one in predictions)


def test_lengths_do_not_count() -> None:
    predictions, targets = some(0), some(1)
    longer = cosine_regression([3 * one for one in predictions], [one / 7 for one in targets])
    torch.testing.assert_close(longer, cosine_regression(predictions, targets))
    assert cosine_regression(predictions, predictions[::-1]).item() == pytest.approx(-1)


def test_under_autocast_it_is_the_same() -> None:
    predictions, targets = some(0), some(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = cosine_regression(predictions, targets)
    assert found.item() == cosine_regression(predictions, targets).item()


def test_vectors_without_length_have_finite_gradients() -> None:
    predictions = [torch.zeros(2, 3, requires_grad=True) for _ in range(2)]
    cosine_regression(predictions, some(1, rows=2, columns=3)).backward()  # type: ignore[no-untyped-call]
    assert all(one.grad is not None and one.grad.isfinite().all() for one in predictions)
