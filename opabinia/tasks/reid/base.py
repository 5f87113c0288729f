"""What tasks of re-identification share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts import (
    Backbone,
    Batch,
    DataMismatch,
    DatasetInfo,
    Evaluator,
    EvaluatorPart,
    LossPart,
    MetricLossPart,
    Predictions,
    Task,
)
from opabinia.evaluation.retrieval.retrieval_evaluators import Recall, Retrieval
from opabinia.models.layers import normalize_as
from opabinia.models.losses.metric import pairs


@dataclass(frozen=True)
class Settings:
    """What all tasks of re-identification let a person decide in the same way."""

    metric_losses: Sequence[MetricLossPart]
    evaluator: EvaluatorPart | None
    flip_test: bool


class Reidentification(Task):
    """Embeds images, and learns from pairs of them over the batches of all processes.

    What is left to its heirs: ``seen`` and ``forward``.

    Args:
        facts: of the training data.
        backbone: of the model; it knows how its images were normalised.
        mean, std: of the images, if a person says them.
        settings: see :class:`Settings`.

    Attributes:
        loss: of logits and identities, which an heir sets; None where there is no classifier.

    Raises:
        ValueError: there are no two identities to tell apart.
    """

    loss: LossPart | None = None

    def __init__(
        self,
        dataset_info: DatasetInfo,
        backbone: Backbone,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        settings: Settings,
    ) -> None:
        super().__init__()
        if len(dataset_info.classes) < 2:
            raise ValueError(
                f"re-identification learns from two identities or more; the training data has {len(dataset_info.classes)}"
            )
        self.dataset_info = dataset_info
        # Pairs are drawn from the whole batch: pieces of it would hold few of them, and other ones.
        self.whole_batches = self.compares_classes = bool(settings.metric_losses)
        self.normalize = normalize_as(backbone.preprocessing, dataset_info.channels, mean, std)
        self.metric_losses = dict(named(settings.metric_losses))
        self._evaluator, self._flip_test = settings.evaluator, settings.flip_test

    def extra_repr(self) -> str:
        """The losses, so that the log shows them with the model."""
        return "\n".join(f"({name}): {loss}" for name, loss in [("loss", self.loss), *self.metric_losses.items()])

    def seen(self, batch: Batch) -> dict[str, Tensor]:
        """``embedding`` (B x D), by which images are compared when the model is used, and ``logits`` (B x K) of the
        training identities, if there is a classifier."""
        raise NotImplementedError

    def compared(self, features: Sequence[Tensor], labels: Tensor) -> dict[str, Tensor]:
        """Metric losses by name, of several kinds of features (B x D each, of the batch of all processes) the mean.

        ``anchors`` is the share of images to which the batch holds both another of their identity and one of another:
        the others teach nothing here.
        """
        losses = {
            f"{name}_loss": torch.stack([loss(one, labels) for one in features]).mean()
            for name, loss in self.metric_losses.items()
        }
        return {**losses, "anchors": pairs(labels).anchors} if losses else {}

    def predict(self, batch: Batch) -> Predictions:
        """``embedding`` (B x D) and ``logits`` (B x K); with ``flip_test`` means over image and mirror image."""
        found = self.seen(batch)
        if self._flip_test:
            mirrored = self.seen({**batch, "image": batch["image"].flip(-1)})
            found = {name: (value + mirrored[name]) / 2 for name, value in found.items()}
        return {name: value.float() for name, value in found.items()}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """``embedding`` (B x D), as it is compared."""
        return {"embedding": self.predict(batch)["embedding"]}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """The one that the config names, or that fits the set. Identities of it need not be those of training.

        Raises:
            ValueError: the set's images have another number of channels, or are from cameras that nobody has seen.
        """
        if dataset_info.channels != self.dataset_info.channels:
            raise ValueError(
                f"its images have {dataset_info.channels} channels, those of training {self.dataset_info.channels}"
            )
        fitting = Retrieval if dataset_info.queries else Recall
        return [(self._evaluator or fitting)(dataset_info)]


def named(losses: Iterable[MetricLossPart]) -> Iterable[tuple[str, MetricLossPart]]:
    """Losses with the names they are logged by; of several of one kind the second is ``triplet_2``."""
    seen: dict[str, int] = {}
    for loss in losses:
        name = name_of(loss)
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}_{seen[name]}", loss


def name_of(part: Any) -> str:
    """The name of a function or class, set up or not."""
    while isinstance(part, partial):
        part = part.func
    return str(getattr(part, "__name__", type(part).__name__))


def identities(batch: Batch) -> Tensor:
    """The identity of each image (int64, B).

    Raises:
        Unfit: labels are shares of several, as after mixing.
    """
    labels: Tensor = batch["label"]
    if labels.is_floating_point():
        raise DataMismatch("an image has one identity; take mixup and cutmix out of data.mix")
    return labels


@torch.no_grad()
def share_right(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of images whose identity has the largest logit (0-d)."""
    return (logits.argmax(1) == labels).float().mean()


def reduced(width: int, to: int | None) -> nn.Module:
    """A linear layer without bias to another width, or nothing."""
    if to is None:
        return nn.Identity()
    layer = nn.Linear(width, to, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    return layer
