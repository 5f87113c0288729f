"""Instance retrieval: whitening, trapezoidal average precision, lists of positives, and the evaluator."""

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


def test_whitening_equals_that_of_vissl() -> None:
    """VISSL scales by the sum of products, not by their mean, and modifies its input."""
    case = json.loads((GOLDEN / "pca_whiten.json").read_text())
    vectors = torch.tensor(case["inputs"]["X"])
    before = vectors.clone()
    whitened = whitening(vectors, 2)(vectors).abs() / math.sqrt(len(vectors))
    torch.testing.assert_close(whitened, torch.tensor(case["outputs"]["abs_transformed"]), atol=1e-5, rtol=1e-5)
    assert torch.equal(vectors, before)


def random_vectors(count: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.randn(width, width, generator=generator)
    return torch.randn(count, width, generator=generator) @ rotation + 5


def test_the_first_components_have_the_largest_variance() -> None:
    vectors = torch.randn(400, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 30.0, 5.0])
    directions = whitening(vectors, 2).directions
    assert directions.shape == (2, 3)
    assert directions.abs().argmax(1).tolist() == [1, 2]
    assert (directions.gather(1, directions.abs().argmax(1, keepdim=True)) > 0).all(), "the sign is deterministic"


def test_few_vectors_have_few_directions() -> None:
    """Four points span three directions; noise in the other seven is not amplified."""
    transform = whitening(random_vectors(4, 10), 8)
    assert transform.directions.shape == (3, 10)
    assert transform(random_vectors(50, 10)).isfinite().all()


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (torch.ones(3, 2), "the 3 vectors are all the same"),
        (torch.ones(0, 2), "no vectors"),
        (torch.tensor([[1.0, torch.nan], [0.0, 1.0]]), "not finite"),
    ],
)
def test_vectors_that_cannot_be_whitened_are_reported(vectors: Tensor, message: str) -> None:
    with pytest.raises(DataMismatch, match=message):
        whitening(vectors)


def test_regions_can_be_whitened_before_they_are_summed() -> None:
    """VISSL's order: regions, L2 norm, whitening, L2 norm, sum."""
    regions = rmac_descriptors(torch.rand(20, 6, 5, 7, generator=torch.Generator().manual_seed(0)))
    assert whitening(regions.flatten(0, 1), 4)(regions).shape == (20, regions.shape[1], 4)


# --- lists of positives -----------------------------------------------------------------------------------------------


def oxford_average_precision(row: list[float], positives: list[int], junk: list[int]) -> float:
    """Return the average precision by the published rule, image by image."""
    area, num_correct, rank, recall, precision = 0.0, 0, 0, 0.0, 1.0
    for image in sorted(range(len(row)), key=lambda image: row[image]):
        if image in junk:
            continue
        num_correct, rank = num_correct + (image in positives), rank + 1
        area += (num_correct / len(positives) - recall) * (precision + num_correct / rank) / 2
        recall, precision = num_correct / len(positives), num_correct / rank
    return area


@pytest.mark.parametrize("seed", range(20))
def test_trapezoidal_average_precision_equals_that_of_oxford(seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix = random.permuted(np.tile(np.arange(12.0), (5, 1)), axis=1)
    kinds = random.integers(0, 3, (5, 12))
    kinds[:, 0] = 1
    positives, junk = ([np.flatnonzero(row == kind).tolist() for row in kinds] for kind in (1, 2))
    scores = evaluate_lists(np.concatenate([matrix, matrix[:1]]), [*positives, []], [*junk, []])
    assert (scores["queries"], scores["queries_without_match"]) == (5, 1)
    expected = np.mean(
        [oxford_average_precision(*query) for query in zip(matrix.tolist(), positives, junk, strict=True)]
    )
    assert scores["mAP"] == pytest.approx(expected)


def test_trapezoidal_and_plain_average_precision() -> None:
    row = np.arange(5.0)[None]
    assert evaluate_lists(row, [[0, 3]])["mAP"] == pytest.approx(0.70833333)
    ranking = rank(MatrixDistances(row), Matches([1], [1, 0, 0, 1, 0]))
    assert ranking.average_precisions == pytest.approx([0.75]), "without trapezoids"


def test_the_revisited_protocols() -> None:
    """In order of distance, images are hard, junk, easy, negative, easy."""
    scores = revisited(np.arange(5.0)[None], easy=[[2, 4]], hard=[[0]], junk=[[1]])
    assert scores["mAP_hard"] == 1.0
    assert scores["mAP_easy"] == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 2)
    assert scores["mAP_medium"] == pytest.approx((1 + 1 + (2 / 3 + 3 / 4) / 2) / 3)


@pytest.mark.parametrize(
    ("positives", "junk", "message"),
    [
        ([[0]], None, "2 queries, but 1 lists of positives"),
        ([[0], [1]], [[2]], "2 lists of positives, but 1 of junk"),
        ([[0], [3]], None, "query 1 names image 3 of a gallery of 3"),
        ([[], []], None, "none of the 2 queries has a match"),
    ],
)
def test_lists_that_do_not_fit_are_reported(positives: Any, junk: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_lists(np.zeros((2, 3)), positives, junk)


# --- the evaluator ----------------------------------------------------------------------------------------------------


def make_batch(features: Tensor, labels: list[int], first: int = 0, queries: list[bool] | None = None) -> Any:
    targets = {"label": torch.tensor(labels), "id": [str(first + number) for number in range(len(labels))]}
    return {"embedding": features}, targets | ({} if queries is None else {"query": torch.tensor(queries)})


def noisy_pairs(count: int = 40, width: int = 16) -> tuple[Tensor, list[int]]:
    """Return two images of each object; an uninformative direction has much more variance than those of the objects."""
    generator = torch.Generator().manual_seed(3)
    objects = torch.randn(count, width, generator=generator).repeat_interleave(2, 0)
    features = objects + 0.3 * torch.randn(objects.shape, generator=generator)
    features[:, 0] = 25 * torch.randn(len(features), generator=generator)
    return features, torch.arange(count).repeat_interleave(2).tolist()


def test_whitening_suppresses_an_uninformative_direction_of_large_variance() -> None:
    features, labels = noisy_pairs()
    evaluator = InstanceRetrieval(DatasetInfo(samples=80))
    evaluator.learn(*make_batch(features, labels))
    evaluator.update(*make_batch(features, labels))
    scores = evaluator.compute([evaluator.state()])
    assert set(scores) == set(evaluator.better)
    assert scores["instance_plain_mAP"] < 0.5 < 0.7 < scores["instance_mAP"]
    assert scores["instance_plain_rank1"] < scores["instance_rank1"]


def test_queries_are_ranked_against_the_other_images() -> None:
    """Whitening does not change two axes of equal variance, so the ranking is easy to read."""
    features = torch.tensor([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    evaluator = InstanceRetrieval(DatasetInfo(samples=5, queries=True))
    evaluator.learn(*make_batch(features[1:], [0] * 4))
    evaluator.update(*make_batch(features, [7, 8, 7, 9, 9], queries=[True, False, False, False, False]))
    expected = {"mAP": 0.25, "rank1": 0.0}  # the match is second in the gallery: (0 + 1/2) / 2
    scores = evaluator.compute([evaluator.state()])
    assert scores == {
        f"instance_{prefix}{name}": value for prefix in ("", "plain_") for name, value in expected.items()
    }


def test_no_training_samples_are_reported() -> None:
    evaluator = InstanceRetrieval(DatasetInfo(samples=80))
    evaluator.update(*make_batch(*noisy_pairs()))
    with pytest.raises(DataMismatch, match="no training samples to learn the whitening from"):
        evaluator.compute([evaluator.state()])
