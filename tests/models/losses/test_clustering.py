"""Sinkhorn assignments: VISSL's golden values and reference implementations with loops; spherical k-means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.models.losses.clustering import (
    assign_prototypes,
    normalized_entropy,
    prototype_potentials,
    spherical_kmeans,
    swapped_prediction,
)

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "selfsup" / "sinkhorn.json").read_text())
SCORES = torch.tensor(GOLDEN["inputs"]["scores"])


def sinkhorn(
    scores: Tensor, epsilon: float = 0.05, iterations: int = 3, *, hard: bool = False, power: float | None = None
) -> Tensor:
    return assign_prototypes(scores, prototype_potentials(scores, epsilon, iterations, power), epsilon, hard=hard)


def random_tensor(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- Sinkhorn ---------------------------------------------------------------------------------------------------------


def sinkhorn_of(case: str, dtype: torch.dtype) -> Tensor:
    """Return the assignments with VISSL's options."""
    kind, iterations = case.split(" iters=")
    power = float(kind.removeprefix("powerlaw=")) if "powerlaw" in kind else None
    return sinkhorn(SCORES.to(dtype), 0.05, int(iterations), hard=kind == "hard", power=power)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", GOLDEN["outputs"])
def test_assignments_match_vissl(case: str, dtype: torch.dtype) -> None:
    assignments = sinkhorn_of(case, dtype)
    assert assignments.dtype == dtype and not sinkhorn(SCORES.clone().requires_grad_()).requires_grad
    expected = torch.tensor(GOLDEN["outputs"][case], dtype=dtype)
    torch.testing.assert_close(assignments, expected, atol=GOLDEN["tolerance"] / 10, rtol=0)


def reference_sinkhorn(scores: Tensor, epsilon: float, iterations: int, power: float | None) -> Tensor:
    """Compute the paper's algorithm with loops."""
    q = (scores / epsilon - (scores / epsilon).max()).exp()
    samples, prototypes = q.shape
    shares = torch.tensor([(k + 1.0) ** -(power or 0.0) for k in range(prototypes)], dtype=q.dtype)
    shares /= shares.sum()
    for _ in range(iterations):
        for k in range(prototypes):
            q[:, k] *= shares[k] / q[:, k].sum()
        for n in range(samples):
            q[n] *= 1 / samples / q[n].sum()
    return torch.stack([row / row.sum() for row in q])


@pytest.mark.parametrize("power", [None, 0.7])
@pytest.mark.parametrize(("samples", "prototypes"), [(9, 4), (4, 9), (2, 1)])
def test_assignments_match_the_reference_implementation(samples: int, prototypes: int, power: float | None) -> None:
    scores = random_tensor(1, samples, prototypes)
    for iterations in (0, 1, 3):
        expected = reference_sinkhorn(scores.clone(), 0.3, iterations, power)
        torch.testing.assert_close(sinkhorn(scores, 0.3, iterations, power=power), expected)


def test_extreme_scores_neither_overflow_nor_underflow() -> None:
    """Plain exponentials would: the first prototype is far from all samples, and one sample from all prototypes."""
    scores = torch.tensor([[-9.0, 0.9, 0.8], [-9.0, 0.8, 0.9], [-99.0, -98.0, -98.0], [-9.0, 0.7, 0.7]])
    assignments = sinkhorn(scores, 0.01, 50)
    assert assignments.isfinite().all()
    torch.testing.assert_close(assignments.double(), sinkhorn(scores.double(), 0.01, 50), atol=1e-2, rtol=0)
    torch.testing.assert_close(sinkhorn(SCORES.bfloat16()), sinkhorn(SCORES.bfloat16().float()))


# --- the loss ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("views", "assigning"), [(2, 2), (3, 2), (3, 1), (5, 3)])
def test_swapped_prediction_averages_over_samples_views_and_assigning_views(views: int, assigning: int) -> None:
    scores = [random_tensor(10 + view, 4, 6).requires_grad_() for view in range(views)]
    assignments = [sinkhorn(view) for view in scores[:assigning]]
    total = torch.zeros((), dtype=torch.float64)
    for first in range(assigning):
        others = [view for view in range(views) if view != first]
        for view in others:
            for sample in range(4):
                predicted = (scores[view][sample] / 0.2).exp() / (scores[view][sample] / 0.2).exp().sum()
                total = total - (assignments[first][sample] * predicted.log()).sum() / 4 / len(others) / assigning
    loss = swapped_prediction(scores, assignments, 0.2)
    torch.testing.assert_close(loss, total)
    expected = torch.autograd.grad(total, scores, materialize_grads=True)
    for grad, expected_grad in zip(torch.autograd.grad(loss, scores, materialize_grads=True), expected, strict=True):
        torch.testing.assert_close(grad, expected_grad)


@pytest.mark.parametrize(
    ("shares", "expected"), [([3.0, 3, 3, 3], 1.0), ([5.0, 0, 0, 0], 0.0), ([1.0, 1, 0, 0], 0.5), ([2.0], 0.0)]
)
def test_normalized_entropy(shares: list[float], expected: float) -> None:
    assert float(normalized_entropy(torch.tensor(shares))) == pytest.approx(expected)


# --- spherical k-means ------------------------------------------------------------------------------------------------


def test_kmeans_matches_the_reference_implementation() -> None:
    vectors = F.normalize(random_tensor(5, 60, 3), dim=1)
    centroids = vectors[:7].clone()
    for _ in range(4):
        nearest = [int((vector * centroids).sum(1).argmax()) for vector in vectors]
        for k in range(7):
            mean = torch.stack([v for v, n in zip(vectors, nearest, strict=True) if n == k]).mean(0)
            centroids[k] = mean / mean.norm()
    result, numbers = spherical_kmeans(vectors, vectors[:7], iterations=4)
    torch.testing.assert_close(result, centroids)
    assert numbers.tolist() == [int((vector * centroids).sum(1).argmax()) for vector in vectors]


def test_kmeans_in_chunks_gives_the_same_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = F.normalize(random_tensor(6, 50, 4), dim=1)
    expected = spherical_kmeans(vectors, vectors[:5])
    monkeypatch.setattr("opabinia.models.losses.clustering._CHUNK_SIZE", 7)
    for actual, value in zip(spherical_kmeans(vectors, vectors[:5]), expected, strict=True):
        torch.testing.assert_close(actual, value)


def test_an_empty_cluster_keeps_its_centroid() -> None:
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6]])
    initial = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    centroids, numbers = spherical_kmeans(vectors, initial)
    assert numbers.tolist() == [0, 0, 0]
    assert centroids[1].tolist() == [-1.0, 0.0]
    assert initial.tolist() == [[1.0, 0.0], [-1.0, 0.0]], "the argument is not modified"
