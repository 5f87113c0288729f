"""Linear classifiers on frozen features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import EMBEDDING, Count, DataMismatch, DatasetInfo, Fraction, NonNegative, Positive, Resampling
from opabinia.evaluation.classification.multilabel import average_precision
from opabinia.evaluation.classification.topk import count_topk_hits
from opabinia.evaluation.representation.feature_bank import BankState, FeatureBankEvaluator


class Hyperparameters(NamedTuple):
    """Hyperparameters of one classifier.

    Attributes:
        learning_rate: at the beginning.
        weight_decay: weight decay of the weights, not of the bias.
    """

    learning_rate: float
    weight_decay: float


def standardize(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Shift and scale both (N x D) so that each coordinate of ``train`` has mean 0 and standard deviation 1.

    This equals the batch norm without parameters before the classifier in MAE (He et al. 2022, appendix A.1) and
    VISSL's ``eval_mlp``, so the same learning rates fit features of any scale.
    """
    mean, deviation = train.mean(0), (train.var(0, correction=0) + 1e-6).sqrt()
    return (train - mean) / deviation, (test - mean) / deviation


def train_heads(
    features: Tensor,
    targets: Tensor,
    settings: Sequence[Hyperparameters],
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    exclusive: bool,
) -> list[Tensor]:
    """Train linear classifiers by SGD with momentum 0.9 and a cosine schedule to 0, all at once: their weights are side
    by side in one matrix, so a step takes two matrix products for any number of classifiers.

    Weights begin at 0. All classifiers see the same batches, which depend on ``seed`` alone.

    Args:
        features: N x D.
        targets: 0 and 1, N x K.
        settings: one for each classifier.
        epochs: passes over the features.
        batch_size: samples per step.
        seed: seed of the order.
        exclusive: train with softmax and cross entropy; otherwise with sigmoid and binary cross entropy per class.

    Returns: for each setting weights with the bias as last row, D + 1 x K; see :func:`logits_of`.
    """
    heads, classes, device = len(settings), targets.shape[1], features.device
    learning_rates, weight_decays = (
        torch.tensor(column, device=device).repeat_interleave(classes) for column in zip(*settings, strict=True)
    )
    weights = features.new_zeros(features.shape[1] + 1, heads * classes)
    momentum = torch.zeros_like(weights)
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * -(-len(features) // batch_size)
    step = 0
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(features), generator=generator).to(device), batch_size):
            inputs = _append_one(features[rows])
            logits = (inputs @ weights).view(len(rows), heads, classes)
            probabilities = logits.softmax(2) if exclusive else logits.sigmoid()
            gradient = inputs.T @ (probabilities - targets[rows, None]).flatten(1) / len(rows)
            gradient[:-1] += weight_decays * weights[:-1]
            momentum.mul_(0.9).add_(gradient)
            weights -= 0.5 * (1 + math.cos(math.pi * step / steps)) * learning_rates * momentum
            step += 1
    return list(torch.split(weights, classes, dim=1))


def logits_of(features: Tensor, weights: Tensor) -> Tensor:
    """Return the logits (N x K) of features (N x D) and a classifier (D + 1 x K)."""
    return _append_one(features) @ weights


def _append_one(features: Tensor) -> Tensor:
    return F.pad(features, (0, 1), value=1.0)


@register.evaluator(name="linear_probe")
class LinearProbe(FeatureBankEvaluator):
    """Scores of a linear classifier trained on the features of the training samples: ``linear_top1`` and
    ``linear_top5``, or ``linear_mAP`` of multi-label data.

    For each layer one classifier per pair of learning rate and weight decay is trained on most of the training samples
    and validated on the others; with the best pair one more is trained on all. The scores are those of the layer with
    the best pair; the evaluated set itself selects nothing. Features are computed once, without augmentation, and
    standardized (:func:`standardize`).

    The table (``details``): the validation score of each pair, and the scores of each layer.

    Time: a step costs as much as one with a classifier of classes x pairs outputs; 100 epochs of 50,000 samples of
    512 numbers, 10 classes and 7 pairs take about a minute on one CPU core. For memory see
    :class:`opabinia.evaluation.representation.feature_bank.FeatureBankEvaluator`; the device holds one layer at a time.

    Args:
        dataset_info: facts about the data.
        layers: ``embedding``, or names of modules of the task, whose feature maps or tokens are averaged over
            positions.
        learning_rates: to try.
        weight_decays: to try with each of them (the papers' is 0).
        epochs: passes over the training samples (DINO's 100; MAE's 90).
        batch_size: samples per step (VISSL's 256).
        validation_fraction: share of the training samples that selects layer and hyperparameters.
        seed: seed of the order and of the validation samples.

    Raises:
        ValueError: images have no classes, or a list is empty.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        layers: list[str] = [EMBEDDING],  # noqa: B006 (never changed, as those below)
        learning_rates: list[Positive] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0],  # noqa: B006
        weight_decays: list[NonNegative] = [0.0],  # noqa: B006
        epochs: Count = 100,
        batch_size: Count = 256,
        validation_fraction: Fraction = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__("linear_probe", dataset_info, layers, multi_label=True)
        lists = {"layers": layers, "learning_rates": learning_rates, "weight_decays": weight_decays}
        if empty := [name for name, values in lists.items() if not values]:
            raise ValueError(f"linear_probe: {empty[0]} is empty; it takes one or more")
        if not 0 < validation_fraction < 1:
            raise ValueError(
                f"linear_probe: validation_fraction is {validation_fraction}; it takes a share between 0 and 1, such "
                "as 0.1"
            )
        self._classes, self._exclusive = len(dataset_info.classes), not dataset_info.multi_label
        self._settings = [Hyperparameters(*pair) for pair in product(learning_rates, weight_decays)]
        self._validation_fraction = validation_fraction
        self._options: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "seed": seed}
        self._table: dict[str, Any] = {}
        self._samples = 0
        names = ["linear_top1", "linear_top5"] if self._exclusive and self._classes > 5 else ["linear_top1"]
        self.better = dict.fromkeys(names if self._exclusive else ["linear_mAP"], "max")

    def compute(self, states: Sequence[BankState]) -> dict[str, float]:
        """Return the scores of the layer that is best on the validation samples; of equal ones, of the first.

        Raises:
            DataMismatch: there are too few training samples, or a feature is not finite.
        """
        tried: list[dict[str, Any]] = []
        layers: list[dict[str, Any]] = []
        for layer in self.layers:
            split = self.train_and_test(states, layer)
            if split is None:
                return {}
            validated, scores = self._probe(*(tensor for rows in split for tensor in rows.tensors(self.device)))
            tried += [{"layer": layer, **row} for row in validated]
            layers.append({"layer": layer, **max(validated, key=lambda row: row["validation_score"]), **scores})
            self._samples = len(split[1].ids)
        best = max(layers, key=lambda row: float(row["validation_score"]))
        self._table = {"chosen": best["layer"], "layers": layers, "tried": tried}
        return {name: best[name] for name in self.better}

    def resamplings(self, states: Sequence[BankState]) -> list[Resampling]:
        """Return the top-1 accuracy, with the classifier as it is."""
        if not self._exclusive:
            return []
        score = next(row["linear_top1"] for row in self._table["layers"] if row["layer"] == self._table["chosen"])
        return [Resampling.share("linear_top1", round(score * self._samples), self._samples)]

    def details(self, states: Sequence[BankState]) -> dict[str, Any]:
        """Return the table."""
        return {"linear_probe": self._table} if self._table else {}

    def _probe(
        self, train: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor
    ) -> tuple[list[dict[str, float]], dict[str, float]]:
        """Return the validation score of each setting, and the test scores of the best."""
        train, test = standardize(train, test)
        targets = F.one_hot(labels, self._classes).float() if self._exclusive else labels.float()
        generator = torch.Generator().manual_seed(self._options["seed"])
        order = torch.randperm(len(train), generator=generator).to(self.device)
        count = max(1, round(self._validation_fraction * len(train)))
        if count >= len(train):
            raise DataMismatch(f"linear_probe: {len(train)} training samples are too few to validate on some")
        held_out, rest = order[:count], order[count:]
        heads = train_heads(train[rest], targets[rest], self._settings, exclusive=self._exclusive, **self._options)
        headline = next(iter(self.better))
        scores = [self._metrics(logits_of(train[held_out], head), labels[held_out])[headline] for head in heads]
        best = self._settings[scores.index(max(scores))]
        (head,) = train_heads(train, targets, [best], exclusive=self._exclusive, **self._options)
        rows = [
            {**setting._asdict(), "validation_score": score}
            for setting, score in zip(self._settings, scores, strict=True)
        ]
        return rows, self._metrics(logits_of(test, head), test_labels)

    def _metrics(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        if self._exclusive:
            hits = count_topk_hits(logits, labels, (1, 5)).cpu()
            return dict(zip(self.better, (hits.double() / len(labels)).tolist(), strict=False))
        scores = logits.nan_to_num(-1e30, -1e30, -1e30).cpu().numpy().T
        columns = zip(scores, (labels > 0.5).cpu().numpy().T, strict=True)
        precisions = [average_precision(column, positive) for column, positive in columns if positive.any()]
        return {"linear_mAP": sum(precisions) / len(precisions) if precisions else 0.0}
