"""The base class of re-identification and metric learning tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    Features,
    LossPart,
    MetricLossPart,
    Predictions,
    Presenter,
    Task,
)
from opabinia.evaluation.retrieval.retrieval_evaluators import Recall, Retrieval
from opabinia.models.embeddings import join_embeddings
from opabinia.models.layers import build_normalization
from opabinia.models.losses.metric import count_pairs
from opabinia.tasks.dataset_checks import check_channels


class Reidentification(Task):
    """Embed images and learn from pairs of them, over the batches of all processes.

    Subclasses implement ``embed_and_classify`` and ``losses``.

    Args:
        dataset_info: of the training data.
        backbone: of the model.
        mean, std: of images in 0..1; see :func:`opabinia.models.layers.build_normalization`.
        metric_losses: of features and identities.
        evaluator: of the features; None takes the one that fits the dataset.
        flip_test: evaluate the mean of the features of an image and of its mirror image.

    Attributes:
        loss: of logits and identities, set by subclasses; None without a classifier.
        embedding_width: D of the embedding, set by subclasses.

    Raises:
        ValueError: there are fewer than two identities.
    """

    loss: LossPart | None = None
    embedding_width: int
    next_commands = ("eval", "search", "report", "export", "extract")
    label_keys = ("label",)

    def __init__(
        self,
        dataset_info: DatasetInfo,
        backbone: Backbone,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        metric_losses: Sequence[MetricLossPart],
        evaluator: EvaluatorPart | None,
        flip_test: bool,
    ) -> None:
        super().__init__()
        count = len(dataset_info.classes)
        if count < 2:
            raise ValueError(f"re-identification learns from two identities or more; the training data has {count}")
        self.dataset_info = dataset_info
        # Pairs are taken from the whole batch: micro-batches would hold fewer and different ones.
        self.requires_full_batch = self.compares_samples_of_class = bool(metric_losses)
        self.normalize = build_normalization(backbone.preprocessing, dataset_info.channels, mean, std)
        self.metric_losses = dict(named_losses(metric_losses))
        self._evaluator, self._flip_test = evaluator, flip_test

    def extra_repr(self) -> str:
        """Return the losses, so that the log shows them with the model."""
        return "\n".join(f"({name}): {loss}" for name, loss in [("loss", self.loss), *self.metric_losses.items()])

    def embed_and_classify(self, features: Features) -> dict[str, Tensor]:
        """Return ``embedding`` (B x D), by which images are compared in inference, and ``logits`` (B x K) of the
        training identities, if there is a classifier."""
        raise NotImplementedError

    def compute_metric_losses(self, features: Sequence[Tensor], labels: Tensor) -> dict[str, Tensor]:
        """Return metric losses by name, each the mean over several kinds of features (B x D each, of all processes).

        ``anchors`` is the share of images with both another image of their identity and one of another identity in the
        batch; the other images contribute nothing.
        """
        losses = {
            f"{name}_loss": torch.stack([loss(rows, labels) for rows in features]).mean()
            for name, loss in self.metric_losses.items()
        }
        return {**losses, "anchors": count_pairs(labels).anchors} if losses else {}

    def predictions(self, features: Features, batch: Batch) -> Predictions:
        """Return ``embedding`` (B x D) and ``logits`` (B x K); in evaluation mode with ``flip_test`` the mean over both
        mirror images."""
        values = self.embed_and_classify(features)
        if self._flip_test and not self.training:
            mirrored = self.embed_and_classify(self.extract({**batch, "image": batch["image"].flip(-1)}))
            values = {name: (value + mirrored[name]) / 2 for name, value in values.items()}
        return {name: value.float() for name, value in values.items()}

    def predict_together(self, models: Sequence[Task], batch: Batch) -> Predictions:
        """Return ``embedding``, see :func:`opabinia.models.embeddings.join_embeddings`."""
        return {"embedding": join_embeddings([model.predict(batch)["embedding"] for model in models])}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Return ``embedding`` (B x D) as it is compared."""
        return {"embedding": self.predict(batch)["embedding"]}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return the configured evaluator, or the one that fits the dataset. Identities need not be those of training.

        Raises:
            ValueError: the images have another number of channels, or cameras or views that training did not have.
        """
        check_channels(dataset_info, self.dataset_info)
        default = Retrieval if dataset_info.queries else Recall
        return [(self._evaluator or default)(dataset_info)]

    def presenter(self) -> Presenter:
        """Show the embedding."""
        return Presenter(self.dataset_info)


def named_losses(losses: Iterable[MetricLossPart]) -> Iterable[tuple[str, MetricLossPart]]:
    """Return losses with the names they are logged by; the second triplet loss is ``triplet_2``."""
    counts: dict[str, int] = {}
    for loss in losses:
        name = part_name(loss)
        counts[name] = counts.get(name, 0) + 1
        yield name if counts[name] == 1 else f"{name}_{counts[name]}", loss


def part_name(part: Any) -> str:
    """Return the name of a function or class, also of a ``partial`` of it."""
    while isinstance(part, partial):
        part = part.func
    return str(getattr(part, "__name__", type(part).__name__))


def identity_labels(batch: Batch) -> Tensor:
    """Return the identity of each image (int64, B).

    Raises:
        DataMismatch: labels are mixed, as after mixup.
    """
    labels: Tensor = batch["label"]
    if labels.is_floating_point():
        raise DataMismatch("an image has one identity; remove mixup and cutmix from data.mix")
    return labels


@torch.no_grad()
def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of images whose identity has the largest logit (0-d)."""
    return (logits.argmax(1) == labels).float().mean()


def reduction_layer(width: int, to: int | None) -> nn.Module:
    """Return a linear layer without bias to another width, or an identity."""
    if to is None:
        return nn.Identity()
    layer = nn.Linear(width, to, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    return layer
