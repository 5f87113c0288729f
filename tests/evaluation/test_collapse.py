"""Measures of representation collapse, for features where they are known in closed form."""

import logging
import math

import pytest
import torch

from opabinia.contracts import DatasetInfo
from opabinia.evaluation.representation import collapse
from opabinia.evaluation.representation.collapse import Collapse, effective_rank, spread, uniformity
from tests.evaluation.features import batches, evaluate_batches

DATASET_INFO = DatasetInfo(samples=4)


@pytest.mark.parametrize("directions", [1, 2, 5, 8])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_rank_of_equal_singular_values_is_their_number(directions: int, scale: float) -> None:
    vectors = scale * torch.eye(directions, 8).repeat(3, 1)
    assert effective_rank(vectors) == pytest.approx(directions, rel=1e-6)
    assert effective_rank(vectors.T) == pytest.approx(directions, rel=1e-6)


def test_the_rank_of_unequal_singular_values() -> None:
    """The singular values are 3/4 and 1/4 of their sum."""
    expected = math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert effective_rank(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx(expected, rel=1e-6)


def test_spread_is_0_for_one_direction_and_1_for_all_directions() -> None:
    assert spread(torch.arange(1.0, 6)[:, None] * torch.ones(3)) == pytest.approx(0, abs=1e-6)
    assert spread(torch.cat([torch.eye(6), -torch.eye(6)])) == pytest.approx(1, rel=1e-6)
    random_vectors = torch.randn(20000, 16, generator=torch.Generator().manual_seed(0))
    assert spread(random_vectors) == pytest.approx(1, abs=0.01)


def test_uniformity() -> None:
    assert uniformity(torch.ones(5, 3)) == pytest.approx(0, abs=1e-6)  # no distances
    assert uniformity(torch.tensor([[2.0, 0.0], [-5.0, 0.0]])) == pytest.approx(-8)  # one distance, of 2
    # Four corners of a square: four distances of sqrt(2), two of 2.
    corners = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    assert uniformity(corners) == pytest.approx(math.log((4 * math.exp(-4) + 2 * math.exp(-8)) / 6))


def test_scores_need_no_labels_and_two_samples() -> None:
    data = batches(torch.cat([torch.eye(6), -torch.eye(6)]), None, size=5)
    assert evaluate_batches(lambda: Collapse(DATASET_INFO), [], data)[0] == {
        "spread": pytest.approx(1, rel=1e-6),
        "rank": pytest.approx(6, rel=1e-6),
        "uniformity": pytest.approx(math.log((60 * math.exp(-4) + 6 * math.exp(-8)) / 66), rel=1e-6),
    }
    assert evaluate_batches(lambda: Collapse(DATASET_INFO), [], batches(torch.ones(1, 3), None))[0] == {}


def test_a_collapse_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    almost = torch.ones(20, 4) + 1e-3 * torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    scores, _ = evaluate_batches(lambda: Collapse(DATASET_INFO), [], batches(almost, None))
    assert scores["spread"] < 0.05 and scores["rank"] < 1.1
    assert "embeddings have collapsed" in caplog.text
    caplog.clear()
    evaluate_batches(lambda: Collapse(DATASET_INFO), [], batches(torch.eye(4), None))
    assert not caplog.text


def test_large_datasets_are_subsampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapse, "_MAX_SAMPLES", 4)
    vectors = torch.cat([torch.eye(4)[:2], torch.ones(5, 4)])  # the samples 0, 2, 4 and 6 are evaluated
    scores, _ = evaluate_batches(lambda: Collapse(DATASET_INFO), [], batches(vectors, None))
    assert scores["rank"] == pytest.approx(float(effective_rank(vectors[::2])))
