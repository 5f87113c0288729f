"""Votes of the nearest training samples, beside VISSL's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import DataMismatch, DatasetInfo
from opabinia.evaluation.representation import knn
from opabinia.evaluation.representation.knn import Knn, knn_votes
from tests.evaluation.features import FACTS, around, batches, scored

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "selfsup" / "knn.json").read_text())
BANK, QUERIES = (torch.tensor(GOLDEN["inputs"][name], dtype=torch.float64) for name in ("train", "test"))
LABELS = torch.tensor(GOLDEN["inputs"]["train_labels"])
CASES: dict[str, dict[str, Any]] = {
    "sigma=.1,k=3,L2norm=True": {"temperature": 0.1, "k": 3},
    "sigma=.1,k=3,L2norm=False": {"temperature": 0.1, "k": 3, "normalize": False},
    "sigma=1,k=5,L2norm=True": {"temperature": 1.0, "k": 5},
}
"""How VISSL writes them, and we."""


def all_votes(queries: Tensor, **how: Any) -> Tensor:
    return torch.cat(list(knn_votes(queries, BANK, LABELS, 3, **how)))


@pytest.mark.parametrize("case", GOLDEN["outputs"])
def test_votes_are_those_of_vissl(case: str) -> None:
    expected = torch.tensor(GOLDEN["outputs"][case]["class_weights"], dtype=torch.float64)
    found = all_votes(QUERIES, **CASES[case])
    # Ours are divided by the vote of the nearest; shares are the same.
    shares = [one / one.sum(1, keepdim=True) for one in (found, expected)]
    torch.testing.assert_close(*shares, rtol=GOLDEN["tolerance"], atol=1e-7)
    assert found.argmax(1).tolist() == GOLDEN["outputs"][case]["pred"]


def test_of_fewer_training_samples_than_k_all_vote() -> None:
    """VISSL fails there."""
    torch.testing.assert_close(all_votes(QUERIES, k=200, temperature=0.1), all_votes(QUERIES, k=6, temperature=0.1))


@pytest.mark.parametrize("block", [1, 2, 3, 4, 1000])
def test_blocks_of_any_size_give_the_same(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """VISSL fails where they do not divide the queries."""
    expected = all_votes(QUERIES, k=4)
    monkeypatch.setattr(knn, "_MAX_SIMILARITIES", block * len(BANK))
    blocks = list(knn_votes(QUERIES, BANK, LABELS, 3, k=4))
    assert len(blocks) == -(-len(QUERIES) // block)
    torch.testing.assert_close(torch.cat(blocks), expected)


def test_one_query_is_enough() -> None:
    assert all_votes(QUERIES[:1], k=3).argmax(1).tolist() == [0]


def test_no_vote_overflows() -> None:
    """exp(1 / 0.001) would."""
    found = all_votes(QUERIES, temperature=0.001)
    assert found.isfinite().all() and found.amax(1).ge(1).all()


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_scores_are_the_same_on_any_number_of_processes(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "_MAX_SIMILARITIES", 100)
    known, asked = (batches(*around(torch.eye(3, 5), each, 0.5, seed=each)) for each in (11, 8))
    scores, _ = scored(lambda: Knn(FACTS, k=5), known, asked, processes)
    assert scores == scored(lambda: Knn(FACTS, k=5), known, asked)[0]
    assert scores.keys() == {"knn_top1"} and 0.5 < scores["knn_top1"] < 1


def test_top5_is_reported_of_more_than_five_classes() -> None:
    dataset_info = DatasetInfo(samples=7, classes=tuple("abcdefg"))
    known = batches(*around(torch.eye(7), 2, 0.0))
    scores, _ = scored(lambda: Knn(dataset_info, k=1), known, known)
    assert scores == {"knn_top1": 1.0, "knn_top5": 1.0}


def test_a_set_without_samples_has_no_score() -> None:
    assert scored(lambda: Knn(FACTS), batches(*around(torch.eye(3), 2, 0.0)), [])[0] == {}


def test_what_cannot_be_compared_is_reported() -> None:
    known = batches(*around(torch.eye(3), 2, 0.0))
    with pytest.raises(DataMismatch, match="no training samples"):
        scored(lambda: Knn(FACTS), [], known)
    with pytest.raises(DataMismatch, match="needs a label"):
        scored(lambda: Knn(FACTS), known, batches(torch.eye(3), None))
    wrong = torch.eye(3)
    wrong[1, 1] = torch.nan
    with pytest.raises(DataMismatch, match="1 of 3 embeddings are not finite, the first that of 1"):
        scored(lambda: Knn(FACTS), known, batches(wrong, torch.arange(3)))


@pytest.mark.parametrize(
    "dataset_info",
    [
        DatasetInfo(samples=1),
        DatasetInfo(samples=1, classes=("a",)),
        DatasetInfo(samples=1, classes=("a", "b"), multi_label=True),
    ],
    ids=["no classes", "one class", "several labels"],
)
def test_data_without_one_label_an_image_is_refused(dataset_info: DatasetInfo) -> None:
    with pytest.raises(ValueError, match="knn: every image of the data needs one label"):
        Knn(dataset_info)
