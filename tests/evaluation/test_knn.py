"""k-NN votes of training samples, compared with VISSL's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import DataMismatch, DatasetInfo
from opabinia.evaluation.representation import knn
from opabinia.evaluation.representation.knn import Knn, knn_votes
from tests.evaluation.features import DATASET_INFO, batches, class_clusters, evaluate_batches

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "selfsup" / "knn.json").read_text())
BANK, QUERIES = (torch.tensor(GOLDEN["inputs"][name], dtype=torch.float64) for name in ("train", "test"))
LABELS = torch.tensor(GOLDEN["inputs"]["train_labels"])
CASES: dict[str, dict[str, Any]] = {
    "sigma=.1,k=3,L2norm=True": {"temperature": 0.1, "k": 3},
    "sigma=.1,k=3,L2norm=False": {"temperature": 0.1, "k": 3, "normalize": False},
    "sigma=1,k=5,L2norm=True": {"temperature": 1.0, "k": 5},
}
"""Options of :func:`knn_votes` by VISSL's notation."""


def all_votes(queries: Tensor, **options: Any) -> Tensor:
    return torch.cat(list(knn_votes(queries, BANK, LABELS, 3, **options)))


def test_all_training_samples_vote_if_fewer_than_k() -> None:
    """VISSL raises here."""
    torch.testing.assert_close(all_votes(QUERIES, k=200, temperature=0.1), all_votes(QUERIES, k=6, temperature=0.1))


@pytest.mark.parametrize("block", [1, 2, 3, 4, 1000])
def test_the_block_size_does_not_change_votes(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """VISSL raises if blocks do not divide the queries evenly."""
    expected = all_votes(QUERIES, k=4)
    monkeypatch.setattr(knn, "_MAX_SIMILARITIES", block * len(BANK))
    blocks = list(knn_votes(QUERIES, BANK, LABELS, 3, k=4))
    assert len(blocks) == -(-len(QUERIES) // block)
    torch.testing.assert_close(torch.cat(blocks), expected)


def test_no_vote_overflows() -> None:
    """exp(1 / 0.001) would overflow."""
    votes = all_votes(QUERIES, temperature=0.001)
    assert votes.isfinite().all() and votes.amax(1).ge(1).all()


def test_the_host_waits_once_for_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "_MAX_SIMILARITIES", 1)
    features, labels = class_clusters(torch.eye(3), 7, 0.1)
    evaluator = Knn(DATASET_INFO, k=3)
    for batch in batches(features, labels):
        evaluator.learn(*batch)
        evaluator.update(*batch)
    states, waits, original = [evaluator.state()], [], Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: (waits.append(1), original(tensor))[1])
    assert evaluator.compute(states)["knn_top1"] > 0.9
    assert len(waits) == 1


def test_top5_is_reported_with_more_than_five_classes() -> None:
    dataset_info = DatasetInfo(samples=7, classes=tuple("abcdefg"))
    data = batches(*class_clusters(torch.eye(7), 2, 0.0))
    scores, _ = evaluate_batches(lambda: Knn(dataset_info, k=1), data, data)
    assert scores == {"knn_top1": 1.0, "knn_top5": 1.0}


def test_missing_labels_and_non_finite_embeddings_are_reported() -> None:
    train = batches(*class_clusters(torch.eye(3), 2, 0.0))
    with pytest.raises(DataMismatch, match="no training samples"):
        evaluate_batches(lambda: Knn(DATASET_INFO), [], train)
    with pytest.raises(DataMismatch, match="needs a label"):
        evaluate_batches(lambda: Knn(DATASET_INFO), train, batches(torch.eye(3), None))
    non_finite = torch.eye(3)
    non_finite[1, 1] = torch.nan
    with pytest.raises(DataMismatch, match="1 of 3 embeddings are not finite, the first that of 1"):
        evaluate_batches(lambda: Knn(DATASET_INFO), train, batches(non_finite, torch.arange(3)))
