"""A linear classifier on frozen features: how much of what is asked for lies in them open to view."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import EMBEDDING, Count, DataMismatch, DatasetInfo, Fraction, NonNegative, Positive
from opabinia.evaluation.classification.multilabel import average_precision
from opabinia.evaluation.classification.topk import hits
from opabinia.evaluation.representation.feature_bank import Learner, Sides, refuse_unlabelled


class Setting(NamedTuple):
    """How one classifier is trained.

    Attributes:
        rate: the learning rate at the beginning.
        decay: weight decay, of the weights and not of the bias.
    """

    rate: float
    decay: float


def standardised(known: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the mean 0 and the deviation 1 that each coordinate of ``known`` (N x D) then has.

    It is what the batch norm without parameters before the classifier comes to that MAE has (He et al. 2022, appendix
    A.1) and VISSL's ``eval_mlp``, so one list of learning rates serves features of any scale.
    """
    mean, deviation = known.mean(0), (known.var(0, correction=0) + 1e-6).sqrt()
    return (known - mean) / deviation, (asked - mean) / deviation


def train_heads(
    features: Tensor,
    targets: Tensor,
    settings: Sequence[Setting],
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    exclusive: bool,
) -> list[Tensor]:
    """Linear classifiers by gradient descent with momentum 0.9 and a cosine to 0, all trained at once: their weights
    lie side by side in one matrix, so a step is two products of matrices however many they are.

    They begin at 0. All see the same batches, which ``seed`` alone decides.

    Args:
        features: N x D.
        targets: 0 and 1, N x K.
        settings: one for each classifier.
        epochs: passes over the features.
        batch_size: samples of a step.
        seed: of the order.
        exclusive: of softmax and cross entropy; otherwise each class by itself, of sigmoid and binary cross entropy.

    Returns: for each setting weights with the bias as last row, D + 1 x K; see :func:`logits_of`.
    """
    heads, classes, device = len(settings), targets.shape[1], features.device
    rates, decays = (
        torch.tensor(column, device=device).repeat_interleave(classes) for column in zip(*settings, strict=True)
    )
    weights = features.new_zeros(features.shape[1] + 1, heads * classes)
    speed = torch.zeros_like(weights)
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * -(-len(features) // batch_size)
    done = 0
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(features), generator=generator).to(device), batch_size):
            some = _with_one(features[rows])
            logits = (some @ weights).view(len(rows), heads, classes)
            said = logits.softmax(2) if exclusive else logits.sigmoid()
            gradient = some.T @ (said - targets[rows, None]).flatten(1) / len(rows)
            gradient[:-1] += decays * weights[:-1]
            speed.mul_(0.9).add_(gradient)
            weights -= 0.5 * (1 + math.cos(math.pi * done / steps)) * rates * speed
            done += 1
    return list(torch.split(weights, classes, dim=1))


def logits_of(features: Tensor, weights: Tensor) -> Tensor:
    """N x K, of features (N x D) and a classifier (D + 1 x K)."""
    return _with_one(features) @ weights


def _with_one(features: Tensor) -> Tensor:
    return F.pad(features, (0, 1), value=1.0)


@register.evaluator(name="linear_probe")
class LinearProbe(Learner):
    """Scores of a linear classifier that is trained on the features of the training samples: ``linear_top1`` and
    ``linear_top5``, or ``linear_mAP`` where an image may have several labels.

    For each layer a classifier for each pair of learning rate and weight decay is trained on most of the training
    samples, and judged on the rest of them; with the best pair one more is trained on all. The scores are those of the
    layer whose pair was best; samples of the set itself choose nothing. Features are taken once, without augmentation,
    and standardised (:func:`standardised`).

    The table (``details``): what each pair reached on the training samples left out, and each layer's scores.

    Time: a step costs as much as one with a classifier of as many classes times pairs; 100 epochs of 50,000 samples of
    512 numbers, 10 classes and 7 pairs are about a minute on one CPU core. For memory see
    :class:`opabinia.evaluation.representation.feature_bank.Learner`; on the device lies one layer at a time.

    Args:
        facts: of the data.
        layers: ``embedding``, or names of modules of the task, whose maps and tokens are averaged over their places.
        rates: learning rates to try.
        weight_decays: to try with each of them (the papers' is 0).
        epochs: passes over the training samples (DINO's 100; MAE's 90).
        batch_size: samples of a step (VISSL's 256).
        held_out: share of the training samples that the choice is made on.
        seed: of the order and of who is left out.

    Raises:
        ValueError: images have no classes, or there is nothing to choose from.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        layers: list[str] = [EMBEDDING],  # noqa: B006 (never changed, as those below)
        rates: list[Positive] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0],  # noqa: B006
        weight_decays: list[NonNegative] = [0.0],  # noqa: B006
        epochs: Count = 100,
        batch_size: Count = 256,
        held_out: Fraction = 0.1,
        seed: int = 0,
    ) -> None:
        refuse_unlabelled("linear_probe", dataset_info, several=True)
        for name, values in {"layers": layers, "rates": rates, "weight_decays": weight_decays}.items():
            if not values:
                raise ValueError(f"linear_probe: {name} is empty; it takes one or more")
        if not 0 < held_out < 1:
            raise ValueError(f"linear_probe: held_out is {held_out}; it takes a share between 0 and 1, such as 0.1")
        super().__init__(layers)
        self._classes, self._exclusive = len(dataset_info.classes), not dataset_info.multi_label
        self._settings = [Setting(*pair) for pair in product(rates, weight_decays)]
        self._held_out = held_out
        self._how: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "seed": seed}
        self._found: dict[str, Any] = {}
        names = ["linear_top1", "linear_top5"] if self._exclusive and self._classes > 5 else ["linear_top1"]
        self.better = dict.fromkeys(names if self._exclusive else ["linear_mAP"], "max")

    def compute(self, states: Sequence[Sides]) -> dict[str, float]:
        """Scores of the layer that was best on the training samples left out; of equal ones, of the first.

        Raises:
            Unfit: there are too few training samples, or a feature is not finite.
        """
        tried: list[dict[str, Any]] = []
        layers: list[dict[str, Any]] = []
        for layer in self.layers:
            sides = self.sides(states, layer)
            if sides is None:
                return {}
            own, scores = self._probed(*(one.to(self.device) for side in sides for one in side.tensors()))
            tried += [{"layer": layer, **row} for row in own]
            layers.append({"layer": layer, **max(own, key=lambda row: float(row["held_out"])), **scores})
        best = max(layers, key=lambda row: float(row["held_out"]))
        self._found = {"chosen": best["layer"], "layers": layers, "tried": tried}
        return {name: best[name] for name in self.better}

    def details(self, states: Sequence[Sides]) -> dict[str, Any]:
        """The table, in plain values."""
        return {"linear_probe": self._found} if self._found else {}

    def _probed(
        self, known: Tensor, labels: Tensor, asked: Tensor, right: Tensor
    ) -> tuple[list[dict[str, float]], dict[str, float]]:
        """What each setting reached on the samples left out, and the scores of the best on those asked."""
        known, asked = standardised(known, asked)
        targets = F.one_hot(labels, self._classes).float() if self._exclusive else labels.float()
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(self._how["seed"])).to(self.device)
        count = max(1, round(self._held_out * len(known)))
        if count >= len(known):
            raise DataMismatch(f"linear_probe: {len(known)} training samples are too few to leave some out")
        out, rest = order[:count], order[count:]
        heads = train_heads(known[rest], targets[rest], self._settings, exclusive=self._exclusive, **self._how)
        reached = [self._scores(logits_of(known[out], head), labels[out])[self._headline] for head in heads]
        best = self._settings[reached.index(max(reached))]
        (head,) = train_heads(known, targets, [best], exclusive=self._exclusive, **self._how)
        rows = [{**one._asdict(), "held_out": score} for one, score in zip(self._settings, reached, strict=True)]
        return rows, self._scores(logits_of(asked, head), right)

    @property
    def _headline(self) -> str:
        return next(iter(self.better))

    def _scores(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        if self._exclusive:
            found = (hits(logits, labels, (1, 5)).double() / len(labels)).tolist()
            return dict(zip(self.better, found, strict=False))
        return {self._headline: mean_average_precision(logits.nan_to_num(-1e30, -1e30, -1e30), labels)}


def mean_average_precision(scores: Tensor, there: Tensor) -> float:
    """Mean of :func:`opabinia.evaluation.classification.multilabel.average_precision` over the classes that are there; 0 without any.

    Args:
        scores: N x K.
        there: 0 and 1, N x K.
    """
    columns = zip(scores.cpu().numpy().T, (there > 0.5).cpu().numpy().T, strict=True)
    found = [average_precision(column, ground_truth) for column, ground_truth in columns if ground_truth.any()]
    return sum(found) / len(found) if found else 0.0
