"""Confusion matrix, calibration and multi-label scores: by hand, by definition, and split over processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from opabinia.evaluation.classification.confusion import Calibration, Confusion
from opabinia.evaluation.classification.multilabel import MultiLabel, attribute_scores, average_precision

NAMES = ("cat", "dog", "emu")


def evaluate(make: Callable[[], Any], logits: Tensor, labels: Tensor, cuts: list[int]) -> tuple[dict[str, float], Any]:
    """Return scores and tables of several processes, each with a part of the samples, in batches of 3."""
    states = []
    edges = [0, *sorted(cuts), len(labels)]
    for first, last in pairwise(edges):
        evaluator = make()
        for start in range(first, last, 3):
            rows = slice(start, min(start + 3, last))
            evaluator.update({"logits": logits[rows]}, {"label": labels[rows]})
        states.append(evaluator.state())
    return make().compute(states), make().details(states)


def test_confusion_by_hand() -> None:
    logits = torch.eye(3)[[0, 0, 1, 1, 1]]
    scores, tables = evaluate(lambda: Confusion(NAMES), logits, torch.tensor([0, 1, 1, 1, 0]), [])
    assert scores["mean_recall"] == pytest.approx((1 / 2 + 2 / 3) / 2)  # classes without samples (emu) are omitted
    assert scores["macro_f1"] == pytest.approx((2 / 4 + 4 / 6) / 2)
    assert tables["confusion"] == [[0, 1, 1], [1, 0, 1], [1, 1, 2], [0, 0, 1]]
    assert tables["per_class"][1] == {
        **{"class": "dog", "samples": 3, "recall": pytest.approx(2 / 3)},
        **{"precision": pytest.approx(2 / 3), "f1": pytest.approx(2 / 3)},
    }


def test_the_first_class_is_predicted_for_equal_logits() -> None:
    _, tables = evaluate(lambda: Confusion(NAMES), torch.ones(1, 3), torch.tensor([2]), [])
    assert tables["confusion"] == [[2, 0, 1]]


def test_calibration_by_hand() -> None:
    """Four samples with confidence 0.7, three of them correct; one wrong with confidence 1."""
    logits = torch.tensor([[0.7, 0.3]] * 4 + [[1.0, 0.0]]).log()
    scores, tables = evaluate(lambda: Calibration(10), logits.clamp(min=-200), torch.tensor([0, 0, 0, 1, 1]), [])
    assert scores["ece"] == pytest.approx((4 * 0.05 + 1 * 1.0) / 5, abs=1e-6)
    assert scores["nll"] == pytest.approx((3 * -math.log(0.7) - math.log(0.3) + 100) / 5, abs=1e-6)
    assert [row["samples"] for row in tables["calibration"]] == [4, 1]


def test_non_finite_logits_count_as_wrong_with_confidence_1() -> None:
    scores, _ = evaluate(Calibration, torch.tensor([[math.nan, 0.0]]), torch.tensor([0]), [])
    assert scores == {"ece": 1.0, "nll": 100.0}


@given(st.integers(0, 2**31), st.lists(st.integers(0, 20), max_size=3), st.permutations(range(20)))
def test_split_and_order_of_samples_change_no_digit(seed: int, cuts: list[int], order: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(20, 3, generator=generator), torch.randint(3, (20,), generator=generator)
    multi_labels = torch.randint(2, (20, 3), generator=generator).float()
    makers: list[tuple[Callable[[], Any], Tensor]] = [
        *((lambda: Confusion(NAMES), labels), (Calibration, labels), (lambda: MultiLabel(NAMES), multi_labels))
    ]
    for make, targets in makers:
        assert evaluate(make, logits, targets, []) == evaluate(make, logits[order], targets[order], cuts)


# --- multi-label ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "targets", "expected"),
    [
        ([0.9, 0.8, 0.7], [1, 0, 1], (1 + 2 / 3) / 2),
        ([0.5, 0.5, 0.5, 0.1], [1, 0, 0, 1], (1 / 3 + 2 / 4) / 2),  # equal scores share a threshold
        ([0.1, 0.2], [1, 1], 1.0),
        ([0.1, 0.2], [0, 0], math.nan),
    ],
)
def test_average_precision(scores: list[float], targets: list[int], expected: float) -> None:
    assert average_precision(np.array(scores), np.array(targets)) == pytest.approx(expected, nan_ok=True)


@given(st.integers(0, 2**31))
def test_average_precision_by_its_definition(seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores, targets = generator.integers(0, 5, 12) / 4, generator.integers(0, 2, 12)
    area, previous_recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        predicted = scores >= threshold
        recall = targets[predicted].sum() / max(1, targets.sum())
        area, previous_recall = area + (recall - previous_recall) * targets[predicted].mean(), recall
    if targets.any():
        assert average_precision(scores, targets) == pytest.approx(area)


def test_multi_label_scores_by_hand() -> None:
    logits = torch.tensor([[2.0, -1, -1], [1, 3, -1], [-2, 2, -1]])
    labels = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0]])
    scores, tables = evaluate(lambda: MultiLabel(NAMES), logits, labels, [1])
    assert scores["mAP"] == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2)
    assert scores["micro_f1"] == pytest.approx(2 * 3 / (4 + 4))
    assert scores["macro_f1"] == pytest.approx((2 * 1 / 4 + 1) / 2)
    assert tables["per_class"][2] == {"class": "emu", "samples": 0, "AP": None, "f1": 0.0}


# --- attributes of persons --------------------------------------------------------------------------------------------


def test_attributes_by_hand() -> None:
    probabilities, labels = torch.tensor([[0.9, 0.8], [0.2, 0.5]]), torch.tensor([[1, 0], [0, 1]])
    assert attribute_scores(probabilities, labels) == pytest.approx(
        {"mA": 0.75, "accuracy": 0.75, "precision": 0.75, "recall": 1.0, "f1": 2 * 0.75 / 1.75}
    )


def attribute_scores_of_both(seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the scores of random attributes, and those by scikit-learn."""
    from sklearn import metrics

    random = np.random.default_rng(seed)
    labels, probabilities = random.integers(0, 2, (40, 7)), random.random((40, 7))
    labels[:, 0], probabilities[:, 0] = 1, 0.9  # every sample has the first attribute, and it is predicted for all
    labels[0, 1:], labels[1, 1:] = 0, 1
    scores = attribute_scores(torch.from_numpy(probabilities), torch.from_numpy(labels), threshold=0.4)
    predicted = probabilities >= 0.4
    precision = metrics.precision_score(labels, predicted, average="samples")
    recall = metrics.recall_score(labels, predicted, average="samples")
    columns = range(1, 7)
    balanced = [metrics.balanced_accuracy_score(labels[:, column], predicted[:, column]) for column in columns]
    expected = {
        "mA": np.mean(balanced),  # every sample has the first attribute
        "accuracy": metrics.jaccard_score(labels, predicted, average="samples"),
        **{"precision": precision, "recall": recall, "f1": 2 * precision * recall / (precision + recall)},
    }
    return scores, expected


def test_samples_without_attributes_are_ignored_in_means() -> None:
    scores = attribute_scores(torch.tensor([[0.1, 0.1], [0.9, 0.1]]), torch.tensor([[0, 0], [1, 0]]))
    assert {scores[name] for name in ("accuracy", "precision", "recall", "f1", "mA")} == {1.0}
