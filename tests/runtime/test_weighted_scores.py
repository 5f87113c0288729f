"""Weighted sums of scores as text."""

import pytest

from opabinia.runtime.weighted_scores import score_weights, weighted_score


@pytest.mark.parametrize(
    ("metric", "weights"),
    [
        ("val/top1", {"val/top1": 1}),
        ("0.5*val/rank1 + 0.5*val/mAP", {"val/rank1": 0.5, "val/mAP": 0.5}),
        ("val/mAP - .1 * val/loss", {"val/mAP": 1, "val/loss": -0.1}),
        ("a/x + 1e-2*a/x", {"a/x": 1.01}),
        ("val/x-y+z", {"val/x-y+z": 1}),
    ],
)
def test_weights(metric: str, weights: dict[str, float]) -> None:
    assert score_weights(metric) == weights


@pytest.mark.parametrize("metric", ["", "a b", "2*", "a + ", "0.5 a", "a * b"])
def test_other_texts_are_refused(metric: str) -> None:
    with pytest.raises(ValueError, match=r"neither a score nor a sum such as 0\.5\*val/rank1"):
        score_weights(metric)
    assert weighted_score(metric, {"a": 1.0}) is None


def test_values() -> None:
    scores = {"val/rank1": 0.8, "val/mAP": 0.6}
    assert weighted_score("0.5*val/rank1 + 0.5*val/mAP", scores) == pytest.approx(0.7)
    assert weighted_score("val/mAP", scores) == 0.6 and weighted_score("val/mAP + val/x", scores) is None
