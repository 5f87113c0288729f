"""The same object in other images: whitening, trapezoids, lists of answers, and the evaluator."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from opabinia.contracts import DataMismatch, DatasetInfo
from opabinia.evaluation.retrieval.distances import MatrixDistances
from opabinia.evaluation.retrieval.ranking import Matches, rank
from opabinia.evaluation.retrieval.retrieval import evaluate_lists, revisited
from opabinia.evaluation.retrieval.retrieval_evaluators import InstanceRetrieval
from opabinia.evaluation.retrieval.whitening import whitening
from opabinia.models.pooling import rmac_descriptors

GOLDEN = Path(__file__).parent.parent / "golden" / "selfsup"


# --- whitening --------------------------------------------------------------------------------------------------------


def test_vissls_whitening() -> None:
    """VISSL scales by the sum of products, not by their mean, and changes its input."""
    case = json.loads((GOLDEN / "pca_whiten.json").read_text())
    vectors = torch.tensor(case["inputs"]["X"])
    before = vectors.clone()
    found = whitening(vectors, 2)(vectors).abs() / math.sqrt(len(vectors))
    torch.testing.assert_close(found, torch.tensor(case["outputs"]["abs_transformed"]), atol=1e-5, rtol=1e-5)
    assert torch.equal(vectors, before)


def vectors_of(count: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    turn = torch.randn(width, width, generator=generator)
    return torch.randn(count, width, generator=generator) @ turn + 5


def test_components_do_not_vary_together_and_all_equally() -> None:
    found = whitening(vectors_of(500, 6))(vectors_of(500, 6))
    torch.testing.assert_close(torch.cov(found.T, correction=0), torch.eye(6), atol=1e-3, rtol=0)


def test_the_first_components_are_those_that_vary_most() -> None:
    vectors = torch.randn(400, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 30.0, 5.0])
    directions = whitening(vectors, 2).directions
    assert directions.shape == (2, 3)
    assert directions.abs().argmax(1).tolist() == [1, 2]
    assert (directions.gather(1, directions.abs().argmax(1, keepdim=True)) > 0).all(), "the side is known"


def test_few_vectors_have_few_directions() -> None:
    """Four points lie in three directions; what is noise in the other seven is not made loud."""
    learned = whitening(vectors_of(4, 10), 8)
    assert learned.directions.shape == (3, 10)
    assert learned(vectors_of(50, 10)).isfinite().all()


@pytest.mark.parametrize(
    ("vectors", "text"),
    [
        (torch.ones(3, 2), "the 3 vectors are all the same"),
        (torch.ones(0, 2), "no vectors"),
        (torch.tensor([[1.0, torch.nan], [0.0, 1.0]]), "not finite"),
    ],
)
def test_what_cannot_be_whitened_is_reported(vectors: Tensor, text: str) -> None:
    with pytest.raises(DataMismatch, match=text):
        whitening(vectors)


def test_regions_can_be_whitened_before_they_are_added_up() -> None:
    """VISSL's order: squares, length 1, whitening, length 1, sum."""
    squares = rmac_descriptors(torch.rand(20, 6, 5, 7, generator=torch.Generator().manual_seed(0)))
    assert whitening(squares.flatten(0, 1), 4)(squares).shape == (20, squares.shape[1], 4)


# --- answers in lists -------------------------------------------------------------------------------------------------


def steps_of_oxford(row: list[float], positives: list[int], junk: list[int]) -> float:
    """The rule as it was published, one image after the other."""
    area, found, seen, recall, precision = 0.0, 0, 0, 0.0, 1.0
    for image in sorted(range(len(row)), key=lambda place: row[place]):
        if image in junk:
            continue
        found, seen = found + (image in positives), seen + 1
        area += (found / len(positives) - recall) * (precision + found / seen) / 2
        recall, precision = found / len(positives), found / seen
    return area


@pytest.mark.parametrize("seed", range(20))
def test_trapezoids_are_those_of_oxford(seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix = random.permuted(np.tile(np.arange(12.0), (5, 1)), axis=1)
    kinds = random.integers(0, 3, (5, 12))
    kinds[:, 0] = 1
    positives, junk = ([np.flatnonzero(row == kind).tolist() for row in kinds] for kind in (1, 2))
    expected = np.mean([steps_of_oxford(*one) for one in zip(matrix.tolist(), positives, junk, strict=True)])
    assert evaluate_lists(matrix, positives, junk)["mAP"] == pytest.approx(expected)


def test_the_example() -> None:
    row = np.arange(5.0)[None]
    assert evaluate_lists(row, [[0, 3]])["mAP"] == pytest.approx(0.70833333)
    ranking = rank(MatrixDistances(row), Matches([1], [1, 0, 0, 1, 0]))
    assert ranking.average_precisions == pytest.approx([0.75]), "not trapezoidal"


def test_junk_leaves_no_gap_and_queries_without_answer_are_left_out() -> None:
    matrix = np.tile(np.arange(4.0), (2, 1))
    found = evaluate_lists(matrix, [[2], []], [[0, 1], []])
    assert found == {"mAP": 1.0, "queries": 1, "queries_without_match": 1}


def test_the_revisited_protocols() -> None:
    """Nearest first: hard, junk, easy, wrong, easy."""
    found = revisited(np.arange(5.0)[None], easy=[[2, 4]], hard=[[0]], junk=[[1]])
    assert found["mAP_hard"] == 1.0
    assert found["mAP_easy"] == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 2)
    assert found["mAP_medium"] == pytest.approx((1 + 1 + (2 / 3 + 3 / 4) / 2) / 3)


@pytest.mark.parametrize(
    ("positives", "junk", "text"),
    [
        ([[0]], None, "2 queries, but 1 lists of positives"),
        ([[0], [1]], [[2]], "2 lists of positives, but 1 of junk"),
        ([[0], [3]], None, "query 1 names image 3 of a gallery of 3"),
        ([[], []], None, "none of the 2 queries has a match"),
    ],
)
def test_lists_that_do_not_fit_are_reported(positives: Any, junk: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        evaluate_lists(np.zeros((2, 3)), positives, junk)


# --- the evaluator ----------------------------------------------------------------------------------------------------


def batch(features: Tensor, labels: list[int], first: int = 0, queries: list[bool] | None = None) -> Any:
    truth = {"label": torch.tensor(labels), "id": [str(first + number) for number in range(len(labels))]}
    return {"embedding": features}, truth | ({} if queries is None else {"query": torch.tensor(queries)})


def pairs(count: int = 40, width: int = 16) -> tuple[Tensor, list[int]]:
    """Two images of each object; one direction that says nothing is much louder than those that tell objects."""
    generator = torch.Generator().manual_seed(3)
    objects = torch.randn(count, width, generator=generator).repeat_interleave(2, 0)
    features = objects + 0.3 * torch.randn(objects.shape, generator=generator)
    features[:, 0] = 25 * torch.randn(len(features), generator=generator)
    return features, torch.arange(count).repeat_interleave(2).tolist()


def test_whitening_turns_down_what_is_loud_and_says_nothing() -> None:
    features, labels = pairs()
    evaluator = InstanceRetrieval(DatasetInfo(samples=80))
    evaluator.learn(*batch(features, labels))
    evaluator.update(*batch(features, labels))
    found = evaluator.compute([evaluator.state()])
    assert set(found) == set(evaluator.better)
    assert found["instance_plain_mAP"] < 0.5 < 0.7 < found["instance_mAP"]
    assert found["instance_plain_rank1"] < found["instance_rank1"]


def test_queries_are_looked_for_in_the_rest() -> None:
    """Whitening changes nothing of two axes that vary equally, so the ranking can be seen."""
    features = torch.tensor([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    evaluator = InstanceRetrieval(DatasetInfo(samples=5, queries=True))
    evaluator.learn(*batch(features[1:], [0] * 4))
    evaluator.update(*batch(features, [7, 8, 7, 9, 9], queries=[True, False, False, False, False]))
    expected = {"mAP": 0.25, "rank1": 0.0}  # found as the second of the gallery: (0 + 1/2) / 2
    found = evaluator.compute([evaluator.state()])
    assert found == {f"instance_{way}{name}": value for way in ("", "plain_") for name, value in expected.items()}


def test_two_processes_give_the_scores_of_one() -> None:
    features, labels = pairs()
    parts = [InstanceRetrieval(DatasetInfo(samples=80)) for _ in range(2)]
    one = InstanceRetrieval(DatasetInfo(samples=80))
    for start in range(0, 80, 20):
        piece = batch(features[start : start + 20], labels[start : start + 20], start)
        for evaluator in (one, parts[start // 20 % 2]):
            evaluator.learn(*piece)
            evaluator.update(*piece)
    assert one.compute([one.state()]) == parts[0].compute([part.state() for part in parts])


def test_no_training_samples_are_reported_and_no_samples_give_no_scores() -> None:
    evaluator = InstanceRetrieval(DatasetInfo(samples=80))
    assert evaluator.compute([evaluator.state()]) == {}
    evaluator.update(*batch(*pairs()))
    with pytest.raises(DataMismatch, match="no training samples to learn the whitening from"):
        evaluator.compute([evaluator.state()])
