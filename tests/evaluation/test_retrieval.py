"""Ranking against a plain reference, FastReID's own numbers, ties, blocks, processes and what cannot be ranked."""

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

from opabinia.contracts import DataMismatch, DatasetInfo, DetailsEvaluator
from opabinia.evaluation.retrieval import distances as distances_module
from opabinia.evaluation.retrieval.distances import (
    FeatureDistances,
    MatrixDistances,
    distances,
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
from opabinia.evaluation.retrieval.retrieval_evaluators import Expansion, Recall, RepeatedGallery, Rerank, Retrieval

GOLDEN = Path(__file__).parent.parent / "golden" / "fastreid"
FACTS = DatasetInfo(samples=0, queries=True)

Array = NDArray[Any]


def evaluate_distances(matrix: Any, *labels: Any, ranks: Any = RANKS, block: int | None = None) -> dict[str, float]:
    return rank(MatrixDistances(matrix), Matches(*labels), block).scores(ranks)


def golden(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    case = json.loads((GOLDEN / f"{name}.json").read_text())
    return case["inputs"], case["outputs"]


def close(found: Any, expected: Any) -> bool:
    return np.allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-5)


# --- a plain reference: sorts every query's gallery ------------------------------------------------------------------


def sorted_places(row: Array, same: Array, junk: Array) -> list[int]:
    """Places of the matches, from 1. Python's sort is stable: equal distances stay in the gallery's order."""
    kept = [column for column in range(len(row)) if not junk[column]]
    order = sorted(kept, key=lambda column: row[column])
    return [place for place, column in enumerate(order, 1) if same[column]]


def plain(matrix: Array, q: Array, g: Array, qc: Array | None, gc: Array | None, ranks: tuple[int, ...]) -> Any:
    found = []
    for number, row in enumerate(matrix):
        same = g == q[number]
        junk = same & (gc == qc[number]) if qc is not None and gc is not None else np.zeros(len(g), bool)
        places = sorted_places(row, same & ~junk, junk)
        if places:
            precision = np.mean([(n + 1) / place for n, place in enumerate(places)])
            found.append([precision, len(places) / places[-1], *(places[0] <= k for k in ranks)])
    if not found:
        return None
    means = np.mean(found, axis=0)
    names = ("mAP", "mINP", *(f"rank{k}" for k in ranks))
    return {
        **dict(zip(names, means, strict=True)),
        "queries": len(found),
        "queries_without_match": len(matrix) - len(found),
    }


@pytest.mark.parametrize("seed", range(200))
def test_it_agrees_with_sorting(seed: int) -> None:
    """Junk, ties (distances of few values), queries without match, distractors, galleries shorter than the rank."""
    random = np.random.default_rng(seed)
    queries, gallery, people = random.integers(1, 9), random.integers(1, 40), random.integers(1, 8)
    matrix = random.integers(0, random.choice([2, 5, 1000]), (queries, gallery)) / 8
    q, g = random.integers(0, people, queries), random.integers(-1, people, gallery)
    cameras = (random.integers(0, 3, queries), random.integers(0, 3, gallery)) if seed % 3 else (None, None)
    expected = plain(matrix, q, g, *cameras, (1, 2, 50))
    if expected is None:
        with pytest.raises(ValueError, match="has a match"):
            evaluate_distances(matrix, q, g, *cameras)
    else:
        found = evaluate_distances(matrix, q, g, *cameras, ranks=(1, 2, 50), block=int(random.integers(1, 9)))
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(20))
def test_features_of_few_values_tie_and_agree_with_sorting(seed: int) -> None:
    """Whole numbers have exact products, so equal distances are equal however they are computed."""
    random = np.random.default_rng(seed)
    features = random.integers(-2, 3, (60, 3)).astype(np.float32)
    ids, cameras = random.integers(0, 9, 60), random.integers(0, 3, 60)
    query, gallery = slice(0, 20), slice(20, 60)
    exact = ((features[query, None] - features[None, gallery]) ** 2).sum(2)
    expected = plain(exact, ids[query], ids[gallery], cameras[query], cameras[gallery], (1, 5, 10))
    sides = (features[query], features[gallery], ids[query], ids[gallery], cameras[query], cameras[gallery])
    for metric in ("euclidean", "squared_euclidean"):
        assert evaluate(*sides, metric=metric) == pytest.approx(expected)


def read_only(features: Array) -> Array:
    features = features.copy()
    features.setflags(write=False)
    return features


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "given",
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
@pytest.mark.parametrize("name", ["texts", "table", "torch", "list", "int32"])
def test_features_and_labels_of_any_kind(given: Callable[[Array], Any], name: str) -> None:
    random = np.random.default_rng(1)
    features = random.integers(-3, 4, (50, 4)).astype(np.float32)
    ids, cameras = random.integers(-1, 9, 50), random.integers(0, 3, 50)
    kinds: dict[str, Callable[[Array], Any]] = {
        "texts": lambda column: column.astype(str),
        "table": lambda column: column.astype(str).astype(object),
        "torch": torch.from_numpy,
        "list": lambda column: column.tolist(),
        "int32": lambda column: column.astype(np.int32),
    }
    labels = [kinds[name](part) for part in (ids[:15], ids[15:], cameras[:15], cameras[15:])]
    expected = evaluate(features[:15], features[15:], ids[:15], ids[15:], cameras[:15], cameras[15:])
    assert evaluate(given(features[:15]), given(features[15:]), *labels) == expected


def test_distances_are_not_rounded() -> None:
    """Doubles, and numbers that float32 does not have."""
    for matrix in (np.array([[1.0, 1.0 - 1e-9]]), np.array([[2**24 + 1, 2**24]])):
        assert evaluate_distances(matrix, [1], [2, 1])["rank1"] == 1


def test_texts_are_not_numbers() -> None:
    """NumPy would compare 10 with "9" as texts."""
    with pytest.raises(ValueError, match="query_ids are strings, gallery_ids numbers: none of them are equal"):
        evaluate_distances([[1.0, 2.0]], ["1"], [1, 2])
    with pytest.raises(ValueError, match="query_cameras are numbers, gallery_cameras strings"):
        evaluate_distances([[1.0, 2.0]], [1], [1, 2], [0], ["0", "1"])
    with pytest.raises(ValueError, match="gallery_ids must be integers or strings, not NoneType and str"):
        evaluate_distances([[1.0, 2.0]], ["1"], np.array(["1", None]))


@pytest.mark.parametrize("seed", range(50))
def test_places_are_the_same_on_the_host_and_on_a_device(seed: int) -> None:
    """The code for a device, run on the CPU."""
    random = np.random.default_rng(seed)
    matrix = (random.integers(0, random.choice([1, 3, 100]), (7, 30)) / 4).astype(np.float32)
    columns = [np.sort(random.permutation(30)[: random.integers(0, 6)]) for _ in matrix]
    for row, own in zip(matrix, columns, strict=True):
        row[np.setdiff1d(random.integers(0, 30, 4), own)] = np.nan
    found = ranks_on_gpu(torch.from_numpy(matrix), columns)
    for row, own, places in zip(matrix, columns, found, strict=True):
        same = np.isin(np.arange(30), own)
        assert places.tolist() == sorted_places(row, same, np.isnan(row))
        if len(own):
            assert ranks_on_cpu(row, own).tolist() == places.tolist()


# --- FastReID's numbers -----------------------------------------------------------------------------------------------


def test_golden_rank_market() -> None:
    inputs, outputs = golden("rank_market")
    labels = [np.array(inputs[key]) for key in ("q_pids", "g_pids", "q_camids", "g_camids")]
    found = evaluate_distances(np.array(inputs["distmat"]), *labels, ranks=(1, 2, 3, 4, 5, 50))
    assert close([found[f"rank{k}"] for k in (1, 2, 3, 4, 5)], outputs["cmc"])
    assert found["rank50"] == 1, "FastReID's curve falls to 1/3 again where a gallery is shorter than the rank"
    assert close([found["mAP"], found["mINP"]], [outputs["mAP"], outputs["mINP"]])
    assert (found["queries"], found["queries_without_match"]) == (3, 1)


def test_golden_rank_small() -> None:
    """Three implementations agree on it."""
    inputs, outputs = golden("rank_small")
    labels = [np.array(inputs[key]) for key in ("q_pids", "g_pids", "q_camids", "g_camids")]
    ranks = range(1, 11)
    found = evaluate_distances(np.array(inputs["dist"]), *labels, ranks=ranks)
    assert close([found[f"rank{k}"] for k in ranks], outputs["cmc"])
    assert close([found["mAP"], found["mINP"]], [outputs["mAP"], outputs["mINP"]])


def test_golden_build_dist() -> None:
    """What FastReID calls euclidean is squared."""
    inputs, outputs = golden("build_dist")
    query, gallery = np.array(inputs["query"]), np.array(inputs["gallery"])
    assert close(distances(query, gallery, metric="cosine"), outputs["cosine"])
    assert close(distances(query, gallery, metric="squared_euclidean"), outputs["euclidean"])
    assert close(distances(query, gallery, metric="euclidean"), np.sqrt(outputs["euclidean"]))


# --- ties and blocks --------------------------------------------------------------------------------------------------


def people(count: int, identities: int, width: int = 32, noise: float = 0.8, seed: int = 0) -> tuple[Any, ...]:
    """Clustered features, identities and cameras."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, identities, count)
    centres = random.standard_normal((identities, width))
    features = (centres[ids] + noise * random.standard_normal((count, width))).astype(np.float32)
    return features, ids, random.integers(0, 3, count)


def sides(count: int, queries: int, identities: int, **keys: Any) -> tuple[Any, ...]:
    features, ids, cameras = people(count, identities, **keys)
    return tuple(part for one in (features, ids, cameras) for part in (one[:queries], one[queries:]))


def test_blocks_change_no_bit() -> None:
    given = sides(2600, 2200, 40, width=65, noise=3.0)
    scores = [evaluate(*given, block=block) for block in (None, 1, 1023, 1025, 5000)]
    assert all(one == scores[0] for one in scores)
    assert 0.05 < scores[0]["mAP"] < 0.95, "else nothing is at stake"


def test_a_tile_shrinks_with_the_gallery() -> None:
    assert [tile_size(n) for n in (0, 1, 15_913, 82_161, 131_072, 131_073, 10**6, 10**9)] == [1024] * 5 + [512, 128, 16]


@pytest.mark.parametrize("metric", ["cosine", "squared_euclidean"])
def test_the_same_features_are_at_the_same_distance(metric: Any) -> None:
    """Wherever they stand in the gallery: kernels compute its edges in another way."""
    random = np.random.default_rng(0)
    for size in (30, 101, 333):
        gallery = random.standard_normal((size, 257)).astype(np.float32)
        gallery[[3, size // 2, size - 1]] = gallery[0]
        gallery[size - 2] = gallery[5]
        found = distances(random.standard_normal((3, 257)), gallery, metric=metric)
        for copies in ([0, 3, size // 2, size - 1], [5, size - 2]):
            assert len(found[:, copies].unique(dim=1)[0]) == 1


def test_features_that_are_all_the_same_rank_in_the_order_of_the_gallery() -> None:
    query, gallery = np.ones((2, 7)), np.ones((5, 7))
    found = evaluate(query, gallery, [0, 1], [0, 2, 1, 0, 1])
    assert found["mAP"] == pytest.approx(((1 + 2 / 4) / 2 + (1 / 3 + 2 / 5) / 2) / 2)
    assert nearest(query, gallery, 3)[1].tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("width", [1, 2, 16, 17, 400])
def test_copies_are_found_and_nothing_else(width: int) -> None:
    """Rows that differ in the last number only are no copies."""
    rows = torch.ones(7, width)
    rows[:, -1] = torch.tensor([0.0, 1, 0, 2, 1, 0, 3])
    copies, originals = distances_module._duplicate_rows(rows)
    assert (copies.tolist(), originals.tolist()) == ([2, 4, 5], [0, 1, 0])
    random = np.random.default_rng(width)
    several = torch.from_numpy(random.integers(0, 2, (40, 5)).astype(np.float32)).repeat(1, width)
    copies, originals = distances_module._duplicate_rows(several)
    first = {tuple(row): number for number, row in reversed(list(enumerate(several.tolist())))}
    expected = {number: first[tuple(row)] for number, row in enumerate(several.tolist())}
    found = dict(zip(copies.tolist(), originals.tolist(), strict=True))
    assert found == {number: own for number, own in expected.items() if own != number}


def test_calls_do_not_change_what_they_are_given() -> None:
    given = sides(60, 20, 5)
    before = [one.copy() for one in given]
    evaluate(*given)
    matrix = distances(given[0], given[1]).numpy()
    kept = matrix.copy()
    evaluate_distances(matrix, *given[2:])
    assert (matrix == kept).all()
    assert all((a == b).all() for a, b in zip(given, before, strict=True))


def test_distances_and_features_give_the_same() -> None:
    given = sides(300, 100, 20)
    assert evaluate_distances(distances(*given[:2]), *given[2:]) == evaluate(*given)


def test_numpy_and_torch_of_any_type_and_names_give_the_same() -> None:
    features, gallery, *labels = sides(80, 30, 8)
    expected = evaluate(features, gallery, *labels)
    tensors = [torch.from_numpy(one) for one in (features, gallery, *labels)]
    assert evaluate(*tensors) == expected
    assert evaluate(tensors[0].double(), tensors[1].double(), *tensors[2:]) == expected
    names = [np.array([f"person {number}" for number in one]) for one in labels[:2]]
    assert evaluate(features, gallery, *names, *labels[2:]) == expected


# --- the nearest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_smallest_of_each_row_with_ties(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(0, 4, (6, 15)).astype(np.float32)
    k = int(random.integers(1, 19))
    found, columns = smallest(torch.from_numpy(values), k)
    expected = np.argsort(values, axis=1, kind="stable")[:, :k]
    assert columns.tolist() == expected.tolist()
    assert found.tolist() == np.take_along_axis(values, expected, 1).tolist()


def test_nearest_by_hand() -> None:
    query, gallery = [[0.0, 0], [3, 4]], [[3.0, 4], [0, 0], [0, 1]]
    found, columns = nearest(torch.tensor(query), torch.tensor(gallery), 2, "euclidean")
    assert columns.tolist() == [[1, 2], [0, 2]]
    assert found.tolist() == pytest.approx([pytest.approx([0, 1]), pytest.approx([0, math.sqrt(18)])])
    assert nearest(torch.tensor(query), torch.tensor(gallery), 9)[1].shape == (2, 3)


def test_cosine_of_nothing_is_zero() -> None:
    assert distances([[0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]).tolist() == [[1, 1]]


# --- other protocols --------------------------------------------------------------------------------------------------


def test_single_shot_by_the_protocol() -> None:
    q, g, qi, gi, qc, gc = sides(120, 30, 10, noise=1.5)
    matrix = distances(q, g).numpy()
    means = []
    for repeat in range(4):
        order = np.random.default_rng((3, repeat)).permutation(len(g))
        for number, row in enumerate(matrix):
            kept = [column for column in order if gi[column] != qi[number] or gc[column] != qc[number]]
            shown = [c for n, c in enumerate(kept) if gi[c] not in gi[kept[:n]]]  # the first of each
            (place,) = sorted_places(row[sorted(shown)], gi[sorted(shown)] == qi[number], np.zeros(len(shown), bool))
            means.append([1 / place, place <= 1, place <= 5])
    found = single_shot(q, g, qi, gi, qc, gc, ranks=(1, 5), seed=3, repeats=4)
    assert [found[name] for name in ("mAP", "rank1", "rank5")] == pytest.approx(np.mean(means, axis=0).tolist())
    assert found["mINP"] == found["mAP"] and found["queries"] == 30
    assert single_shot(q, g, qi, gi, qc, gc, seed=3) == single_shot(q, g, qi, gi, qc, gc, seed=3, block=1)
    assert single_shot(q, g, qi, gi, qc, gc, seed=3) != single_shot(q, g, qi, gi, qc, gc, seed=4)


def test_random_galleries_have_one_image_of_each_identity() -> None:
    features, ids, _ = people(60, 10, noise=1.5)
    shown = first_of_each(ids, np.random.default_rng((7, 0)).permutation(60))
    assert sorted(ids[shown]) == sorted(set(ids))
    others = np.setdiff1d(np.arange(60), shown)
    expected = evaluate(features[others], features[shown], ids[others], ids[shown])
    assert random_galleries(features, ids, seed=7, repeats=1) == expected
    several = random_galleries(features, ids, seed=7, repeats=5)
    assert several == random_galleries(features, ids, seed=7, repeats=5) != expected


def plain_recall(matrix: Array, ids: Array, ks: tuple[int, ...]) -> dict[str, float]:
    rows = []
    for number, row in enumerate(matrix):
        order = [c for c in sorted(range(len(row)), key=lambda c, row=row: row[c]) if c != number]  # type: ignore[misc]
        right = np.array([ids[c] == ids[number] for c in order])
        if total := int(right.sum()):
            precision = right.cumsum() / np.arange(1, len(right) + 1)
            inside = (right[:total] * precision[:total]).sum() / total
            rows.append(
                [*(right[:k].any() for k in ks), right[:total].mean(), inside, (right * precision).sum() / total]
            )
    names = (*(f"recall{k}" for k in ks), "r_precision", "mAP@R", "mAP")
    counts = {"queries": len(rows), "queries_without_match": len(matrix) - len(rows)}
    return dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True)) | counts


@pytest.mark.parametrize("seed", range(10))
def test_recall_against_sorting(seed: int) -> None:
    features, ids, _ = people(50, 25, width=6, noise=1.0, seed=seed)
    features[40] = features[3]
    matrix = distances(features, features).numpy()
    assert recall(features, ids, (1, 3, 10, 1000)) == pytest.approx(plain_recall(matrix, ids, (1, 3, 10, 1000)))


# --- what cannot be ranked --------------------------------------------------------------------------------------------

OK = np.eye(3, dtype=np.float32)


def broken(value: float) -> Array:
    rows = OK.copy()
    rows[1, 2] = value
    return rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((broken(math.nan), OK, [0, 1, 2], [0, 1, 2]), "row 1 of the query features holds nan"),
        ((OK, broken(-math.inf), [0, 1, 2], [0, 1, 2]), "row 1 of the gallery features holds -inf"),
        ((OK, broken(1e30), [0, 1, 2], [0, 1, 2]), "row 1 of the gallery features is too long for float32"),
        ((OK, OK[:, :2], [0, 1, 2], [0, 1, 2]), "query features have 3 numbers, gallery features 2"),
        ((OK[0], OK, [0], [0, 1, 2]), r"query features must be N x D, not of shape \(3,\)"),
        ((OK, OK, [0, 1], [0, 1, 2]), "there are 3 query images, but 2 query_ids"),
        ((OK, OK, [0, 1, 2], [0, 1]), "there are 3 gallery images, but 2 gallery_ids"),
        ((OK, OK, [[0, 1, 2]], [0, 1, 2]), "query_ids must be one number per image"),
        ((OK, OK, [0, 1, 2], [0, 1, 2], [0, 0, 0]), "both the query and the gallery"),
        ((OK, OK, [0, 1, 2], [0, 1, 2], [0, 0], [0, 0, 0]), "there are 2 query_cameras, but 3 query_ids"),
        ((OK, OK, [0, 1, 2], [3, 4, 5]), "none of the 3 queries has a match among the 3 gallery images: 0 identities"),
        (
            (OK, OK, [0, 1, 2], [0, 1, 5], [1, 1, 1], [1, 1, 1]),
            "2 identities are in both, and images of the query's identity from its own camera were removed",
        ),
        ((OK[:0], OK, [], [0, 1, 2]), "none of the 0 queries"),
        ((OK, OK[:0], [0, 1, 2], []), "among the 0 gallery images"),
    ],
)
def test_what_is_wrong_is_reported(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(*arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluate(OK, OK, [0, 1, 2], [0, 1, 2], metric="l1"), "no metric 'l1'; there are: cosine"),  # type: ignore[arg-type]
        (lambda: evaluate(OK, OK, [0, 1, 2], [0, 1, 2], ranks=(0, 1)), "ranks count from 1, not 0"),
        (lambda: evaluate(OK, OK, [0, 1, 2], [0, 1, 2], block=0), "block must be at least 1"),
        (lambda: evaluate_distances(broken(math.nan), [0, 1, 2], [0, 1, 2]), "distances of query 1 are not numbers"),
        (lambda: evaluate_distances(OK[0], [0], [0, 1, 2]), "distances must be Q x G"),
        (lambda: single_shot(OK, OK, [0, 1, 2], [0, 1, 2], repeats=0), "repeats must be at least 1"),
        (lambda: random_galleries(OK, [0, 1, 2], repeats=0), "repeats must be at least 1"),
        (lambda: random_galleries(OK, [0, 1]), "there are 3 images, but 2 ids"),
        (lambda: random_galleries(OK, [0, 1, 2]), "none of the 0 queries"),
        (lambda: single_shot(OK, OK, [0, 1, 2], [3, 4, 5]), "none of the 3 queries"),
        (lambda: recall(OK, [0, 1, 2]), "none of the 3 images has another one of its identity"),
        (lambda: recall(OK, [0, 0]), "there are 3 query images, but 2 query_ids"),
    ],
)
def test_what_else_is_wrong_is_reported(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# --- expansion and re-ranking on the way ------------------------------------------------------------------------------


def test_re_ranking_and_expansion_change_what_is_ranked() -> None:
    from opabinia.evaluation.retrieval.query_expansion import expand_features
    from opabinia.evaluation.retrieval.rerank import k_reciprocal

    given = sides(200, 60, 20, noise=1.6)
    q, g = (torch.from_numpy(one) for one in given[:2])
    again = k_reciprocal(q, g, k1=9, k2=3, variant="zhong")
    expected = evaluate_distances(again.distances(0, 60), *given[2:])
    assert evaluate(*given, rerank={"k1": 9, "k2": 3, "variant": "zhong"}) == expected
    expanded = evaluate(*expand_features(q, g, k=4), *given[2:])
    assert evaluate(*given, query_expansion={"k": 4}) == expanded
    plain_scores = evaluate(*given)
    assert len({one["mAP"] for one in (plain_scores, expected, expanded)}) == 3
    assert evaluate(*given, rerank="fastreid")["mAP"] != evaluate(*given, rerank="zhong")["mAP"]


# --- evaluators -------------------------------------------------------------------------------------------------------


def fed(make: Callable[[], Any], world: int, given: dict[str, Any], size: int = 16) -> tuple[dict[str, float], Any]:
    """Scores and tables of ``world`` processes that take the batches in turn, and what better says of them."""
    evaluators = [make() for _ in range(world)]
    count = len(given["label"])
    for number, start in enumerate(range(0, count, size)):
        part = range(start, min(start + size, count))
        batch: Any = {key: torch.from_numpy(value[part]) for key, value in given.items()}
        embedding = batch.pop("embedding")
        batch["id"] = [f"image {n}" for n in part]
        evaluators[number % world].update({"embedding": embedding}, batch)
    states = [one.state() for one in evaluators]
    found = [one.compute(states) for one in evaluators]
    assert all(one == found[0] for one in found)
    table = evaluators[0].details(states) if isinstance(evaluators[0], DetailsEvaluator) else None
    return found[0], table


def set_of_people() -> dict[str, Any]:
    features, ids, cameras = people(150, 15, noise=1.4)
    queries = np.random.default_rng(1).random(150) < 0.3
    return {"embedding": features, "label": ids, "camera": cameras, "query": queries}


def test_any_number_of_processes_gives_the_same_bits() -> None:
    given = set_of_people()
    keys: dict[str, Any] = {"rerank": Rerank(k1=6, k2=2), "query_expansion": Expansion(k=3), "roc": True}
    alone = fed(lambda: Retrieval(FACTS, **keys), 1, given)
    for world in (2, 3, 11):
        assert fed(lambda: Retrieval(FACTS, **keys), world, given) == alone
    assert alone[0].keys() == Retrieval(FACTS, **keys).better.keys()


def test_the_evaluator_gives_what_evaluate_gives() -> None:
    given = set_of_people()
    found, table = fed(lambda: Retrieval(FACTS, ranks=(1, 3), query_expansion=Expansion(k=3)), 2, given)
    q = given["query"]
    parts = [given[key][side] for key in ("embedding", "label", "camera") for side in (q, ~q)]
    plain_scores = evaluate(*parts, ranks=(1, 3))
    expanded = evaluate(*parts, ranks=(1, 3), query_expansion={"k": 3})
    names = ("mAP", "rank1", "rank3", "mINP")
    assert found == {name: plain_scores[name] for name in names} | {f"qe_{name}": expanded[name] for name in names}
    shown = table["retrieval"]
    assert (shown["queries"], shown["queries_without_match"]) == (
        plain_scores["queries"],
        plain_scores["queries_without_match"],
    )
    assert shown["gallery"] == (~q).sum()
    assert shown["worst"] == sorted(shown["worst"], key=lambda row: row["AP"])
    others = [row["AP"] for row in shown["others"]]
    assert others == sorted(others) and len(others) == min(10, len(shown["worst"]))
    assert shown["others"][0] == shown["worst"][0] and others[-1] > np.median(others)


def test_random_galleries_are_an_evaluator() -> None:
    given = set_of_people()
    q = given["query"]
    sides = [given[key][side] for key in ("embedding", "label", "camera") for side in (q, ~q)]
    keys: dict[str, Any] = {"ranks": (1, 4), "repeats": 3, "seed": 5}
    expected = {
        "single_shot": single_shot(*sides, **keys),
        "random_gallery": random_galleries(given["embedding"], given["label"], **keys),
    }
    for protocol, scores in expected.items():
        found, _ = fed(lambda protocol=protocol: RepeatedGallery(FACTS, protocol=protocol, **keys), 2, given)
        assert found == {f"{protocol}_{name}": scores[name] for name in ("mAP", "rank1", "rank4")}
    RepeatedGallery(DatasetInfo(samples=0), protocol="random_gallery")
    with pytest.raises(ValueError, match="protocol single_shot: the data has no queries"):
        RepeatedGallery(DatasetInfo(samples=0), protocol="single_shot")


def test_precision_of_the_nearest() -> None:
    """Of the revisited Oxford and Paris datasets: a query with two matches at ranks 1 and 3, one with a match at 2."""
    matrix = np.array([[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]])
    ranking = rank(MatrixDistances(matrix), ListedMatches([[0, 2], [1]]))
    assert ranking.precision_at(1) == (1 + 0) / 2
    assert ranking.precision_at(2) == (1 / 2 + 1 / 2) / 2
    assert ranking.precision_at(10) == pytest.approx((2 / 3 + 1 / 2) / 2)
    with pytest.raises(ValueError, match="ranks count from 1"):
        ranking.precision_at(0)
    found, _ = fed(lambda: Retrieval(FACTS, precision_at=(1, 5)), 2, set_of_people())
    assert (
        found["precision@1"] == found["rank1"] and Retrieval(FACTS, precision_at=(1, 5)).better.keys() == found.keys()
    )


def test_the_table_shows_what_was_found_first() -> None:
    given = {
        "embedding": np.array([[1, 0], [1, 0], [0.9, 0.1], [0.5, 0.5], [0, 1]], np.float32),
        "label": np.array([4, 4, 5, 4, 4]),
        "camera": np.array([0, 0, 0, 1, 1]),
        "query": np.array([True, False, False, False, False]),
    }
    found, table = fed(lambda: Retrieval(FACTS), 2, given, size=2)
    assert found["mAP"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    (row,) = table["retrieval"]["worst"]
    assert row["nearest"] == ["image 2", "image 3", "image 4"], "image 1 is the query's own, from its camera"
    assert (row["query"], row["first_match"], row["right"]) == ("image 0", 2, [False, True, True])
    json.dumps(table)


def test_products() -> None:
    features, ids, _ = people(70, 20, noise=1.2)
    given = {"embedding": features, "label": ids}
    found, _ = fed(lambda: Recall(FACTS, ks=(1, 4)), 1, given)
    expected = recall(features, ids, (1, 4))
    assert found == {name: expected[name] for name in ("recall1", "recall4", "r_precision", "mAP@R", "mAP")}
    for world in (2, 3):
        assert fed(lambda: Recall(FACTS, ks=(1, 4)), world, given)[0] == found
    assert Recall(FACTS, ks=(1, 4)).better.keys() == found.keys()


def test_without_cameras_nothing_is_junk() -> None:
    given = set_of_people()
    del given["camera"]
    found, _ = fed(lambda: Retrieval(FACTS), 1, given)
    q = given["query"]
    parts = [given[key][side] for key in ("embedding", "label") for side in (q, ~q)]
    assert found["mAP"] == evaluate(*parts)["mAP"]


@pytest.mark.parametrize("marked", [True, False])
def test_a_set_without_queries_or_without_gallery(marked: bool) -> None:
    given = set_of_people()
    given["query"] = np.full(150, marked)
    with pytest.raises(ValueError, match=f"{150 * marked} of 150 images are queries.*`recall`"):
        fed(lambda: Retrieval(FACTS), 1, given)


def test_data_without_queries_is_refused_before_anything_is_embedded() -> None:
    with pytest.raises(ValueError, match="has no queries and gallery"):
        Retrieval(DatasetInfo(samples=150))


def test_a_query_set_without_a_single_match() -> None:
    given = set_of_people()
    given["label"] = np.where(given["query"], 0, 1)
    with pytest.raises(ValueError, match=r"queries has a match .* 0 identities are in both"):
        fed(lambda: Retrieval(FACTS), 1, given)


@pytest.mark.parametrize("make", [Retrieval, Recall])
def test_embeddings_that_are_not_finite_are_counted_and_named(make: Callable[[DatasetInfo], Any]) -> None:
    given = set_of_people()
    given["embedding"][[7, 9], 2] = math.nan
    with pytest.raises(DataMismatch, match=r"^2 of 150 embeddings are not finite, the first that of .*7"):
        fed(lambda: make(FACTS), 1, given)


@pytest.mark.parametrize("make", [Retrieval, Recall])
def test_nothing_seen_gives_no_scores(make: Callable[[DatasetInfo], Any]) -> None:
    assert make(FACTS).compute([[], []]) == {}
    assert not hasattr(make(FACTS), "details") or make(FACTS).details([[], []]) == {}


def test_a_source_holds_one_tile() -> None:
    """Not Q x G."""
    source = FeatureDistances(torch.randn(2100, 4), torch.randn(300, 4))
    sizes = [source.distances(*span).shape for span in distances_module.query_blocks(source)]
    assert sizes == [(1024, 300), (1024, 300), (52, 300)]
    assert source._buffer.shape == (1024, 300)


def test_recall_reports_that_it_looks_past_queries(caplog: pytest.LogCaptureFixture) -> None:
    Recall(replace(FACTS, queries=False))
    assert not caplog.records
    Recall(FACTS)
    assert "every image as query and gallery" in caplog.text
