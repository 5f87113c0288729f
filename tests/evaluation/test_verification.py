"""Query expansion, true accept rates, and verification of pairs: FastReID's scores, the definitions, errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.evaluation.retrieval import verification
from opabinia.evaluation.retrieval.distances import FeatureDistances, MatrixDistances
from opabinia.evaluation.retrieval.query_expansion import expand_features
from opabinia.evaluation.retrieval.ranking import Matches

GOLDEN = Path(__file__).parent.parent / "golden" / "fastreid"


def roc_of(matrix: Any, *labels: Any, fprs: Any = (1e-4, 1e-3, 1e-2)) -> dict[float, float]:
    return verification.roc(MatrixDistances(matrix), Matches(*labels), fprs)


def golden(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    case = json.loads((GOLDEN / f"{name}.json").read_text())
    return case["inputs"], case["outputs"]


# --- query expansion --------------------------------------------------------------------------------------------------


def test_a_neighbor_with_negative_cosine_has_no_weight() -> None:
    """FastReID's weight is NaN here."""
    query, gallery = expand_features([[1.0, 0.0]], [[-1.0, 0.5]], k=2, alpha=2.5)
    np.testing.assert_allclose(query, [[0.5, 0]])
    np.testing.assert_allclose(gallery, [[-0.5, 0.25]], rtol=1e-6)


def test_fewer_features_than_neighbors() -> None:
    """FastReID raises here. With alpha 0 the result is the unweighted mean."""
    query, gallery = expand_features([[2.0, 0.0]], [[1.0, 1.0]], k=10, alpha=0)
    np.testing.assert_allclose(torch.cat([query, gallery]), [[1.5, 0.5]] * 2)


def test_expansion_by_its_definition() -> None:
    random = np.random.default_rng(0)
    features = random.standard_normal((1700, 8)).astype(np.float32)
    q, g = expand_features(features[:200], features[200:], k=4, alpha=2)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = unit @ unit.T
    neighbors = np.argsort(-cosines, axis=1)[:, :4]
    weights = np.take_along_axis(cosines, neighbors, 1).clip(0) ** 2
    np.testing.assert_allclose(torch.cat([q, g]), (weights[..., None] * features[neighbors]).mean(1), atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"k": 0}, "k=0"), ({"alpha": -1}, "alpha=-1"), ({"times": -1}, "times=-1"), ({"alpha": math.nan}, "alpha=nan")],
)
def test_expansion_options_out_of_range_are_reported(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand_features([[1.0]], [[1.0]], **keys)


def test_expansion_of_features_of_different_widths_is_reported() -> None:
    with pytest.raises(ValueError, match="query features have 1 numbers, gallery features 2"):
        expand_features([[1.0]], [[1.0, 2.0]])


# --- true accept rates ------------------------------------------------------------------------------------------------


def true_accept_rate(matrix: Any, same: Any, different: Any, max_fpr: float) -> float:
    """Return the largest true accept rate of any threshold that accepts at most ``max_fpr`` of the other pairs."""
    rates = [0.0]
    for threshold in [*np.unique(matrix), np.inf]:
        if (matrix[different] < threshold).mean() <= max_fpr + 1e-12:
            rates.append((matrix[same] < threshold).mean())
    return float(max(rates))


@pytest.mark.parametrize("seed", range(40))
def test_rates_equal_those_of_trying_every_threshold(seed: int) -> None:
    random = np.random.default_rng(seed)
    queries, gallery = 12, 40
    matrix = (random.integers(0, random.choice([4, 30, 5000]), (queries, gallery)) / 16).astype(np.float32)
    q, g = random.integers(0, 6, queries), random.integers(0, 5, gallery)
    qc, gc = random.integers(0, 3, queries), random.integers(0, 3, gallery)
    alike = q[:, None] == g
    junk = alike & (qc[:, None] == gc)
    fprs = (0.0, 0.003, 0.01, 0.2, 0.5, 1.0)
    rates = roc_of(matrix, q, g, qc, gc, fprs=fprs)
    assert rates == pytest.approx({fpr: true_accept_rate(matrix, alike & ~junk, ~alike, fpr) for fpr in fprs})


def test_queries_without_match_count_as_negatives() -> None:
    """The second query has no match in the gallery; its pairs are pairs of different identities."""
    matrix, ids = [[0.2, 0.5], [0.1, 0.3]], ([1, 9], [1, 2])
    assert roc_of(matrix, *ids, fprs=(0.0, 0.34)) == {0.0: 0, 0.34: 1}


def test_the_same_identity_is_the_positive_class() -> None:
    """A perfect ranking accepts all matches, a reversed one none. FastReID swaps the classes."""
    near, far = [[0.1, 0.2, 0.8, 0.9]], [[0.9, 0.8, 0.2, 0.1]]
    assert roc_of(near, [1], [1, 1, 2, 3]) == {1e-4: 1, 1e-3: 1, 1e-2: 1}
    assert roc_of(far, [1], [1, 1, 2, 3]) == {1e-4: 0, 1e-3: 0, 1e-2: 0}


def test_features_and_their_distances_give_the_same_rates() -> None:
    """The features are so many that the nearest are selected in several rounds."""
    random = np.random.default_rng(0)
    ids = random.integers(0, 30, 1500)
    features = random.standard_normal((30, 16))[ids] + random.standard_normal((1500, 16))
    inputs = features[:1200], features[1200:], ids[:1200], ids[1200:]
    fprs = (1e-4, 1e-3, 1e-2)
    rates = verification.roc(FeatureDistances(*inputs[:2]), Matches(*inputs[2:]), fprs)
    matrix = FeatureDistances(*inputs[:2]).distances(0, 1200).numpy()
    same = inputs[2][:, None] == inputs[3]
    bounds = np.sort(matrix[~same])
    assert rates == {fpr: (matrix[same] < bounds[int(fpr * len(bounds))]).mean() for fpr in fprs}
    assert 0 < rates[1e-4] < rates[1e-3] < rates[1e-2] < 1


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
def test_invalid_inputs_are_reported(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_golden_face_verif() -> None:
    inputs, outputs = golden("face_verif")
    embeddings = np.array(inputs["embeddings_interleaved"])
    scores = verification.pairs(embeddings[0::2], embeddings[1::2], inputs["issame"], folds=inputs["nrof_folds"])
    assert scores["accuracies"] == pytest.approx(outputs["fold_accuracy"])
    assert scores["accuracy"] == pytest.approx(outputs["mean_accuracy"])
    assert scores["thresholds"] == pytest.approx(outputs["best_thresholds"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: verification.pairs(np.eye(3), np.eye(3), [1, 0, 1], folds=4), "folds is 4; 3 pairs have 2 to 3"),
        (lambda: verification.pairs(np.eye(3), np.eye(2), [1, 0, 1], folds=2), "are no pairs"),
        (lambda: verification.pairs(np.full((2, 2), math.nan), np.eye(2), [1, 0], folds=2), "pair 0 has features that"),
    ],
)
def test_pairs_that_do_not_fit_are_reported(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
