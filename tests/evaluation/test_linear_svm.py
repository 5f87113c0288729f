"""Linear SVMs on features, and VOC's average precision."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.contracts import DataMismatch
from opabinia.evaluation.detection.voc import voc_ap
from opabinia.evaluation.representation.feature_bank import normalize_rows
from opabinia.evaluation.representation.linear_svm import LinearSvm
from tests.evaluation.features import DATASET_INFO, batches, class_clusters, evaluate_batches

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "selfsup" / "voc_ap.json").read_text())
FEATURES, LABELS = class_clusters(torch.eye(3, 6), 12, 0.5, seed=1)
TRAIN, QUERIES = batches(FEATURES, LABELS), batches(*class_clusters(torch.eye(3, 6), 9, 0.5, seed=2))
MULTI_LABEL_INFO = replace(DATASET_INFO, multi_label=True)


def with_multi_labels(batches: list[Any]) -> list[Any]:
    """Return the batches with multi-hot labels; images whose first feature is large have class 1 as well."""
    result = []
    for predictions, batch in batches:
        labels = torch.nn.functional.one_hot(batch["label"], 3).float()
        labels[:, 1] = labels[:, 1].maximum((predictions["embedding"][:, 0] > 1).float())
        result.append((predictions, {**batch, "label": labels}))
    return result


def test_average_precision_is_interpolated_and_counts_images() -> None:
    assert voc_ap(np.array([3, 0, 1]), np.array([0.9, 0.8, 0.7])) == pytest.approx((1 + 2 / 3) / 2)
    # Precisions at the matches: 1/2, 2/3, 3/4; the highest at these recalls or above is 3/4.
    assert voc_ap(np.array([0, 1, 1, 1]), np.array([4, 3, 2, 1])) == pytest.approx(0.75)
    assert np.isnan(voc_ap(np.array([0, 0]), np.array([0.9, 0.8])))


def test_single_label_data_has_one_cost() -> None:
    scores, details = evaluate_batches(lambda: LinearSvm(DATASET_INFO), TRAIN, QUERIES)
    assert scores.keys() == {"svm_top1"} and scores["svm_top1"] > 0.8
    assert [row["cost"] for row in details["linear_svm"]] == [0.01, 0.1, 1.0, 10.0]


def test_svms_are_one_versus_rest_with_weighted_positives() -> None:
    """VISSL trains each separately, with weights {1: 2, -1: 1}."""
    from sklearn.svm import LinearSVC

    features = normalize_rows(FEATURES.numpy())
    evaluator = LinearSvm(DATASET_INFO, costs=[1.0])
    weights = dict.fromkeys(range(3), 2.0)
    decisions = evaluator._fit(features, LABELS.numpy(), weights, "accuracy").decision_function(features)
    for k in range(3):
        reference = LinearSVC(C=1.0, class_weight={1: 2, -1: 1}, loss="squared_hinge", tol=1e-8, max_iter=20000)
        reference.fit(features, np.where(LABELS.numpy() == k, 1, -1))
        assert decisions[:, k] == pytest.approx(reference.decision_function(features), abs=2e-3)


def test_multi_label_data_has_a_cost_for_each_class() -> None:
    scores, details = evaluate_batches(
        lambda: LinearSvm(MULTI_LABEL_INFO, costs=[0.1, 1.0]), with_multi_labels(TRAIN), with_multi_labels(QUERIES)
    )
    assert scores.keys() == {"svm_mAP"} and 0.8 < scores["svm_mAP"] <= 1
    rows = [(row["class"], row["cost"]) for row in details["linear_svm"]]
    assert rows == [(name, cost) for name in DATASET_INFO.classes for cost in (0.1, 1.0)]


def test_feature_lengths_do_not_change_the_score() -> None:
    longer = [({"embedding": 100 * predictions["embedding"]}, batch) for predictions, batch in TRAIN]
    assert (
        evaluate_batches(lambda: LinearSvm(DATASET_INFO), longer, QUERIES)[0]
        == evaluate_batches(lambda: LinearSvm(DATASET_INFO), TRAIN, QUERIES)[0]
    )
    assert normalize_rows(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)).tolist() == [[0.6, 0.8], [0.0, 0.0]]


@pytest.mark.parametrize("multi_label", [False, True])
def test_a_class_with_fewer_samples_than_folds_is_reported(multi_label: bool) -> None:
    train = batches(FEATURES[:5], LABELS[:5])  # two of a, two of b, one of c
    dataset_info, train = (MULTI_LABEL_INFO, with_multi_labels(train)) if multi_label else (DATASET_INFO, train)
    with pytest.raises(DataMismatch, match=r"3 folds .* fewer of .*c \(1\)"):
        evaluate_batches(lambda: LinearSvm(dataset_info), train, with_multi_labels(QUERIES) if multi_label else QUERIES)
