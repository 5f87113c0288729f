"""Confident learning and neighbors: cases computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from opabinia.contracts import DataMismatch
from opabinia.evaluation.label_errors.classification import (
    ClassificationCheck,
    class_thresholds,
    confident_classes,
    confident_joint,
    estimated_errors,
    neighbor_votes,
    normalized_margin,
    self_confidence,
    suspicion,
)

LABELS = np.array([0, 0, 0, 1, 1])
PROBABILITIES = np.array([[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.1, 0.9, 0.0], [0.2, 0.8, 0.0], [0.4, 0.6, 0.0]])
"""The third sample is labeled 0 and looks like 1; no sample is labeled 2."""


def test_thresholds_are_means_and_infinite_for_a_class_without_samples() -> None:
    thresholds = class_thresholds(LABELS, PROBABILITIES)
    assert thresholds.tolist() == pytest.approx([1.6 / 3, 0.7, np.inf])


def test_confident_classes_reach_their_threshold() -> None:
    assert confident_classes(LABELS, PROBABILITIES).tolist() == [0, 0, 1, 1, -1]


def test_of_several_classes_above_their_threshold_the_most_probable_counts() -> None:
    labels = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.45, 0.55], [0.5, 0.5], [0.6, 0.4], [0.62, 0.38]])
    assert confident_classes(labels, probabilities).tolist() == [1, 0, 0, 0]  # equal ones: the first class


def test_confident_joint_and_the_estimate_from_it() -> None:
    assert confident_joint(LABELS, PROBABILITIES).tolist() == [[2, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert estimated_errors(LABELS, PROBABILITIES) == pytest.approx(1.0)  # a third of 3, and none of 2


def test_a_sample_that_has_the_mean_probability_is_confident() -> None:
    """The mean of equal numbers may be larger by rounding."""
    probabilities = np.full((7, 2), [0.1, 0.9])
    assert confident_classes(np.ones(7, dtype=np.int64), probabilities).tolist() == [1] * 7


def test_self_confidence_and_margin() -> None:
    assert self_confidence(LABELS, PROBABILITIES).tolist() == [0.9, 0.6, 0.1, 0.8, 0.6]
    assert normalized_margin(LABELS, PROBABILITIES).tolist() == pytest.approx([0.9, 0.6, 0.1, 0.8, 0.6])
    three = np.array([[0.5, 0.3, 0.2]])
    assert [normalized_margin(np.array([k]), three)[0] for k in range(3)] == pytest.approx([0.6, 0.4, 0.35])


def test_one_class() -> None:
    labels, probabilities = np.zeros(3, dtype=np.int64), np.array([[1.0], [0.5], [1.0]])
    assert normalized_margin(labels, probabilities).tolist() == [1.0, 0.5, 1.0]
    assert confident_joint(labels, probabilities).tolist() == [[2]]
    assert estimated_errors(labels, probabilities) == 0


def test_neighbors_vote_without_the_sample_itself() -> None:
    embeddings = np.array([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0], [0.01, 1.0], [0.0, 2.0]])
    votes = neighbor_votes(np.array([0, 1, 1, 1, 1]), embeddings, 2, k=1)
    assert votes.tolist() == [[0, 1], [1, 0], [0, 1], [0, 1], [0, 1]]


def test_fewer_samples_than_neighbors() -> None:
    embeddings = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    votes = neighbor_votes(np.array([0, 1, 1]), embeddings, 2, k=10)
    assert votes.tolist() == [[0, 1], [0.5, 0.5], [0.5, 0.5]]
    assert neighbor_votes(np.array([0]), embeddings[:1], 2).tolist() == [[0, 0]]


def test_votes_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    labels, embeddings = rng.integers(0, 3, 40), rng.normal(size=(40, 4))
    whole = neighbor_votes(labels, embeddings, 3)
    monkeypatch.setattr("opabinia.evaluation.representation.knn._MAX_SIMILARITIES", 40 * 7)
    np.testing.assert_allclose(neighbor_votes(labels, embeddings, 3), whole, atol=1e-6)


def test_suspicion_multiplies_the_probabilities_of_model_and_neighbors() -> None:
    labels, probabilities = np.array([0, 0, 0]), np.array([[0.2, 0.8], [0.2, 0.8], [0.2, 0.8]])
    votes = np.array([[0.5, 0.5], [0.0, 1.0], [0.0, 0.0]])
    expected = [1 - 0.2 * 11 / 21, 1 - 0.2 / 21, 0.8]  # without neighbors that of the model alone
    assert suspicion(labels, probabilities, votes).tolist() == pytest.approx(expected)


# --- the check --------------------------------------------------------------------------------------------------------


def clusters(classes: int = 3, of_class: int = 20) -> tuple[NDArray[np.int64], torch.Tensor, torch.Tensor]:
    """Labels, probabilities and embeddings of clearly separate classes."""
    labels = np.repeat(np.arange(classes), of_class)
    probabilities = torch.full((len(labels), classes), 0.1 / (classes - 1))
    probabilities[torch.arange(len(labels)), torch.from_numpy(labels)] = 0.9
    noise = torch.from_numpy(np.random.default_rng(0).normal(scale=0.05, size=(len(labels), classes)))
    return labels, probabilities, torch.eye(classes)[torch.from_numpy(labels)] + noise


def check_of(labels: NDArray[np.int64], probabilities: torch.Tensor, embeddings: torch.Tensor | None, name: str = "s"):  # type: ignore[no-untyped-def]
    check = ClassificationCheck()
    predictions = {"probabilities": probabilities} | ({} if embeddings is None else {"embedding": embeddings})
    check.update(predictions, {"label": torch.from_numpy(labels), "id": [f"{name}{i}" for i in range(len(labels))]})
    return check


@pytest.mark.parametrize("with_features", [True, False])
def test_flipped_labels_are_found(with_features: bool) -> None:
    labels, probabilities, embeddings = clusters()
    labels[[3, 25, 50]] = [1, 2, 0]
    check = check_of(labels, probabilities, embeddings if with_features else None)
    found = ClassificationCheck.find([check], ["cat", "dog", "owl"])
    by_id = {suspect.id: suspect for suspect in found.suspects}
    flips = {name: (suspect.label, suspect.predicted) for name, suspect in by_id.items()}
    assert flips == {"s3": ("dog", "cat"), "s25": ("owl", "dog"), "s50": ("cat", "owl")}
    assert all(0.9 < suspect.score <= 1 for suspect in found.suspects)
    assert "dog has probability 0.90, the label 0.05" in by_id["s25"].reason
    assert ("of the votes of the 20 nearest samples" in by_id["s25"].reason) == with_features
    assert found.facts == {"wrong labels, estimated by confident learning": "3 of 60"}


def test_clean_labels_are_not_listed() -> None:
    assert ClassificationCheck.find([check_of(*clusters())], "abc").suspects == []


def test_neighbors_are_of_the_same_run() -> None:
    """The embeddings of the second model have another meaning: the mirrored classes."""
    labels, probabilities, embeddings = clusters(2)
    checks = [check_of(labels, probabilities, embeddings), check_of(labels, probabilities, embeddings.flip(1), "t")]
    assert ClassificationCheck.find(checks, "ab").suspects == []


def test_equal_scores_are_sorted_by_id_and_unlabeled_samples_are_ignored() -> None:
    labels, probabilities, _ = clusters(2)
    labels[[7, 5]] = 1
    labels[9] = -1
    found = ClassificationCheck.find([check_of(labels, probabilities, None)], "ab")
    assert [suspect.id for suspect in found.suspects] == ["s5", "s7"]


def test_probabilities_that_are_no_numbers_are_an_error() -> None:
    labels, probabilities, embeddings = clusters()
    probabilities[4] = torch.nan
    with pytest.raises(DataMismatch, match=r"1 of 60 samples .* the first is s4"):
        ClassificationCheck.find([check_of(labels, probabilities, embeddings)], "abc")


def test_views_of_a_video_are_averaged() -> None:
    check = ClassificationCheck()
    probabilities = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.8, 0.2], [0.4, 0.6]])
    check.update({"probabilities": probabilities}, {"label": torch.tensor([0, 1, 0, 1]), "id": ["a", "b", "a", "b"]})
    samples = check.samples()
    assert samples.ids == ["a", "b"] and samples.labels.tolist() == [0, 1]
    np.testing.assert_allclose(samples.probabilities, [[0.85, 0.15], [0.25, 0.75]], atol=1e-6)
    check.update({"probabilities": probabilities[:1]}, {"label": torch.tensor([1]), "id": ["a"]})
    with pytest.raises(DataMismatch, match="called a, and have different labels"):
        check.samples()
