"""Clustering of embeddings, and agreement of clusters and classes."""

import numpy as np
import pytest
import torch

from opabinia.contracts import DataMismatch, DatasetInfo
from opabinia.evaluation.representation.clustering import Clustering, contingency, matched_accuracy, purity
from tests.evaluation.features import DATASET_INFO, batches, class_clusters, evaluate_batches

SEPARATED = batches(*class_clusters(torch.eye(3, 6), 10, 0.05))


def test_separated_classes_are_recovered() -> None:
    scores, details = evaluate_batches(lambda: Clustering(DATASET_INFO), [], SEPARATED)
    assert scores == {"nmi": pytest.approx(1), "ari": 1.0, "purity": 1.0, "matched": 1.0}
    assert {tuple(row["classes"].items()) for row in details["clusters"]} == {(("a", 10),), (("b", 10),), (("c", 10),)}


def test_more_clusters_than_classes_are_pure_but_not_matched() -> None:
    scores, details = evaluate_batches(lambda: Clustering(DATASET_INFO, k=6), [], SEPARATED)
    assert scores["purity"] == 1.0
    assert scores["matched"] < 1 and scores["nmi"] < 1
    sizes = [row["samples"] for row in details["clusters"]]
    assert len(sizes) == 6 and sum(sizes) == 30 and sizes == sorted(sizes, reverse=True)


def test_random_embeddings_score_at_chance() -> None:
    embeddings = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    scores, _ = evaluate_batches(lambda: Clustering(DATASET_INFO), [], batches(embeddings, torch.arange(300) % 3))
    assert abs(scores["ari"]) < 0.05 and scores["nmi"] < 0.05
    assert 1 / 3 <= scores["matched"] <= scores["purity"] < 0.45


def test_normalization_clusters_by_direction() -> None:
    """Features of two directions differ more in length than in direction."""
    features = torch.tensor([[1.0, 0.0], [10.0, 0.0], [0.0, 1.0], [0.0, 10.0]]) * torch.ones(5, 1, 1)
    data = batches(features.flatten(0, 1), torch.tensor([0, 0, 1, 1]).repeat(5))
    dataset_info = DatasetInfo(samples=20, classes=("a", "b"))
    assert evaluate_batches(lambda: Clustering(dataset_info), [], data)[0]["matched"] == 1
    assert evaluate_batches(lambda: Clustering(dataset_info, normalize=False), [], data)[0]["matched"] == 0.75


def test_tables_by_hand() -> None:
    table = contingency(np.array([0, 0, 0, 1, 0, 1, 1, 1]), np.array([0, 0, 0, 1, 1, 1, 0, 0]), 2)
    assert table.tolist() == [[3, 1], [2, 2]]
    assert purity(table) == matched_accuracy(table) == 5 / 8
    assert matched_accuracy(np.array([[3, 1], [3, 1]])) == 0.5 < purity(np.array([[3, 1], [3, 1]]))
    assert matched_accuracy(np.array([[2, 0], [2, 0], [0, 2]])) == 4 / 6


def test_fewer_samples_than_clusters_are_reported() -> None:
    with pytest.raises(DataMismatch, match="30 samples are fewer than 31 clusters; lower k"):
        evaluate_batches(lambda: Clustering(DATASET_INFO, k=31), [], SEPARATED)
