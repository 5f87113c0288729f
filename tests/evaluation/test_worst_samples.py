"""Samples taken for something else: the surest first, however many there are and whoever has seen them."""

import pytest
import torch

from opabinia.evaluation.classification.worst_samples import MAX_SAMPLES, WorstSamples


def test_mistakes_are_named_the_surest_first() -> None:
    evaluator = WorstSamples(["a", "b"])
    probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [torch.nan, torch.nan]])
    evaluator.update(
        {"probabilities": probabilities}, {"label": torch.tensor([0, 0, 0, 1]), "id": ["w", "x", "y", "z"]}
    )
    assert evaluator.compute([evaluator.state()]) == {}
    worst = evaluator.details([evaluator.state()[:1], evaluator.state()[1:]])["worst"]
    assert [one["id"] for one in worst] == ["y", "x", "z"]
    assert worst[1] == {
        "id": "x", "label": "a", "predicted": "b",
        "of_label": pytest.approx(0.4), "of_predicted": pytest.approx(0.6),
    }  # fmt: skip


def test_of_a_large_set_only_the_worst_are_kept() -> None:
    shares = torch.rand(4_000, 1, generator=torch.Generator().manual_seed(0)) / 2
    probabilities = torch.cat([shares, 1 - shares], 1)  # all are of the first class, and none is taken for it
    whole, parts = WorstSamples(["a", "b"]), [WorstSamples(["a", "b"]) for _ in range(2)]
    for number in range(40):
        rows = slice(100 * number, 100 * number + 100)
        ids = [f"{row:04d}" for row in range(rows.start, rows.stop)]
        for evaluator in (whole, parts[number % 2]):
            evaluator.update({"probabilities": probabilities[rows]}, {"label": torch.zeros(100).long(), "id": ids})
            assert len(evaluator.state()) == MAX_SAMPLES
    summary = whole.details([whole.state()])
    assert [int(one["id"]) for one in summary["worst"]] == shares[:, 0].argsort(stable=True)[:MAX_SAMPLES].tolist()
    assert whole.details([one.state() for one in parts]) == summary
