"""Query expansion, shares accepted by a threshold, and given pairs: FastReID's numbers, the definitions, errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from opabinia.evaluation.retrieval import verification
from opabinia.evaluation.retrieval.distances import FeatureDistances, MatrixDistances, distances
from opabinia.evaluation.retrieval.query_expansion import expand_features
from opabinia.evaluation.retrieval.ranking import Matches

GOLDEN = Path(__file__).parent.parent / "golden" / "fastreid"


def roc_of(matrix: Any, *labels: Any, fprs: Any = verification.FPRS) -> dict[float, float]:
    return verification.roc(MatrixDistances(matrix), Matches(*labels), fprs)


def golden(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    case = json.loads((GOLDEN / f"{name}.json").read_text())
    return case["inputs"], case["outputs"]


# --- query expansion --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
def test_golden_aqe(times: int) -> None:
    inputs, outputs = golden("aqe")
    query, gallery = np.array(inputs["query"]), np.array(inputs["gallery"])
    found = expand_features(query, gallery, k=inputs["qe_k"], alpha=inputs["alpha"], times=times)
    expected = outputs[f"qe_times={times}"]
    for side, name in zip(found, ("query", "gallery"), strict=True):
        np.testing.assert_allclose(side, expected[name], rtol=1e-5, atol=1e-5)


def test_a_neighbor_that_points_away_has_no_weight() -> None:
    """FastReID's weight is NaN here."""
    query, gallery = expand_features([[1.0, 0.0]], [[-1.0, 0.5]], k=2, alpha=2.5)
    np.testing.assert_allclose(query, [[0.5, 0]])
    np.testing.assert_allclose(gallery, [[-0.5, 0.25]], rtol=1e-6)


def test_fewer_features_than_neighbors() -> None:
    """FastReID raises here; with alpha 0 it is the plain mean."""
    query, gallery = expand_features([[2.0, 0.0]], [[1.0, 1.0]], k=10, alpha=0)
    np.testing.assert_allclose(torch.cat([query, gallery]), [[1.5, 0.5]] * 2)


def test_expansion_in_blocks_and_by_its_definition() -> None:
    random = np.random.default_rng(0)
    features = random.standard_normal((700, 8)).astype(np.float32)
    q, g = expand_features(features[:200], features[200:], k=4, alpha=2)
    again = expand_features(features[:200], features[200:], k=4, alpha=2, block=1)
    assert torch.equal(q, again[0]) and torch.equal(g, again[1])
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = unit @ unit.T
    first = np.argsort(-cosines, axis=1)[:, :4]
    weights = np.take_along_axis(cosines, first, 1).clip(0) ** 2
    np.testing.assert_allclose(torch.cat([q, g]), (weights[..., None] * features[first]).mean(1), atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"k": 0}, "k=0"), ({"alpha": -1}, "alpha=-1"), ({"times": -1}, "times=-1"), ({"alpha": math.nan}, "alpha=nan")],
)
def test_expansion_out_of_range(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand_features([[1.0]], [[1.0]], **keys)


def test_expansion_of_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="query features have 1 numbers, gallery features 2"):
        expand_features([[1.0]], [[1.0, 2.0]])


# --- shares accepted --------------------------------------------------------------------------------------------------


def accepted(matrix: Any, same: Any, other: Any, f: float) -> float:
    """By trying every threshold."""
    shares = [0.0]
    for threshold in [*np.unique(matrix), np.inf]:
        if (matrix[other] < threshold).mean() <= f + 1e-12:
            shares.append((matrix[same] < threshold).mean())
    return float(max(shares))


@pytest.mark.parametrize("seed", range(40))
def test_shares_by_trying_every_threshold(seed: int) -> None:
    random = np.random.default_rng(seed)
    queries, gallery = 12, 40
    matrix = (random.integers(0, random.choice([4, 30, 5000]), (queries, gallery)) / 16).astype(np.float32)
    q, g = random.integers(0, 6, queries), random.integers(0, 5, gallery)
    qc, gc = random.integers(0, 3, queries), random.integers(0, 3, gallery)
    alike = q[:, None] == g
    junk = alike & (qc[:, None] == gc)
    fprs = (0.0, 0.003, 0.01, 0.2, 0.5, 1.0)
    found = roc_of(matrix, q, g, qc, gc, fprs=fprs)
    assert found == pytest.approx({f: accepted(matrix, alike & ~junk, ~alike, f) for f in fprs})


def test_who_is_not_in_the_gallery_may_be_taken_for_somebody() -> None:
    """The second query is nobody's; all but the nearest pair of different identities are hers."""
    matrix, ids = [[0.2, 0.5], [0.1, 0.3]], ([1, 9], [1, 2])
    assert roc_of(matrix, *ids, fprs=(0.0, 0.34)) == {0.0: 0, 0.34: 1}


@pytest.mark.parametrize("seed", range(5))
def test_the_curve_of_scikit_learn(seed: int) -> None:
    """Of all pairs but junk, without ties."""
    random = np.random.default_rng(seed)
    matrix, q, g = random.random((9, 30)), random.integers(0, 6, 9), random.integers(0, 5, 30)
    wrong, right, _ = roc_curve((q[:, None] == g).ravel(), -matrix.ravel(), drop_intermediate=False)
    found = roc_of(matrix, q, g, fprs=tuple(wrong.tolist()))
    assert found == pytest.approx({f: right[wrong <= f].max() for f in wrong.tolist()})


def test_the_same_identity_is_the_positive_class() -> None:
    """A perfect ranking accepts all; a reversed one none. FastReID's numbers are of the other class."""
    near, far = [[0.1, 0.2, 0.8, 0.9]], [[0.9, 0.8, 0.2, 0.1]]
    assert roc_of(near, [1], [1, 1, 2, 3]) == {1e-4: 1, 1e-3: 1, 1e-2: 1}
    assert roc_of(far, [1], [1, 1, 2, 3]) == {1e-4: 0, 1e-3: 0, 1e-2: 0}


def test_features_and_their_distances_give_the_same_shares() -> None:
    """Enough of them that the nearest are picked out again and again."""
    random = np.random.default_rng(0)
    ids = random.integers(0, 30, 1500)
    features = random.standard_normal((30, 16))[ids] + random.standard_normal((1500, 16))
    sides = features[:1200], features[1200:], ids[:1200], ids[1200:]
    fprs = (1e-4, 1e-3, 1e-2)
    found = verification.roc(FeatureDistances(*sides[:2]), Matches(*sides[2:]), fprs)
    matrix = distances(*sides[:2]).numpy()
    same = sides[2][:, None] == sides[3]
    bounds = np.sort(matrix[~same])
    assert found == {f: (matrix[same] < bounds[int(f * len(bounds))]).mean() for f in fprs}
    assert 0 < found[1e-4] < found[1e-3] < found[1e-2] < 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: roc_of([[1.0]], [1], [1], fprs=(2,)), "rates from 0 to 1"),
        (lambda: roc_of([[1.0]], [1], [1], fprs=()), "rates from 0 to 1"),
        (lambda: roc_of([[1.0]], [1], [2]), "none of the 1 queries has a match"),
        (lambda: roc_of([[1.0]], [1], [1]), "all pairs are of the same identity"),
        (lambda: roc_of([[1.0]], [1], [1, 2]), "there are 1 gallery images, but 2 gallery_ids"),
    ],
)
def test_what_is_wrong_is_reported(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# --- given pairs ------------------------------------------------------------------------------------------------------


def test_golden_face_verif() -> None:
    inputs, outputs = golden("face_verif")
    embeddings = np.array(inputs["embeddings_interleaved"])
    found = verification.pairs(embeddings[0::2], embeddings[1::2], inputs["issame"], folds=inputs["nrof_folds"])
    assert found["accuracies"] == pytest.approx(outputs["fold_accuracy"])
    assert found["accuracy"] == pytest.approx(outputs["mean_accuracy"])
    assert found["thresholds"] == pytest.approx(outputs["best_thresholds"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: verification.pairs(np.eye(3), np.eye(3), [1, 0, 1], folds=4), "folds is 4; 3 pairs have 2 to 3"),
        (lambda: verification.pairs(np.eye(3), np.eye(2), [1, 0, 1], folds=2), "are no pairs"),
        (lambda: verification.pairs(np.full((2, 2), math.nan), np.eye(2), [1, 0], folds=2), "pair 0 has features that"),
    ],
)
def test_pairs_that_do_not_fit(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
