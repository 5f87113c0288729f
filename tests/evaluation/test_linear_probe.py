"""Linear probes: linear classifiers trained on frozen features."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from opabinia.contracts import DataMismatch, DatasetInfo
from opabinia.evaluation.representation.linear_probe import (
    Hyperparameters,
    LinearProbe,
    standardize,
    train_heads,
)
from tests.evaluation.features import DATASET_INFO, batches, class_clusters, evaluate_batches

TRAIN, QUERIES = (batches(*class_clusters(torch.eye(3, 6), each, 0.4, seed=each)) for each in (40, 20))
SHORT: dict[str, Any] = {"epochs": 10, "batch_size": 32}


def train_with_torch(
    features: torch.Tensor, targets: torch.Tensor, setting: Hyperparameters, exclusive: bool
) -> torch.Tensor:
    """Train one head with torch's optimizer, scheduler and losses; return its weights."""
    layer = torch.nn.Linear(features.shape[1], targets.shape[1])
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    groups = [{"params": [layer.weight], "weight_decay": setting.weight_decay}, {"params": [layer.bias]}]
    optimizer = torch.optim.SGD(groups, lr=setting.learning_rate, momentum=0.9)
    generator = torch.Generator().manual_seed(5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4 * 3)
    for _ in range(4):
        for rows in torch.randperm(len(features), generator=generator).split(20):
            logits = layer(features[rows])
            if exclusive:
                loss = F.cross_entropy(logits, targets[rows])
            else:  # a sum over classes
                loss = F.binary_cross_entropy_with_logits(logits, targets[rows]) * targets.shape[1]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    return torch.cat([layer.weight.detach().T, layer.bias.detach()[None]])


@pytest.mark.parametrize("exclusive", [True, False])
def test_each_head_is_trained_independently(exclusive: bool) -> None:
    features, labels = class_clusters(torch.eye(3, 6), 17, 0.5)
    targets = F.one_hot(labels, 3).float()
    settings = [Hyperparameters(0.01, 0.0), Hyperparameters(0.3, 0.0), Hyperparameters(0.3, 0.1)]
    heads = train_heads(features, targets, settings, epochs=4, batch_size=20, seed=5, exclusive=exclusive)
    for head, setting in zip(heads, settings, strict=True):
        torch.testing.assert_close(head, train_with_torch(features, targets, setting, exclusive), rtol=1e-4, atol=1e-6)


def test_features_are_standardized_by_training_statistics() -> None:
    train, queries = standardize(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([[5.0, 5.0]]))
    torch.testing.assert_close(train, torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), atol=1e-5, rtol=0)
    torch.testing.assert_close(queries, torch.tensor([[3.0, 0.0]]), atol=1e-5, rtol=0)


def test_the_table_has_every_layer_and_setting() -> None:
    def make() -> LinearProbe:
        return LinearProbe(
            DATASET_INFO, layers=["embedding", "wide"], learning_rates=[0.1, 1.0], weight_decays=[0.0, 0.01], **SHORT
        )

    scores, details = evaluate_batches(make, TRAIN, QUERIES)
    table = details["linear_probe"]
    assert [(row["layer"], row["learning_rate"], row["weight_decay"]) for row in table["tried"]] == [
        (layer, learning_rate, weight_decay)
        for layer in ("embedding", "wide")
        for learning_rate in (0.1, 1.0)
        for weight_decay in (0.0, 0.01)
    ]
    assert [row["layer"] for row in table["layers"]] == ["embedding", "wide"]
    for row in table["layers"]:
        assert row["validation_score"] == max(
            trial["validation_score"] for trial in table["tried"] if trial["layer"] == row["layer"]
        )
    assert scores["linear_top1"] == next(
        row["linear_top1"] for row in table["layers"] if row["layer"] == table["chosen"]
    )


def test_evaluation_data_choose_no_hyperparameter() -> None:
    """Other labels of the evaluation data do not change the chosen learning rate and layer."""
    relabeled = [(predictions, {**batch, "label": (batch["label"] + 1) % 3}) for predictions, batch in QUERIES]
    tables = [
        evaluate_batches(lambda: LinearProbe(DATASET_INFO, **SHORT), TRAIN, queries)[1]["linear_probe"]
        for queries in (QUERIES, relabeled)
    ]
    assert tables[0]["tried"] == tables[1]["tried"]
    assert tables[0]["layers"][0]["linear_top1"] > 0.9 > 0.2 > tables[1]["layers"][0]["linear_top1"]


def test_a_diverging_learning_rate_is_not_chosen() -> None:
    def make() -> LinearProbe:
        return LinearProbe(DATASET_INFO, learning_rates=[1e38, 0.1], **SHORT)

    scores, details = evaluate_batches(make, TRAIN, QUERIES)
    assert details["linear_probe"]["layers"][0]["learning_rate"] == 0.1
    assert scores["linear_top1"] > 0.9


def test_multi_label_data_are_evaluated_by_average_precision() -> None:
    dataset_info = replace(DATASET_INFO, multi_label=True)
    multi_label = [
        [
            (predictions, {**batch, "label": predictions["embedding"][:, :3].gt(0.5).float()})
            for predictions, batch in split
        ]
        for split in (TRAIN, QUERIES)
    ]
    scores, _ = evaluate_batches(lambda: LinearProbe(dataset_info, **SHORT), *multi_label)
    assert scores.keys() == {"linear_mAP"}
    assert 0.9 < scores["linear_mAP"] <= 1


def test_top5_is_reported_with_more_than_five_classes() -> None:
    dataset_info = DatasetInfo(samples=7, classes=tuple("abcdefg"))
    data = batches(*class_clusters(torch.eye(7), 6, 0.1))
    scores, _ = evaluate_batches(lambda: LinearProbe(dataset_info, learning_rates=[0.1], **SHORT), data, data)
    assert scores == {"linear_top1": 1.0, "linear_top5": 1.0}


def test_too_few_training_samples_are_reported() -> None:
    with pytest.raises(DataMismatch, match="1 training samples are too few"):
        evaluate_batches(
            lambda: LinearProbe(DATASET_INFO), batches(torch.ones(1, 6), torch.zeros(1, dtype=torch.int64)), QUERIES
        )
