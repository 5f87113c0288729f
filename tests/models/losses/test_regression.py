import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.models.losses.regression import cosine_regression


def random_views(seed: int, views: int = 2, rows: int = 5, columns: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, columns, generator=generator).requires_grad_() for _ in range(views)]


def test_two_views_match_simsiam_and_byol() -> None:
    (p1, p2), (z1, z2) = random_views(0), random_views(1)
    loss = cosine_regression([p1, p2], [z1, z2])
    simsiam = -(F.cosine_similarity(p1, z2) / 2 + F.cosine_similarity(p2, z1) / 2).mean()
    torch.testing.assert_close(loss, simsiam)
    squared = [(F.normalize(p) - F.normalize(z)).square().sum(1).mean() for p, z in ((p1, z2), (p2, z1))]
    torch.testing.assert_close(2 * (2 + 2 * loss), squared[0] + squared[1])


def test_the_loss_of_several_views_averages_over_ordered_pairs() -> None:
    predictions, targets = random_views(0, views=3), random_views(1, views=3)
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    expected = -sum(F.cosine_similarity(predictions[i], targets[j]).mean() for i, j in pairs) / 6
    torch.testing.assert_close(cosine_regression(predictions, targets), expected)


def test_targets_have_no_gradient() -> None:
    predictions, targets = random_views(0), random_views(1)
    cosine_regression(predictions, targets).backward()  # type: ignore[no-untyped-call]
    assert all(target.grad is None for target in targets)
    assert all(view.grad is not None and view.grad.any() for view in predictions)


def test_zero_vectors_have_finite_gradients() -> None:
    predictions = [torch.zeros(2, 3, requires_grad=True) for _ in range(2)]
    cosine_regression(predictions, random_views(1, rows=2, columns=3)).backward()  # type: ignore[no-untyped-call]
    assert all(view.grad is not None and view.grad.isfinite().all() for view in predictions)
