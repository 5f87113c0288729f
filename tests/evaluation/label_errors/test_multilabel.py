"""Labels of data with several labels for each sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opabinia.contracts import DataMismatch
from opabinia.evaluation.label_errors.multilabel import MultiLabelCheck, class_errors, class_suspicion


def test_suspicion_is_the_probability_of_the_opposite() -> None:
    scores = class_suspicion(np.array([[1, 0]]), np.array([[0.9, 0.3]]))
    assert scores.tolist() == [[pytest.approx(0.1), pytest.approx(0.3)]]


def test_labels_that_should_be_there_and_that_should_not() -> None:
    labels = np.tile([[1, 0], [0, 1]], (10, 1))
    probabilities = np.where(labels > 0, 0.9, 0.1).astype(float)
    labels[4] = [1, 1]  # the second class is predicted with 0.1
    labels[7] = [0, 0]  # with 0.9
    assert np.argwhere(class_errors(labels, probabilities)).tolist() == [[4, 1], [7, 1]]

    check = MultiLabelCheck()
    batch = {"label": torch.from_numpy(labels).float(), "id": [f"s{i}" for i in range(len(labels))]}
    check.update({"probabilities": torch.from_numpy(probabilities)}, batch)
    found = MultiLabelCheck.find([check], ["cat", "dog"])
    rows = [(suspect.id, suspect.label, suspect.predicted, suspect.reason) for suspect in found.suspects]
    assert rows == [
        ("s4", "cat; dog", "cat", "dog is labeled, predicted 0.10"),
        ("s7", "no class", "dog", "dog is not labeled, predicted 0.90"),
    ]
    assert found.facts == {"wrong labels, estimated by confident learning": "2 of 40"}


def test_a_class_that_no_sample_has() -> None:
    labels = np.zeros((6, 1), dtype=np.int64)
    assert not class_errors(labels, np.full((6, 1), 0.9)).any()


def test_probabilities_that_are_no_numbers_are_an_error() -> None:
    check = MultiLabelCheck()
    check.update({"probabilities": torch.tensor([[0.5, torch.nan]])}, {"label": torch.zeros(1, 2), "id": ["a"]})
    with pytest.raises(DataMismatch, match="the first is a"):
        MultiLabelCheck.find([check], "ab")
