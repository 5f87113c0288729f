"""Split and merged identities, by constructed embeddings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opabinia.contracts import DataMismatch
from opabinia.evaluation.label_errors.identities import (
    MERGED,
    SPLIT,
    IdentityCheck,
    silhouette,
    split_scores,
    two_clusters,
    within_similarity,
)
from opabinia.evaluation.label_errors.suspects import Floats, LabelErrors


def embeddings_of(people: list[int], noise: float = 0.25, seed: int = 0) -> Floats:
    """Return an embedding of an image of each person."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(max(people) + 1, 32)) / 32**0.5
    return centers[people] + noise * rng.normal(size=(len(people), 32)) / 32**0.5


def check(labels: list[int], embeddings: Floats) -> IdentityCheck:
    result = IdentityCheck()
    for start in range(0, len(labels), 7):
        part = slice(start, start + 7)
        ids = [f"{index}.jpg" for index in range(start, start + len(labels[part]))]
        batch = {"label": torch.tensor(labels[part]), "id": ids}
        result.update({"embedding": torch.tensor(embeddings[part])}, batch)
    return result


def find(labels: list[int], embeddings: Floats) -> LabelErrors:
    return IdentityCheck.find([check(labels, embeddings)], [f"p{label}" for label in range(max(labels) + 1)])


PEOPLE = [person for person in range(12) for _ in range(6)]


def test_right_labels_are_not_listed() -> None:
    found = find(PEOPLE, embeddings_of(PEOPLE))
    assert found.suspects == [] and found.facts == {"identities": "12"}


def test_a_person_under_two_labels() -> None:
    labels = [12 if row in (0, 1) else person for row, person in enumerate(PEOPLE)]
    found = find(labels, embeddings_of(PEOPLE))
    assert [(suspect.id, suspect.issue) for suspect in found.suspects] == [("0.jpg", SPLIT), ("1.jpg", SPLIT)]
    first = found.suspects[0]
    assert (first.label, first.predicted) == ("p12", "p0") and first.score > 0.7
    assert "mean similarity with the images of p0 0.9" in first.reason


def test_two_people_under_one_label() -> None:
    labels = [0 if person == 1 and row < 10 else person for row, person in enumerate(PEOPLE)]
    labels = [0 if label == 1 else label for label in labels]
    people = [person for row, person in enumerate(PEOPLE) if row not in (10, 11)]
    labels = [label for row, label in enumerate(labels) if row not in (10, 11)]
    found = find(labels, embeddings_of(people))
    merged = [suspect for suspect in found.suspects if suspect.issue == MERGED]
    assert sorted(suspect.id for suspect in merged) == ["6.jpg", "7.jpg", "8.jpg", "9.jpg"]
    assert merged[0].label == "p0" and merged[0].predicted == "" and "4 of its 10 images" in merged[0].reason


def test_cameras_of_a_person_are_no_people() -> None:
    """A shift of each second image makes two clusters, which are nearer to each other than to other people."""
    embeddings = embeddings_of(PEOPLE, noise=0.1)
    shift = np.random.default_rng(9).normal(size=32) / 32**0.5
    embeddings[::2] += 0.6 * shift
    assert silhouette(_unit(embeddings[:6]), np.arange(6) % 2 == 0) > 0.5
    assert [suspect for suspect in find(PEOPLE, embeddings).suspects if suspect.issue == MERGED] == []


def _unit(embeddings: Floats) -> Floats:
    rows: Floats = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    return rows


def test_silhouette_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import silhouette_score

    embeddings = _unit(embeddings_of([0, 0, 0, 1, 1, 1, 1], noise=0.8))
    second = np.array([False, False, False, True, True, True, True])
    assert silhouette(embeddings, second) == pytest.approx(silhouette_score(embeddings, second, metric="cosine"))


def test_clusters_similarities_and_scores() -> None:
    embeddings = _unit(embeddings_of([0, 1, 0, 1, 1]))
    assert two_clusters(embeddings).tolist() in ([False, True, False, True, True], [True, False, True, False, False])
    assert within_similarity(np.array([[1.0, 0.2], [0.2, 1]])) == pytest.approx(0.2)
    assert np.isnan(within_similarity(np.ones((1, 1))))
    between = np.array([[0.9, 0.5, 0.1], [0.5, 0.8, 0.1], [0.1, 0.1, 0.7]])
    scores = split_scores(between, 0.6, 0.4)
    assert scores == pytest.approx(np.array([[0, 0.5, 0], [0.5, 0, 0], [0, 0, 0]]))


def test_few_images_and_equal_ones() -> None:
    assert find([0], embeddings_of([0])).suspects == []
    assert find([0, 0, 0, 0], np.ones((4, 3))).suspects == []
    with pytest.raises(DataMismatch, match=r"the embedding of 1\.jpg is not finite"):
        find([0, 1], np.array([[1.0, 0], [np.nan, 0]]))
