"""Validation losses are means over samples, the same on any number of processes."""

import pytest
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
    assert evaluator.better == {"loss": "min", "box_loss": "min"}


def test_the_headline_is_the_total_loss() -> None:
    assert next(iter(MeanLosses().better)) == "loss"


@pytest.mark.parametrize("world", [2, 3, 7])
def test_any_number_of_processes_gives_the_same_means(world: int) -> None:
    torch.manual_seed(1)
    batches = [batch_of(4 * number, torch.randn(2).mul(10).exp().tolist(), 4) for number in range(6)]
    evaluators = [MeanLosses() for _ in range(world + 1)]
    for number, batch in enumerate(batches):
        evaluators[0].update(*batch)
        evaluators[1 + number % world].update(*batch)
    single_state, *rank_states = (evaluator.state() for evaluator in evaluators)
    assert (
        evaluators[0].compute([single_state])
        == evaluators[1].compute(rank_states)
        == evaluators[1].compute(rank_states[::-1])
    )


def test_no_samples_give_no_scores() -> None:
    evaluator = MeanLosses()
    assert evaluator.compute([evaluator.state()]) == {}
