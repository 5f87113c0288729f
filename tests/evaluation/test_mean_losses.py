"""Validation losses are means over samples, the same on any number of processes."""

import torch

from opabinia.contracts import Batch, Predictions
from opabinia.evaluation.mean_losses import MeanLosses


def batch_of(first: int, losses: list[float], count: int) -> tuple[Predictions, Batch]:
    names = ("loss", "box_loss")
    predictions = {f"losses/{name}": torch.tensor(loss).expand(count) for name, loss in zip(names, losses, strict=True)}
    return {**predictions, "scores": torch.ones(count)}, {"id": [str(first + number) for number in range(count)]}


def test_the_mean_is_over_samples() -> None:
    evaluator = MeanLosses()
    evaluator.update(*batch_of(0, [2.0, 1.0], 3))
    evaluator.update(*batch_of(3, [6.0, 2.0], 1))
    assert evaluator.compute([evaluator.state()]) == {"loss": 3.0, "box_loss": 1.25}
    assert list(MeanLosses().better) == ["loss"], "the headline is the total loss"
    assert evaluator.better == {"loss": "min", "box_loss": "min"}
