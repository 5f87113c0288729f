"""Embeddings of whole data sets, in the order of the data on any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import EMBEDDING, Batch, DataMismatch, DatasetInfo, Predictions


class Rows(NamedTuple):
    """Some samples, a row for each of N.

    Attributes:
        features: float32, N x D.
        labels: int64, N; 0 and 1, N x K, of multi-label data; None where nobody tells them.
        ids: of the samples.
    """

    features: NDArray[np.float32]
    labels: NDArray[Any] | None
    ids: list[str]

    def known_labels(self) -> NDArray[Any]:
        """The labels.

        Raises:
            Unfit: there are none.
        """
        if self.labels is None:
            raise DataMismatch("every image needs a label here")
        return self.labels

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Features and labels.

        Raises:
            Unfit: there are no labels.
        """
        return torch.from_numpy(self.features), torch.from_numpy(self.known_labels())


Batches = list[Rows]
"""Of a process, in the order in which it saw them."""


def rows_of(predictions: Predictions, batch: Batch, layer: str = EMBEDDING) -> Rows:
    """What is kept of a batch: what ``layer`` gives (B x ...), ``label`` where there is one, and ``id``."""
    labels = batch["label"].cpu().numpy() if isinstance(batch.get("label"), Tensor) else None
    features = predictions[layer if layer == EMBEDDING else f"layers/{layer}"]
    return Rows(features.detach().flatten(1).float().cpu().numpy(), labels, list(batch["id"]))


def joined(states: Sequence[Batches]) -> Rows | None:
    """All batches of all processes in the order of the data, for they were dealt in turn; None if there are none.

    Raises:
        Unfit: an embedding is not finite.
    """
    batches = [one for turn in zip_longest(*states) for one in turn if one is not None]
    if not batches:
        return None
    features = np.concatenate([one.features for one in batches])
    labels = [one.labels for one in batches if one.labels is not None]
    ids = list(chain(*(one.ids for one in batches)))
    wrong = np.flatnonzero(~np.isfinite(features).all(1))
    if len(wrong):
        raise DataMismatch(f"{len(wrong)} of {len(ids)} embeddings are not finite, the first that of {ids[wrong[0]]}")
    return Rows(features, np.concatenate(labels) if len(labels) == len(batches) else None, ids)


def normalised(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Rows of length 1; one of zeros stays."""
    rows = features.astype(np.float64)
    lengths: NDArray[np.float64] = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def refuse_unlabelled(name: str, dataset_info: DatasetInfo, *, several: bool = False) -> None:
    """Tell data that a classifier cannot learn from.

    Args:
        name: of the evaluator, for the message.
        facts: of the data.
        several: whether images may have several labels.

    Raises:
        ValueError: images have no classes, or several where they may not.
    """
    if len(dataset_info.classes) < 2 or dataset_info.boxes or (dataset_info.multi_label and not several):
        needed = "labels" if several else "one label"
        raise ValueError(f"{name}: every image of the data needs {needed}, of two classes or more")


class Learner:
    """Keeps features of the training samples, which an evaluator learns from, and of those that it judges.

    All are held in memory, on every process those of all: 4 bytes a number, so ImageNet's 1.28 million training images
    at 2,048 numbers each are 10.5 GB for each layer.

    Args:
        layers: what features are taken of: ``embedding``, or names of modules.

    Attributes:
        device: where it computes; that of the task, in an evaluation.
    """

    layers: tuple[str, ...] = (EMBEDDING,)

    def __init__(self, layers: Sequence[str] = (EMBEDDING,)) -> None:
        self.layers = tuple(layers)
        self.device = torch.device("cpu")
        self._learned: dict[str, Batches] = {layer: [] for layer in self.layers}
        self._judged: dict[str, Batches] = {layer: [] for layer in self.layers}

    def learn(self, predictions: Predictions, batch: Batch) -> None:
        """Keep training samples: their features and ``batch["label"]``."""
        for layer, kept in self._learned.items():
            kept.append(rows_of(predictions, batch, layer))

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Keep samples to be judged, likewise."""
        for layer, kept in self._judged.items():
            kept.append(rows_of(predictions, batch, layer))

    def state(self) -> Sides:
        """The batches of this process: learned from, and judged."""
        return self._learned, self._judged

    def sides(self, states: Sequence[Sides], layer: str = EMBEDDING) -> tuple[Rows, Rows] | None:
        """Training samples, and samples to be judged, of all processes; None if there is nothing to be judged.

        Raises:
            Unfit: there are no training samples, or a feature is not finite.
        """
        learned, judged = (joined([side[layer] for side in column]) for column in zip(*states, strict=True))
        if judged is None:
            return None
        if learned is None:
            raise DataMismatch("there are no training samples to learn from")
        return learned, judged


Sides = tuple[dict[str, Batches], dict[str, Batches]]
"""By layer: training samples, and samples to be judged."""
