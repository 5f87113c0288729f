"""Assignments that fill prototypes evenly, beside VISSL's numbers and plain loops; clusters on the sphere."""

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
    sinkhorn,
    spherical_kmeans,
    swapped_prediction,
)

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "selfsup" / "sinkhorn.json").read_text())
SCORES = torch.tensor(GOLDEN["inputs"]["scores"])


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- Sinkhorn ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", GOLDEN["outputs"])
def test_assignments_of_vissl(case: str, dtype: torch.dtype) -> None:
    kind, iterations = case.split(" iters=")
    power = float(kind.removeprefix("powerlaw=")) if "powerlaw" in kind else None
    found = sinkhorn(SCORES.to(dtype), 0.05, int(iterations), hard=kind == "hard", power=power)
    assert found.dtype == dtype
    expected = torch.tensor(GOLDEN["outputs"][case], dtype=dtype)
    torch.testing.assert_close(found, expected, atol=GOLDEN["tolerance"] / 10, rtol=0)


def plain(scores: Tensor, epsilon: float, iterations: int, power: float | None) -> Tensor:
    """The paper's algorithm, number by number."""
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
def test_assignments_of_a_plain_loop(samples: int, prototypes: int, power: float | None) -> None:
    scores = drawn(1, samples, prototypes)
    for iterations in (0, 1, 3):
        expected = plain(scores.clone(), 0.3, iterations, power)
        torch.testing.assert_close(sinkhorn(scores, 0.3, iterations, power=power), expected)


def test_shares_of_prototypes_even_out() -> None:
    scores = drawn(2, 64, 8) + 3 * torch.arange(8)
    rows = [sinkhorn(scores, 0.5, iterations) for iterations in (0, 3, 300)]
    for found in rows:
        torch.testing.assert_close(found.sum(1), torch.ones(64, dtype=torch.float64))
    off = [float((found.sum(0) - 8).abs().max()) for found in rows]
    assert off[0] > 30 > 10 > off[1] > off[2] and off[2] < 1e-3


def test_nothing_overflows_or_vanishes() -> None:
    """Where the exponentials do: the first prototype is far from everything, and one sample is far from all."""
    scores = torch.tensor([[-9.0, 0.9, 0.8], [-9.0, 0.8, 0.9], [-99.0, -98.0, -98.0], [-9.0, 0.7, 0.7]])
    found = sinkhorn(scores, 0.01, 50)
    assert found.isfinite().all()
    torch.testing.assert_close(found.double(), sinkhorn(scores.double(), 0.01, 50), atol=1e-2, rtol=0)


def test_half_precision_is_computed_in_single() -> None:
    found = sinkhorn(SCORES.bfloat16())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, sinkhorn(SCORES.bfloat16().float()))


def test_a_part_of_the_samples_is_assigned_as_among_all() -> None:
    scores = drawn(3, 12, 5)
    torch.testing.assert_close(assign_prototypes(scores[4:7], prototype_potentials(scores)), sinkhorn(scores)[4:7])


def test_no_gradient_flows_through_assignments() -> None:
    assert not sinkhorn(SCORES.clone().requires_grad_()).requires_grad


# --- the loss ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("views", "assigning"), [(2, 2), (3, 2), (3, 1), (5, 3)])
def test_swapped_prediction_is_a_mean_over_samples_then_views_then_assigning_views(views: int, assigning: int) -> None:
    scores = [drawn(10 + view, 4, 6).requires_grad_() for view in range(views)]
    assignments = [sinkhorn(one) for one in scores[:assigning]]
    total = torch.zeros((), dtype=torch.float64)
    for first in range(assigning):
        others = [view for view in range(views) if view != first]
        for view in others:
            for sample in range(4):
                predicted = (scores[view][sample] / 0.2).exp() / (scores[view][sample] / 0.2).exp().sum()
                total = total - (assignments[first][sample] * predicted.log()).sum() / 4 / len(others) / assigning
    found = swapped_prediction(scores, assignments, 0.2)
    torch.testing.assert_close(found, total)
    expected = torch.autograd.grad(total, scores, materialize_grads=True)
    for one, other in zip(torch.autograd.grad(found, scores, materialize_grads=True), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_predictions_that_say_nothing() -> None:
    even = [torch.zeros(2, 3)] * 2
    assert float(swapped_prediction(even, [sinkhorn(one) for one in even])) == pytest.approx(1.0986123)


@pytest.mark.parametrize(
    ("shares", "expected"), [([3.0, 3, 3, 3], 1.0), ([5.0, 0, 0, 0], 0.0), ([1.0, 1, 0, 0], 0.5), ([2.0], 0.0)]
)
def test_evenness(shares: list[float], expected: float) -> None:
    assert float(normalized_entropy(torch.tensor(shares))) == pytest.approx(expected)


# --- clusters ---------------------------------------------------------------------------------------------------------


def test_kmeans_of_three_vectors() -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    centroids, numbers = spherical_kmeans(vectors, vectors[[0, 2]], iterations=1)
    assert numbers.tolist() == [0, 0, 1]
    torch.testing.assert_close(centroids, torch.tensor([[0.9486833, 0.3162278], [0.0, 1.0]]))


def test_kmeans_of_a_plain_loop() -> None:
    vectors = F.normalize(drawn(5, 60, 3), dim=1)
    centroids = vectors[:7].clone()
    for _ in range(4):
        nearest = [int((vector * centroids).sum(1).argmax()) for vector in vectors]
        for k in range(7):
            mean = torch.stack([v for v, n in zip(vectors, nearest, strict=True) if n == k]).mean(0)
            centroids[k] = mean / mean.norm()
    found, numbers = spherical_kmeans(vectors, vectors[:7], iterations=4)
    torch.testing.assert_close(found, centroids)
    assert numbers.tolist() == [int((vector * centroids).sum(1).argmax()) for vector in vectors]


def test_kmeans_in_parts_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = F.normalize(drawn(6, 50, 4), dim=1)
    whole = spherical_kmeans(vectors, vectors[:5])
    monkeypatch.setattr("opabinia.models.losses.clustering._CHUNK_SIZE", 7)
    for one, other in zip(spherical_kmeans(vectors, vectors[:5]), whole, strict=True):
        torch.testing.assert_close(one, other)


def test_a_cluster_that_nothing_falls_to_stays() -> None:
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6]])
    first = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    centroids, numbers = spherical_kmeans(vectors, first)
    assert numbers.tolist() == [0, 0, 0]
    assert centroids[1].tolist() == [-1.0, 0.0]
    assert first.tolist() == [[1.0, 0.0], [-1.0, 0.0]], "what was given is left alone"
