"""Linear support vector machines on features, and VOC's average precision."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.contracts import DataMismatch, DatasetInfo
from opabinia.evaluation.detection.voc import voc_ap
from opabinia.evaluation.representation.feature_bank import normalize_rows
from opabinia.evaluation.representation.linear_svm import LinearSvm
from tests.evaluation.features import FACTS, around, batches, scored

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "selfsup" / "voc_ap.json").read_text())
FEATURES, LABELS = around(torch.eye(3, 6), 12, 0.5, seed=1)
KNOWN, ASKED = batches(FEATURES, LABELS), batches(*around(torch.eye(3, 6), 9, 0.5, seed=2))
SEVERAL = replace(FACTS, multi_label=True)


def with_several(seen: list[Any]) -> list[Any]:
    """Each image is also of the next class where its first number is large."""
    found = []
    for said, batch in seen:
        labels = torch.nn.functional.one_hot(batch["label"], 3).float()
        labels[:, 1] = labels[:, 1].maximum((said["embedding"][:, 0] > 1).float())
        found.append((said, {**batch, "label": labels}))
    return found


def test_average_precision_is_that_of_vissl() -> None:
    targets, scores, weights = (np.array(GOLDEN["inputs"][name]) for name in ("targets", "scores", "weights"))
    expected = GOLDEN["outputs"]
    assert voc_ap(targets, scores) == pytest.approx(expected["ap"], abs=GOLDEN["tolerance"])
    counted = weights > 0
    assert voc_ap(targets[counted], scores[counted]) == pytest.approx(
        expected["ap_ignoring_index3"], abs=GOLDEN["tolerance"]
    )


def test_average_precision_counts_images_and_not_objects() -> None:
    assert voc_ap(np.array([3, 0, 1]), np.array([0.9, 0.8, 0.7])) == pytest.approx((1 + 2 / 3) / 2)
    assert np.isnan(voc_ap(np.array([0, 0]), np.array([0.9, 0.8])))


def test_precision_is_the_best_at_a_recall_or_above() -> None:
    # Precisions at the objects: 1/2, 2/3, 3/4; the best at these recalls or above is 3/4.
    assert voc_ap(np.array([0, 1, 1, 1]), np.array([4, 3, 2, 1])) == pytest.approx(0.75)


def test_one_label_an_image() -> None:
    scores, details = scored(lambda: LinearSvm(FACTS), KNOWN, ASKED)
    assert scores.keys() == {"svm_top1"} and scores["svm_top1"] > 0.8
    assert [row["cost"] for row in details["linear_svm"]] == [0.01, 0.1, 1.0, 10.0]
    assert scored(lambda: LinearSvm(FACTS), KNOWN, ASKED, 3) == (scores, details)


def test_machines_are_one_against_the_others_with_heavier_samples_of_the_class() -> None:
    """As VISSL trains them one by one, with weights {1: 2, -1: 1}."""
    from sklearn.svm import LinearSVC

    features = normalize_rows(FEATURES.numpy())
    evaluator = LinearSvm(FACTS, costs=[1.0])
    weights = dict.fromkeys(range(3), 2.0)
    found = evaluator._fit(features, LABELS.numpy(), weights, "accuracy").decision_function(features)
    for k in range(3):
        machine = LinearSVC(C=1.0, class_weight={1: 2, -1: 1}, loss="squared_hinge", tol=1e-8, max_iter=20000)
        machine.fit(features, np.where(LABELS.numpy() == k, 1, -1))
        assert found[:, k] == pytest.approx(machine.decision_function(features), abs=2e-3)


def test_several_labels_an_image_have_a_cost_for_each_class() -> None:
    scores, details = scored(lambda: LinearSvm(SEVERAL, costs=[0.1, 1.0]), with_several(KNOWN), with_several(ASKED))
    assert scores.keys() == {"svm_mAP"} and 0.8 < scores["svm_mAP"] <= 1
    rows = [(row["class"], row["cost"]) for row in details["linear_svm"]]
    assert rows == [(name, cost) for name in FACTS.classes for cost in (0.1, 1.0)]


def test_length_says_nothing() -> None:
    longer = [({"embedding": 100 * said["embedding"]}, batch) for said, batch in KNOWN]
    assert scored(lambda: LinearSvm(FACTS), longer, ASKED)[0] == scored(lambda: LinearSvm(FACTS), KNOWN, ASKED)[0]
    assert normalize_rows(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)).tolist() == [[0.6, 0.8], [0.0, 0.0]]


@pytest.mark.parametrize("several", [False, True])
def test_a_class_with_fewer_samples_than_folds_is_reported(several: bool) -> None:
    known = batches(FEATURES[:5], LABELS[:5])  # two of a, two of b, one of c
    dataset_info, known = (SEVERAL, with_several(known)) if several else (FACTS, known)
    with pytest.raises(DataMismatch, match=r"3 folds .* fewer of .*c \(1\)"):
        scored(lambda: LinearSvm(dataset_info), known, with_several(ASKED) if several else ASKED)


@pytest.mark.parametrize("keys", [{"costs": []}, {"folds": 1}], ids=["costs", "folds"])
def test_there_must_be_something_to_choose_by(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="one cost or more, and two folds or more"):
        LinearSvm(FACTS, **keys)


def test_data_without_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="linear_svm: every image of the data needs labels"):
        LinearSvm(DatasetInfo(samples=1))
