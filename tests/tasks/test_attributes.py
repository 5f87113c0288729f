import math

import pytest
import torch
from torch import nn

from opabinia.contracts import Clock, DatasetInfo
from opabinia.models.losses.binary import frequency_weighted_binary_cross_entropy
from opabinia.tasks.attributes import Attributes

DATASET_INFO = DatasetInfo(samples=4, classes=("hat", "bag"), multi_label=True, label_shares=(0.25, 0.5))


def make_task(dataset_info: DatasetInfo = DATASET_INFO, **options: bool) -> Attributes:
    return Attributes(dataset_info, backbone=lambda channels: nn.Conv2d(channels, 6, 3), **options)


def test_the_loss_equals_that_of_the_paper() -> None:
    logits, targets = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    loss = frequency_weighted_binary_cross_entropy(logits, targets, [0.2, 0.2])
    assert loss.item() == pytest.approx((math.exp(0.8) + math.exp(0.2)) / 2 * math.log(2))


def test_batch_norm_loss_weights_and_scores() -> None:
    task = make_task()
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8, generator=generator)
    batch = {"image": images, "label": torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 0]]), "id": list("abcd")}
    # With a batch norm of the logits, they have mean 0 and variance 1 in training.
    logits = task.head(task.extract(batch)["vectors"])
    torch.testing.assert_close(logits.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    assert task(batch, Clock())["loss"] == frequency_weighted_binary_cross_entropy(
        task.head(task.extract(batch)["vectors"]), batch["label"], DATASET_INFO.label_shares
    )
    (evaluator,) = task.evaluators(DATASET_INFO)
    evaluator.update(task.eval().predict(batch), batch)
    scores = evaluator.compute([evaluator.state()])
    assert (
        list(scores)[:5] == ["mA", "accuracy", "precision", "recall", "f1"] and scores.keys() == evaluator.better.keys()
    )


def test_data_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one label each"):
        make_task(DatasetInfo(samples=4, classes=("hat", "bag")))
    unknown = DatasetInfo(samples=4, classes=("hat", "bag"), multi_label=True)
    with pytest.raises(ValueError, match="does not know its labels"):
        make_task(unknown)
    make_task(unknown, weighted=False)
