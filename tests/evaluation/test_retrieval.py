"""Ranking against a reference implementation and FastReID's scores; ties, blocks, processes and invalid inputs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from opabinia.contracts import DataMismatch, DatasetInfo
from opabinia.evaluation.retrieval import distances as distances_module
from opabinia.evaluation.retrieval.distances import (
    FeatureDistances,
    MatrixDistances,
    nearest,
    smallest,
    tile_size,
)
from opabinia.evaluation.retrieval.ranking import ListedMatches, Matches, rank, ranks_on_cpu, ranks_on_gpu
from opabinia.evaluation.retrieval.retrieval import (
    RANKS,
    evaluate,
    first_of_each,
    random_galleries,
    recall,
    single_shot,
)
from opabinia.evaluation.retrieval.retrieval_evaluators import Expansion, Recall, RepeatedGallery, Retrieval

GOLDEN = Path(__file__).parent.parent / "golden" / "fastreid"
DATASET_INFO = DatasetInfo(samples=0, queries=True)

Array = NDArray[Any]


def evaluate_distances(matrix: Any, *labels: Any, ranks: Any = RANKS) -> dict[str, float]:
    return rank(MatrixDistances(matrix), Matches(*labels)).scores(ranks)


def distances(query: Any, gallery: Any, metric: Any = "cosine") -> torch.Tensor:
    return FeatureDistances(query, gallery, metric).distances(0, len(query))


def golden(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    case = json.loads((GOLDEN / f"{name}.json").read_text())
    return case["inputs"], case["outputs"]


def close(actual: Any, expected: Any) -> bool:
    return np.allclose(np.asarray(actual), np.asarray(expected), rtol=1e-5, atol=1e-5)


# --- a reference implementation: sorts every query's gallery ----------------------------------------------------------


def match_ranks(row: Array, same: Array, junk: Array) -> list[int]:
    """Return the ranks of the matches, from 1. Python's sort is stable: ties stay in the gallery's order."""
    columns = [column for column in range(len(row)) if not junk[column]]
    order = sorted(columns, key=lambda column: row[column])
    return [position for position, column in enumerate(order, 1) if same[column]]


def reference_scores(
    matrix: Array, q: Array, g: Array, qc: Array | None, gc: Array | None, ranks: tuple[int, ...]
) -> Any:
    rows = []
    for number, row in enumerate(matrix):
        same = g == q[number]
        junk = same & (gc == qc[number]) if qc is not None and gc is not None else np.zeros(len(g), bool)
        match_positions = match_ranks(row, same & ~junk, junk)
        if match_positions:
            precision = np.mean([(n + 1) / position for n, position in enumerate(match_positions)])
            rows.append(
                [precision, len(match_positions) / match_positions[-1], *(match_positions[0] <= k for k in ranks)]
            )
    if not rows:
        return None
    means = np.mean(rows, axis=0)
    names = ("mAP", "mINP", *(f"rank{k}" for k in ranks))
    return {
        **dict(zip(names, means, strict=True)),
        "queries": len(rows),
        "queries_without_match": len(matrix) - len(rows),
    }


@pytest.mark.parametrize("seed", range(60))
def test_scores_agree_with_sorting(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Junk, ties (few distinct distances), queries without match, distractors, galleries shorter than the rank."""
    random = np.random.default_rng(seed)
    queries, gallery, identities = random.integers(1, 9), random.integers(1, 40), random.integers(1, 8)
    matrix = random.integers(0, random.choice([2, 5, 1000]), (queries, gallery)) / 8
    q, g = random.integers(0, identities, queries), random.integers(-1, identities, gallery)
    cameras = (random.integers(0, 3, queries), random.integers(0, 3, gallery)) if seed % 3 else (None, None)
    expected = reference_scores(matrix, q, g, *cameras, (1, 2, 50))
    if expected is None:
        with pytest.raises(ValueError, match="has a match"):
            evaluate_distances(matrix, q, g, *cameras)
    else:
        monkeypatch.setattr(distances_module, "tile_size", lambda gallery: seed % 8 + 1)
        scores = evaluate_distances(matrix, q, g, *cameras, ranks=(1, 2, 50))
        assert scores == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(20))
def test_scores_of_features_with_ties_agree_with_sorting(seed: int) -> None:
    """Integers have exact products, so ties do not depend on how distances are computed."""
    random = np.random.default_rng(seed)
    features = random.integers(-2, 3, (60, 3)).astype(np.float32)
    ids, cameras = random.integers(0, 9, 60), random.integers(0, 3, 60)
    query, gallery = slice(0, 20), slice(20, 60)
    exact = ((features[query, None] - features[None, gallery]) ** 2).sum(2)
    expected = reference_scores(exact, ids[query], ids[gallery], cameras[query], cameras[gallery], (1, 5, 10))
    inputs = (features[query], features[gallery], ids[query], ids[gallery], cameras[query], cameras[gallery])
    for metric in ("euclidean", "squared_euclidean"):
        assert evaluate(*inputs, metric=metric) == pytest.approx(expected)


def read_only(features: Array) -> Array:
    features = features.copy()
    features.setflags(write=False)
    return features


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "convert",
    [
        lambda features: features.astype(np.float64),
        lambda features: features.astype(np.float16),
        lambda features: features.astype(np.int8),
        lambda features: torch.from_numpy(features).bfloat16(),
        lambda features: torch.from_numpy(features.T.copy()).T,
        lambda features: torch.from_numpy(features.repeat(2, axis=1)).requires_grad_()[:, ::2],
        lambda features: features[:, ::-1].copy()[:, ::-1],
        read_only,
    ],
    ids=["double", "half", "whole", "bfloat16", "transposed", "strided", "backwards", "read only"],
)
@pytest.mark.parametrize("label_type", ["texts", "table", "torch", "list", "int32"])
def test_features_and_labels_of_any_kind(convert: Callable[[Array], Any], label_type: str) -> None:
    random = np.random.default_rng(1)
    features = random.integers(-3, 4, (50, 4)).astype(np.float32)
    ids, cameras = random.integers(-1, 9, 50), random.integers(0, 3, 50)
    label_types: dict[str, Callable[[Array], Any]] = {
        "texts": lambda column: column.astype(str),
        "table": lambda column: column.astype(str).astype(object),
        "torch": torch.from_numpy,
        "list": lambda column: column.tolist(),
        "int32": lambda column: column.astype(np.int32),
    }
    labels = [label_types[label_type](column) for column in (ids[:15], ids[15:], cameras[:15], cameras[15:])]
    expected = evaluate(features[:15], features[15:], ids[:15], ids[15:], cameras[:15], cameras[15:])
    assert evaluate(convert(features[:15]), convert(features[15:]), *labels) == expected


def test_distances_are_not_rounded() -> None:
    """float64, and integers that float32 cannot represent."""
    for matrix in (np.array([[1.0, 1.0 - 1e-9]]), np.array([[2**24 + 1, 2**24]])):
        assert evaluate_distances(matrix, [1], [2, 1])["rank1"] == 1


@pytest.mark.parametrize("seed", range(50))
def test_ranks_are_the_same_on_the_host_and_on_a_device(seed: int) -> None:
    """The code for a device, run on the CPU."""
    random = np.random.default_rng(seed)
    matrix = (random.integers(0, random.choice([1, 3, 100]), (7, 30)) / 4).astype(np.float32)
    columns = [np.sort(random.permutation(30)[: random.integers(0, 6)]) for _ in matrix]
    for row, matches in zip(matrix, columns, strict=True):
        row[np.setdiff1d(random.integers(0, 30, 4), matches)] = np.nan
    all_ranks = ranks_on_gpu(torch.from_numpy(matrix), columns)
    for row, matches, ranks in zip(matrix, columns, all_ranks, strict=True):
        same = np.isin(np.arange(30), matches)
        assert ranks.tolist() == match_ranks(row, same, np.isnan(row))
        if len(matches):
            assert ranks_on_cpu(row, matches).tolist() == ranks.tolist()


class CountOperations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_many_matches_take_as_many_operations_as_few() -> None:
    counts = set()
    for number in (1, 3, 500):
        with CountOperations() as operations:
            ranks = ranks_on_gpu(torch.rand(3, 1000), [np.arange(number)] * 3)
        assert [len(row) for row in ranks] == [number] * 3
        counts.add(operations.count)
    assert len(counts) == 1


# --- FastReID's scores ------------------------------------------------------------------------------------------------


def test_ranks_beyond_the_gallery() -> None:
    """FastReID's curve falls again where a gallery is shorter than the rank."""
    inputs, _ = golden("rank_small")
    labels = [np.array(inputs[key]) for key in ("q_pids", "g_pids", "q_camids", "g_camids")]
    assert evaluate_distances(np.array(inputs["dist"]), *labels, ranks=[50])["rank50"] == 1


def test_the_cosine_of_a_zero_vector_is_0() -> None:
    assert distances([[0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]).tolist() == [[1, 1]]


# --- ties and blocks --------------------------------------------------------------------------------------------------


def person_features(count: int, identities: int, width: int = 32, noise: float = 0.8, seed: int = 0) -> tuple[Any, ...]:
    """Return clustered features, identities and cameras."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, identities, count)
    centres = random.standard_normal((identities, width))
    features = (centres[ids] + noise * random.standard_normal((count, width))).astype(np.float32)
    return features, ids, random.integers(0, 3, count)


def query_and_gallery(count: int, queries: int, identities: int, **keys: Any) -> tuple[Any, ...]:
    features, ids, cameras = person_features(count, identities, **keys)
    return tuple(half for array in (features, ids, cameras) for half in (array[:queries], array[queries:]))


def test_a_tile_shrinks_with_the_gallery() -> None:
    assert [tile_size(n) for n in (0, 1, 15_913, 82_161, 131_072, 131_073, 10**6, 10**9)] == [1024] * 5 + [512, 128, 16]


@pytest.mark.parametrize("metric", ["cosine", "squared_euclidean"])
def test_the_same_features_are_at_the_same_distance(metric: Any) -> None:
    """At any position in the gallery: kernels compute its edges differently."""
    random = np.random.default_rng(0)
    for size in (30, 101, 333):
        gallery = random.standard_normal((size, 257)).astype(np.float32)
        gallery[[3, size // 2, size - 1]] = gallery[0]
        gallery[size - 2] = gallery[5]
        matrix = distances(random.standard_normal((3, 257)), gallery, metric=metric)
        for copies in ([0, 3, size // 2, size - 1], [5, size - 2]):
            assert len(matrix[:, copies].unique(dim=1)[0]) == 1


def test_identical_features_rank_in_gallery_order() -> None:
    query, gallery = np.ones((2, 7)), np.ones((5, 7))
    scores = evaluate(query, gallery, [0, 1], [0, 2, 1, 0, 1])
    assert scores["mAP"] == pytest.approx(((1 + 2 / 4) / 2 + (1 / 3 + 2 / 5) / 2) / 2)
    assert nearest(query, gallery, 3)[1].tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("width", [1, 2, 16, 17, 400])
def test_only_exact_copies_are_duplicate_rows(width: int) -> None:
    """Rows that differ only in the last number are not copies."""
    rows = torch.ones(7, width)
    rows[:, -1] = torch.tensor([0.0, 1, 0, 2, 1, 0, 3])
    copies, originals = distances_module._duplicate_rows(rows)
    assert (copies.tolist(), originals.tolist()) == ([2, 4, 5], [0, 1, 0])
    random = np.random.default_rng(width)
    random_rows = torch.from_numpy(random.integers(0, 2, (40, 5)).astype(np.float32)).repeat(1, width)
    copies, originals = distances_module._duplicate_rows(random_rows)
    first_index = {tuple(row): number for number, row in reversed(list(enumerate(random_rows.tolist())))}
    expected = {number: first_index[tuple(row)] for number, row in enumerate(random_rows.tolist())}
    duplicates = dict(zip(copies.tolist(), originals.tolist(), strict=True))
    assert duplicates == {number: original for number, original in expected.items() if original != number}


def test_calls_do_not_change_their_inputs() -> None:
    inputs = query_and_gallery(60, 20, 5)
    before = [array.copy() for array in inputs]
    evaluate(*inputs)
    matrix = distances(inputs[0], inputs[1]).numpy()
    matrix_before = matrix.copy()
    evaluate_distances(matrix, *inputs[2:])
    assert (matrix == matrix_before).all()
    assert all((value == value_before).all() for value, value_before in zip(inputs, before, strict=True))


def test_distances_and_features_give_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """In tiles of 16 queries."""
    monkeypatch.setattr(distances_module, "tile_size", lambda gallery: 16)
    inputs = query_and_gallery(300, 100, 20, width=65, noise=3.0)
    scores = evaluate(*inputs)
    assert evaluate_distances(distances(*inputs[:2]), *inputs[2:]) == scores
    assert 0.05 < scores["mAP"] < 0.95


# --- nearest neighbors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_smallest_of_each_row_with_ties(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(0, 4, (6, 15)).astype(np.float32)
    k = int(random.integers(1, 19))
    smallest_values, columns = smallest(torch.from_numpy(values), k)
    expected = np.argsort(values, axis=1, kind="stable")[:, :k]
    assert columns.tolist() == expected.tolist()
    assert smallest_values.tolist() == np.take_along_axis(values, expected, 1).tolist()


def test_nearest_by_hand() -> None:
    query, gallery = [[0.0, 0], [3, 4]], [[3.0, 4], [0, 0], [0, 1]]
    nearest_distances, columns = nearest(torch.tensor(query), torch.tensor(gallery), 2, "euclidean")
    assert columns.tolist() == [[1, 2], [0, 2]]
    assert nearest_distances.tolist() == pytest.approx([pytest.approx([0, 1]), pytest.approx([0, math.sqrt(18)])])
    assert nearest(torch.tensor(query), torch.tensor(gallery), 9)[1].shape == (2, 3)
    features = 10 + torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    assert (nearest(features, features, 1, "euclidean")[0] >= 0).all(), "no root of a number below 0"


# --- other protocols --------------------------------------------------------------------------------------------------


def test_single_shot_by_the_protocol() -> None:
    q, g, qi, gi, qc, gc = query_and_gallery(120, 30, 10, noise=1.5)
    matrix = distances(q, g).numpy()
    means = []
    for repeat in range(4):
        order = np.random.default_rng((3, repeat)).permutation(len(g))
        for number, row in enumerate(matrix):
            candidates = [column for column in order if gi[column] != qi[number] or gc[column] != qc[number]]
            first_images = [c for n, c in enumerate(candidates) if gi[c] not in gi[candidates[:n]]]  # the first of each
            (match_rank,) = match_ranks(
                row[sorted(first_images)], gi[sorted(first_images)] == qi[number], np.zeros(len(first_images), bool)
            )
            means.append([1 / match_rank, match_rank <= 1, match_rank <= 5])
    scores = single_shot(q, g, qi, gi, qc, gc, ranks=(1, 5), seed=3, repeats=4)
    assert [scores[name] for name in ("mAP", "rank1", "rank5")] == pytest.approx(np.mean(means, axis=0).tolist())
    assert scores["mINP"] == scores["mAP"] and scores["queries"] == 30
    assert single_shot(q, g, qi, gi, qc, gc, seed=3) != single_shot(q, g, qi, gi, qc, gc, seed=4)


def test_random_galleries_have_one_image_of_each_identity() -> None:
    features, ids, _ = person_features(60, 10, noise=1.5)
    gallery = first_of_each(ids, np.random.default_rng((7, 0)).permutation(60))
    assert sorted(ids[gallery]) == sorted(set(ids))
    queries = np.setdiff1d(np.arange(60), gallery)
    expected = evaluate(features[queries], features[gallery], ids[queries], ids[gallery])
    assert random_galleries(features, ids, seed=7, repeats=1) == expected
    repeated = random_galleries(features, ids, seed=7, repeats=5)
    assert repeated == random_galleries(features, ids, seed=7, repeats=5) != expected


def reference_recall(matrix: Array, ids: Array, ks: tuple[int, ...]) -> dict[str, float]:
    rows = []
    for number, row in enumerate(matrix):
        order = [c for c in sorted(range(len(row)), key=lambda c, row=row: row[c]) if c != number]  # type: ignore[misc]
        correct = np.array([ids[c] == ids[number] for c in order])
        if total := int(correct.sum()):
            precision = correct.cumsum() / np.arange(1, len(correct) + 1)
            map_at_r = (correct[:total] * precision[:total]).sum() / total
            rows.append(
                [
                    *(correct[:k].any() for k in ks),
                    correct[:total].mean(),
                    map_at_r,
                    (correct * precision).sum() / total,
                ]
            )
    names = (*(f"recall{k}" for k in ks), "r_precision", "mAP@R", "mAP")
    counts = {"queries": len(rows), "queries_without_match": len(matrix) - len(rows)}
    return dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True)) | counts


@pytest.mark.parametrize("seed", range(10))
def test_recall_against_sorting(seed: int) -> None:
    features, ids, _ = person_features(50, 25, width=6, noise=1.0, seed=seed)
    features[40] = features[3]
    matrix = distances(features, features).numpy()
    assert recall(features, ids, (1, 3, 10, 1000)) == pytest.approx(reference_recall(matrix, ids, (1, 3, 10, 1000)))


# --- invalid inputs ---------------------------------------------------------------------------------------------------

FEATURES = np.eye(3, dtype=np.float32)


def features_with(value: float) -> Array:
    rows = FEATURES.copy()
    rows[1, 2] = value
    return rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((features_with(math.nan), FEATURES, [0, 1, 2], [0, 1, 2]), "row 1 of the query features holds nan"),
        ((FEATURES, features_with(-math.inf), [0, 1, 2], [0, 1, 2]), "row 1 of the gallery features holds -inf"),
        (
            (FEATURES, features_with(1e30), [0, 1, 2], [0, 1, 2]),
            "row 1 of the gallery features is too long for float32",
        ),
        ((FEATURES, FEATURES[:, :2], [0, 1, 2], [0, 1, 2]), "query features have 3 numbers, gallery features 2"),
        ((FEATURES[0], FEATURES, [0], [0, 1, 2]), r"query features must be N x D, not of shape \(3,\)"),
        ((FEATURES, FEATURES, [0, 1], [0, 1, 2]), "there are 3 query images, but 2 query_ids"),
        ((FEATURES, FEATURES, [0, 1, 2], [0, 1]), "there are 3 gallery images, but 2 gallery_ids"),
        ((FEATURES, FEATURES, [[0, 1, 2]], [0, 1, 2]), "query_ids must be one number per image"),
        ((FEATURES, FEATURES, [0, 1, 2], [0, 1, 2], [0, 0, 0]), "both the query and the gallery"),
        ((FEATURES, FEATURES, [0, 1, 2], [0, 1, 2], [0, 0], [0, 0, 0]), "there are 2 query_cameras, but 3 query_ids"),
        (
            (FEATURES, FEATURES, [0, 1, 2], [3, 4, 5]),
            "none of the 3 queries has a match among the 3 gallery images: 0 identities",
        ),
        (
            (FEATURES, FEATURES, [0, 1, 2], [0, 1, 5], [1, 1, 1], [1, 1, 1]),
            "2 identities are in both, and images of the query's identity from its own camera were removed",
        ),
        ((FEATURES[:0], FEATURES, [], [0, 1, 2]), "none of the 0 queries"),
        ((FEATURES, FEATURES[:0], [0, 1, 2], []), "among the 0 gallery images"),
    ],
)
def test_invalid_inputs_are_reported(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(*arguments)


THREE = (FEATURES, FEATURES, [0, 1, 2], [0, 1, 2])


@pytest.mark.parametrize(
    ("call", "arguments", "options", "message"),
    [
        (evaluate, THREE, {"metric": "l1"}, "no metric 'l1'; there are: cosine"),
        (evaluate, THREE, {"ranks": (0, 1)}, "ranks count from 1, not 0"),
        (evaluate_distances, (features_with(math.nan), [0, 1, 2], [0, 1, 2]), {}, "distances of query 1 are not"),
        (evaluate_distances, (FEATURES[0], [0], [0, 1, 2]), {}, "distances must be Q x G"),
        (evaluate_distances, ([[1.0, 2]], ["1"], [1, 2]), {}, "query_ids are strings, gallery_ids numbers"),
        (evaluate_distances, ([[1.0, 2]], [1], [1, 2], [0], ["0", "1"]), {}, "query_cameras are numbers, gallery"),
        (evaluate_distances, ([[1.0, 2]], ["1"], np.array(["1", None])), {}, "must be integers or strings, not None"),
        (single_shot, THREE, {"repeats": 0}, "repeats must be at least 1"),
        (single_shot, (FEATURES, FEATURES, [0, 1, 2], [3, 4, 5]), {}, "none of the 3 queries"),
        (random_galleries, (FEATURES, [0, 1, 2]), {"repeats": 0}, "repeats must be at least 1"),
        (random_galleries, (FEATURES, [0, 1]), {}, "there are 3 images, but 2 ids"),
        (random_galleries, (FEATURES, [0, 1, 2]), {}, "none of the 0 queries"),
        (recall, (FEATURES, [0, 1, 2]), {}, "none of the 3 images has another one of its identity"),
        (recall, (FEATURES, [0, 0]), {}, "there are 3 query images, but 2 query_ids"),
    ],
)  # fmt: skip
def test_invalid_options_are_reported(call: Any, arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(*arguments, **options)


# --- query expansion and re-ranking -----------------------------------------------------------------------------------


def test_re_ranking_and_query_expansion_change_the_ranking() -> None:
    from opabinia.evaluation.retrieval.query_expansion import expand_features
    from opabinia.evaluation.retrieval.rerank import k_reciprocal

    inputs = query_and_gallery(200, 60, 20, noise=1.6)
    q, g = (torch.from_numpy(features) for features in inputs[:2])
    reranked = k_reciprocal(q, g, k1=9, k2=3, variant="zhong")
    expected = evaluate_distances(reranked.distances(0, 60), *inputs[2:])
    assert evaluate(*inputs, rerank={"k1": 9, "k2": 3, "variant": "zhong"}) == expected
    expanded = evaluate(*expand_features(q, g, k=4), *inputs[2:])
    assert evaluate(*inputs, query_expansion={"k": 4}) == expanded
    plain_scores = evaluate(*inputs)
    assert len({scores["mAP"] for scores in (plain_scores, expected, expanded)}) == 3
    assert evaluate(*inputs, rerank="fastreid")["mAP"] != evaluate(*inputs, rerank="zhong")["mAP"]


# --- evaluators -------------------------------------------------------------------------------------------------------


def evaluate_on_ranks(
    make: Callable[[], Any], world: int, data: dict[str, Any], size: int = 16
) -> tuple[dict[str, float], Any]:
    """Return scores and tables of ``world`` processes, which take the batches in turn and agree on the scores."""
    evaluators = [make() for _ in range(world)]
    count = len(data["label"])
    for number, start in enumerate(range(0, count, size)):
        rows = range(start, min(start + size, count))
        batch: Any = {key: torch.from_numpy(value[rows]) for key, value in data.items()}
        embedding = batch.pop("embedding")
        batch["id"] = [f"image {n}" for n in rows]
        evaluators[number % world].update({"embedding": embedding}, batch)
    states = [evaluator.state() for evaluator in evaluators]
    scores = [evaluator.compute(states) for evaluator in evaluators]
    assert all(rank_scores == scores[0] for rank_scores in scores)
    return scores[0], evaluators[0].details(states)


def person_samples() -> dict[str, Any]:
    features, ids, cameras = person_features(150, 15, noise=1.4)
    queries = np.random.default_rng(1).random(150) < 0.3
    return {"embedding": features, "label": ids, "camera": cameras, "query": queries}


def test_the_evaluator_agrees_with_evaluate() -> None:
    data = person_samples()
    scores, table = evaluate_on_ranks(
        lambda: Retrieval(DATASET_INFO, ranks=(1, 3), query_expansion=Expansion(k=3)), 2, data
    )
    q = data["query"]
    parts = [data[key][side] for key in ("embedding", "label", "camera") for side in (q, ~q)]
    plain_scores = evaluate(*parts, ranks=(1, 3))
    expanded = evaluate(*parts, ranks=(1, 3), query_expansion={"k": 3})
    names = ("mAP", "rank1", "rank3", "mINP")
    assert scores == {name: plain_scores[name] for name in names} | {f"qe_{name}": expanded[name] for name in names}
    summary = table["retrieval"]
    assert (summary["queries"], summary["queries_without_match"]) == (
        plain_scores["queries"],
        plain_scores["queries_without_match"],
    )
    assert summary["gallery"] == (~q).sum()
    assert summary["worst"] == sorted(summary["worst"], key=lambda row: row["AP"])
    other_rows = [row["AP"] for row in summary["others"]]
    assert other_rows == sorted(other_rows) and len(other_rows) == min(10, len(summary["worst"]))
    assert summary["others"][0] == summary["worst"][0] and other_rows[-1] > np.median(other_rows)


def test_repeated_gallery_agrees_with_the_functions() -> None:
    data = person_samples()
    q = data["query"]
    inputs = [data[key][side] for key in ("embedding", "label", "camera") for side in (q, ~q)]
    keys: dict[str, Any] = {"ranks": (1, 4), "repeats": 3, "seed": 5}
    expected = {
        "single_shot": single_shot(*inputs, **keys),
        "random_gallery": random_galleries(data["embedding"], data["label"], **keys),
    }
    for protocol, scores in expected.items():
        evaluator_scores, _ = evaluate_on_ranks(
            lambda protocol=protocol: RepeatedGallery(DATASET_INFO, protocol=protocol, **keys), 2, data
        )
        assert evaluator_scores == {f"{protocol}_{name}": scores[name] for name in ("mAP", "rank1", "rank4")}


def test_precision_at_k() -> None:
    """As for the revisited Oxford and Paris datasets: a query with matches at ranks 1 and 3, another at rank 2."""
    matrix = np.array([[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]])
    ranking = rank(MatrixDistances(matrix), ListedMatches([[0, 2], [1]]))
    assert ranking.precision_at(1) == (1 + 0) / 2
    assert ranking.precision_at(2) == (1 / 2 + 1 / 2) / 2
    assert ranking.precision_at(10) == pytest.approx((2 / 3 + 1 / 2) / 2)
    with pytest.raises(ValueError, match="ranks count from 1"):
        ranking.precision_at(0)
    scores, _ = evaluate_on_ranks(lambda: Retrieval(DATASET_INFO, precision_at=(1, 5)), 2, person_samples())
    assert (
        scores["precision@1"] == scores["rank1"]
        and Retrieval(DATASET_INFO, precision_at=(1, 5)).better.keys() == scores.keys()
    )


def test_the_table_shows_the_nearest_images() -> None:
    data = {
        "embedding": np.array([[1, 0], [1, 0], [0.9, 0.1], [0.5, 0.5], [0, 1]], np.float32),
        "label": np.array([4, 4, 5, 4, 4]),
        "camera": np.array([0, 0, 0, 1, 1]),
        "query": np.array([True, False, False, False, False]),
    }
    scores, table = evaluate_on_ranks(lambda: Retrieval(DATASET_INFO), 2, data, size=2)
    assert scores["mAP"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    (row,) = table["retrieval"]["worst"]
    assert row["nearest"] == ["image 2", "image 3", "image 4"], "image 1 is the query's own, from its camera"
    assert (row["query"], row["first_match"], row["right"]) == ("image 0", 2, [False, True, True])
    json.dumps(table)


def test_the_recall_evaluator_agrees_with_recall() -> None:
    features, ids, _ = person_features(70, 20, noise=1.2)
    data = {"embedding": features, "label": ids}
    scores, _ = evaluate_on_ranks(lambda: Recall(DATASET_INFO, ks=(1, 4)), 1, data)
    expected = recall(features, ids, (1, 4))
    assert scores == {name: expected[name] for name in ("recall1", "recall4", "r_precision", "mAP@R", "mAP")}


def test_without_cameras_nothing_is_junk() -> None:
    data = person_samples()
    del data["camera"]
    scores, _ = evaluate_on_ranks(lambda: Retrieval(DATASET_INFO), 1, data)
    q = data["query"]
    parts = [data[key][side] for key in ("embedding", "label") for side in (q, ~q)]
    assert scores["mAP"] == evaluate(*parts)["mAP"]


@pytest.mark.parametrize("is_query", [True, False])
def test_data_without_queries_or_without_gallery_is_reported(is_query: bool) -> None:
    data = person_samples()
    data["query"] = np.full(150, is_query)
    with pytest.raises(ValueError, match=f"{150 * is_query} of 150 images are queries.*`recall`"):
        evaluate_on_ranks(lambda: Retrieval(DATASET_INFO), 1, data)


def test_queries_without_any_match_are_reported() -> None:
    data = person_samples()
    data["label"] = np.where(data["query"], 0, 1)
    with pytest.raises(ValueError, match=r"queries has a match .* 0 identities are in both"):
        evaluate_on_ranks(lambda: Retrieval(DATASET_INFO), 1, data)


@pytest.mark.parametrize("make", [Retrieval, Recall])
def test_embeddings_that_are_not_finite_are_counted_and_named(make: Callable[[DatasetInfo], Any]) -> None:
    data = person_samples()
    data["embedding"][[7, 9], 2] = math.nan
    with pytest.raises(DataMismatch, match=r"^2 of 150 embeddings are not finite, the first that of .*7"):
        evaluate_on_ranks(lambda: make(DATASET_INFO), 1, data)


def test_feature_distances_buffer_one_tile() -> None:
    """The buffer does not hold all Q x G distances."""
    source = FeatureDistances(torch.randn(2100, 4), torch.randn(300, 4))
    sizes = [source.distances(*span).shape for span in distances_module.query_blocks(source)]
    assert sizes == [(1024, 300), (1024, 300), (52, 300)]
    assert source._buffer.shape == (1024, 300)


def test_recall_logs_that_it_ignores_the_query_marks(caplog: pytest.LogCaptureFixture) -> None:
    Recall(replace(DATASET_INFO, queries=False))
    assert not caplog.records
    Recall(DATASET_INFO)
    assert "every image as query and gallery" in caplog.text
