"""Re-ranking against the results of the original implementations, and against their steps on dense matrices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from opabinia.evaluation.retrieval import rerank
from opabinia.evaluation.retrieval.rerank import jaccard_graph, k_reciprocal

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden" / "fastreid" / "rerank_zhong.json").read_text()
)
Variant = Literal["zhong", "fastreid"]
variants = pytest.mark.parametrize("variant", ["zhong", "fastreid"])
SETTINGS = [(20, 6, 0.3), (4, 1, 0.3), (1, 2, 0.0), (2, 3, 1.0), (5, 2, 0.5), (3, 9, 0.3), (90, 90, 0.3)]
settings = pytest.mark.parametrize(("k1", "k2", "lambda_value"), SETTINGS)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clustered_features(count: int = 60, width: int = 8, seed: int = 0) -> Tensor:
    """Return features in clusters of about ten."""
    rng = generator(seed)
    centres = torch.randn(count // 10, width, generator=rng)
    members = torch.randint(len(centres), (count,), generator=rng)
    return centres[members] + 0.6 * torch.randn(count, width, generator=rng)


def grid_features(count: int = 60, seed: int = 0) -> Tensor:
    """Return features whose squared distances are small integers, with many ties and many identical features."""
    return torch.randint(4, (count, 2), generator=generator(seed)).float()


def squared_distances(features: Tensor) -> NDArray[np.float64]:
    wide = features.double()
    return (wide[:, None] - wide).square().sum(2).numpy()


def dense_reference(
    squared: NDArray[np.float64],
    queries: int,
    k1: int,
    k2: int,
    lambda_value: float,
    variant: Variant,
    unit: float = 1.0,
) -> Tensor:
    """Follow the originals' steps. Row i of ``squared`` holds distances to i; FastReID mixes in ``unit`` times them."""
    scaled = squared / squared.max(1, keepdims=True) if variant == "zhong" else squared
    mixed = scaled if variant == "zhong" else unit * squared
    jaccard = dense_jaccard(squared, scaled, k1, k2, variant)
    final = (1 - lambda_value) * jaccard[:queries] + lambda_value * mixed[:queries]
    return torch.from_numpy(final[:, queries:]).float()


def dense_jaccard(
    squared: NDArray[np.float64], scaled: NDArray[np.float64], k1: int, k2: int, variant: Variant
) -> NDArray[np.float64]:
    """Return the Jaccard distances of all images (N x N)."""
    count = len(squared)
    order = squared.argsort(1, kind="stable")
    if variant == "fastreid":
        order = order[:, :k1]

    def mutual(k: int) -> list[NDArray[np.int64]]:
        return [near[(order[near, : k + 1] == i).any(1)] for i, near in enumerate(order[:, : k + 1])]

    sets, smaller = mutual(k1), mutual(int(np.around(k1 / 2)))
    weights = np.zeros((count, count))
    for i, members in enumerate(sets):
        added = [smaller[j] for j in members if np.isin(smaller[j], members).sum() > 2 / 3 * len(smaller[j])]
        members = np.unique(np.concatenate([members, *added]))
        values = np.exp(scaled[i, members].min(initial=np.inf) - scaled[i, members])
        weights[i, members] = values / values.sum()
    if k2 > 1:
        weights = np.stack([weights[order[i, :k2]].mean(0) for i in range(count)])
    shared = np.minimum(weights[:, None], weights).sum(2)
    distances: NDArray[np.float64] = 1 - shared / (2 - shared)
    return distances


# --- the originals' results -------------------------------------------------------------------------------------------

GOLDEN_DISTANCES = torch.tensor(GOLDEN["inputs"]["distances_6x6"])
QUERIES: int = GOLDEN["inputs"]["num_query"]


def features_at(distances: Tensor) -> Tensor:
    """Return vectors of length 1 with these Euclidean distances, computed from their cosines."""
    lengths, directions = torch.linalg.eigh(1 - distances.double() ** 2 / 2)
    return (directions * lengths.clamp(min=0).sqrt()).float()


FIRST_ROWS = {"zhong": [0.00714, 0.18381, 0.96687, 0.82512], "fastreid": [0.00714, 0.33826, 0.96687, 0.86584]}


@variants
def test_features_at_the_golden_distances(variant: Variant) -> None:
    features = features_at(GOLDEN_DISTANCES)
    reranked = k_reciprocal(5 * features[:QUERIES], 3 * features[QUERIES:], k1=3, k2=2, variant=variant)
    torch.testing.assert_close(reranked.distances(0, 1)[0], torch.tensor(FIRST_ROWS[variant]), rtol=0, atol=1e-5)


# --- against dense matrices -------------------------------------------------------------------------------------------


@variants
@settings
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_distances_equal_those_of_dense_matrices(
    variant: Variant, k1: int, k2: int, lambda_value: float, seed: int, metric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In small tiles; with the Euclidean metric with ties and copies."""
    monkeypatch.setattr(rerank, "_TILE", 16)
    features = clustered_features(seed=seed) if metric == "cosine" else grid_features(seed=seed)
    options: dict[str, Any] = {"k1": k1, "k2": k2, "lambda_value": lambda_value, "variant": variant, "metric": metric}
    distances = k_reciprocal(features[:13], features[13:], **options).distances(0, 13)
    squared = squared_distances(normalize(features.double()) if metric == "cosine" else features)
    unit = 0.5 if metric == "cosine" else 1.0
    expected = dense_reference(squared, 13, k1, k2, lambda_value, variant, unit)
    torch.testing.assert_close(distances, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("k1", "k2"), [(20, 6), (4, 1), (8, 3)])
def test_a_graph_has_the_distances_up_to_its_radius(k1: int, k2: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 16 rows, of which the last is smaller."""
    monkeypatch.setattr(rerank, "_GRAPH_ROWS", 16)
    features = clustered_features()
    before = features.clone()
    graph = jaccard_graph(features, 0.7, k1=k1, k2=k2)
    assert graph.has_sorted_indices and torch.equal(features, before)
    stored = np.zeros(graph.shape, dtype=bool)
    stored[np.repeat(np.arange(60), np.diff(graph.indptr)), graph.indices] = True
    squared = squared_distances(normalize(features.double()))
    expected = dense_jaccard(squared, squared, k1, k2, "fastreid")
    np.fill_diagonal(expected, 0)
    assert (stored == (expected <= 0.7)).all() and 60 < stored.sum() < 3600
    np.testing.assert_allclose(graph.toarray()[stored], expected[stored], atol=1e-5)


@variants
def test_features_far_apart_do_not_vanish(variant: Variant) -> None:
    """Without normalized weights exp(-d²) is 0 in float32 for all but the image itself."""
    features = 1000 * clustered_features()
    reranked = k_reciprocal(features[:13], features[13:], lambda_value=0, variant=variant, metric="euclidean")
    expected = dense_reference(squared_distances(features), 13, 20, 6, 0, variant)
    torch.testing.assert_close(reranked.distances(0, 13), expected, rtol=0, atol=1e-5)


@variants
def test_more_copies_than_neighbors(variant: Variant) -> None:
    """The later copies are not among their own nearest: their neighbor sets are empty and share nothing."""
    features = torch.ones(9, 3)
    reranked_distances = k_reciprocal(
        features[:2], features[2:], k1=3, k2=1, variant=variant, metric="euclidean"
    ).distances(0, 2)
    nearest = 2 if variant == "zhong" else 1  # of the gallery among the first 4, or 3, of all
    torch.testing.assert_close(
        reranked_distances, torch.tensor([[0.0] * nearest + [0.7] * (7 - nearest)] * 2), rtol=0, atol=1e-6
    )


@variants
@pytest.mark.parametrize("tile", [1, 7, 30, 59, 60])
def test_tiles_of_any_size(variant: Variant, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    features = grid_features()
    options: dict[str, Any] = {"k1": 5, "variant": variant, "metric": "euclidean"}
    untiled = k_reciprocal(features[:13], features[13:], **options).distances(0, 13)
    monkeypatch.setattr(rerank, "_TILE", tile)
    assert torch.equal(untiled, k_reciprocal(features[:13], features[13:], **options).distances(0, 13))


def test_distances_of_a_range_of_queries_are_rows_of_all_distances() -> None:
    features = clustered_features()
    reranked = k_reciprocal(features[:13], features[13:])
    assert (reranked.queries, reranked.gallery) == (13, 47)
    all_distances = reranked.distances(0, 13)
    assert (all_distances.shape, all_distances.dtype) == ((13, 47), torch.float32)
    torch.testing.assert_close(reranked.distances(5, 9), all_distances[5:9])
    torch.testing.assert_close(reranked.distances(9, 99), all_distances[9:])


@variants
@pytest.mark.parametrize("k", [1, 10, 47, 99])
def test_nearest(variant: Variant, k: int) -> None:
    features = grid_features()
    reranked = k_reciprocal(features[:13], features[13:], k1=4, lambda_value=0, variant=variant, metric="euclidean")
    distances, columns = reranked.distances(0, 13).sort(dim=1, stable=True)
    nearest = reranked.nearest(k)
    assert torch.equal(nearest[0], distances[:, :k])
    assert torch.equal(nearest[1], columns[:, :k])
    with pytest.raises(ValueError, match=r"^k is 0; it is at least 1$"):
        reranked.nearest(0)


# --- inputs -----------------------------------------------------------------------------------------------------------


@variants
def test_types_gradients_and_arrays_do_not_change_the_result(variant: Variant) -> None:
    features = clustered_features().half().requires_grad_()
    before = features.detach().clone()
    distances = k_reciprocal(features[:13], features[13:], variant=variant).distances(0, 13)
    arrays = before[:13].float().numpy(), before[13:].double().numpy()
    assert not distances.requires_grad and torch.equal(features, before)
    assert torch.equal(distances, k_reciprocal(*arrays, variant=variant).distances(0, 13))


def test_a_zero_vector_has_a_cosine_of_0_with_all() -> None:
    query = torch.zeros(1, 8)
    reranked_distances = k_reciprocal(query, clustered_features(), lambda_value=1, variant="fastreid").distances(0, 1)
    assert reranked_distances.tolist() == [[1.0] * 60]


FEATURES = clustered_features()
NAN, INF = float("nan"), float("inf")


def features_with(row: int, value: float) -> Tensor:
    features = FEATURES.clone()
    features[row, 3] = value
    return features


@pytest.mark.parametrize(
    ("query", "gallery", "message"),
    [
        (FEATURES[:0], FEATURES, "there are 0 query and 60 gallery features"),
        (FEATURES, FEATURES[:0], "there are 60 query and 0 gallery features"),
        (FEATURES[0], FEATURES, r"query features must be N x D, not of shape \(8,\)"),
        (FEATURES, FEATURES[:, :7], "query features have 8 numbers, gallery features 7"),
        (features_with(4, NAN), FEATURES, r"query_features\[4\] is not finite, or too large to be squared \(1 of 120"),
        (FEATURES, features_with(7, INF), r"gallery_features\[7\] is not finite"),
        (FEATURES, features_with(7, 1e19), r"gallery_features\[7\] is not finite, or too large"),
    ],
    ids=["no query", "no gallery", "a vector", "widths", "nan", "inf", "too large"],
)
def test_invalid_features_are_reported(query: Tensor, gallery: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        k_reciprocal(query, gallery)


INVALID_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "k1": ({"k1": 0}, "k1 is 0; it is at least 1"),
    "k2": ({"k2": 0}, "k2 is 0"),
    "negative share": ({"lambda_value": -0.1}, "lambda_value is -0.1; it is from 0 to 1"),
    "large share": ({"lambda_value": 1.1}, "lambda_value is 1.1"),
    "nan share": ({"lambda_value": NAN}, "lambda_value is nan"),
    "variant": ({"variant": "zong"}, "variant is 'zong'"),
    "metric": ({"metric": "cos"}, "metric is 'cos'"),
}


@pytest.mark.parametrize(("options", "message"), INVALID_OPTIONS.values(), ids=INVALID_OPTIONS)
def test_invalid_options_are_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        k_reciprocal(FEATURES, FEATURES, **options)


@pytest.mark.gpu
@variants
def test_cuda(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    features = clustered_features(300)
    monkeypatch.setattr(rerank, "_TILE", 64)
    on_cpu = k_reciprocal(features[:50], features[50:], variant=variant)
    on_gpu = k_reciprocal(features[:50].cuda(), features[50:].cuda(), variant=variant)
    assert on_gpu.distances(0, 50).is_cuda
    torch.testing.assert_close(on_gpu.distances(0, 50).cpu(), on_cpu.distances(0, 50), rtol=0, atol=1e-5)
    assert torch.equal(on_gpu.nearest(5)[1].cpu(), on_cpu.nearest(5)[1])
