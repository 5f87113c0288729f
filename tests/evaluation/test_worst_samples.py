"""Misclassified samples, the most confident first, for any number of samples and processes."""

import pytest
import torch

from opabinia.evaluation.classification.worst_samples import MAX_SAMPLES, WorstSamples


def test_misclassified_samples_are_listed_the_most_confident_first() -> None:
    evaluator = WorstSamples(["a", "b"])
    probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [torch.nan, torch.nan]])
    evaluator.update(
        {"probabilities": probabilities}, {"label": torch.tensor([0, 0, 0, 1]), "id": ["w", "x", "y", "z"]}
    )
    assert evaluator.compute([evaluator.state()]) == {}
    worst = evaluator.details([evaluator.state()[:1], evaluator.state()[1:]])["worst"]
    assert [row["id"] for row in worst] == ["y", "x", "z"]
    assert worst[1] == {
        "id": "x", "label": "a", "predicted": "b",
        "of_label": pytest.approx(0.4), "of_predicted": pytest.approx(0.6),
    }  # fmt: skip


def test_only_the_worst_samples_of_a_large_dataset_are_kept() -> None:
    of_label = torch.rand(4_000, 1, generator=torch.Generator().manual_seed(0)) / 2
    probabilities = torch.cat([of_label, 1 - of_label], 1)  # all are of the first class and predicted as the second
    single_process, ranks = WorstSamples(["a", "b"]), [WorstSamples(["a", "b"]) for _ in range(2)]
    for number in range(40):
        rows = slice(100 * number, 100 * number + 100)
        ids = [f"{row:04d}" for row in range(rows.start, rows.stop)]
        for evaluator in (single_process, ranks[number % 2]):
            evaluator.update({"probabilities": probabilities[rows]}, {"label": torch.zeros(100).long(), "id": ids})
            assert len(evaluator.state()) == MAX_SAMPLES
    summary = single_process.details([single_process.state()])
    assert [int(row["id"]) for row in summary["worst"]] == of_label[:, 0].argsort(stable=True)[:MAX_SAMPLES].tolist()
    assert single_process.details([evaluator.state() for evaluator in ranks]) == summary
