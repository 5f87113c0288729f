"""Embeddings of whole datasets, in the order of the data on any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import EMBEDDING, Batch, DataMismatch, DatasetInfo, Evaluator, Predictions


class Rows(NamedTuple):
    """N samples, one per row.

    Attributes:
        features: float32, N x D.
        labels: int64, N; 0 and 1, N x K, of multi-label data; None if unknown.
        ids: ids of the samples.
        cameras: int64, N; None if unknown.
        queries: bool, N; whether a sample is a query.
    """

    features: NDArray[np.float32]
    labels: NDArray[Any] | None
    ids: list[str]
    cameras: NDArray[np.int64] | None
    queries: NDArray[np.bool_]

    def known_labels(self) -> NDArray[Any]:
        """Return the labels.

        Raises:
            DataMismatch: there are none.
        """
        if self.labels is None:
            raise DataMismatch("every image needs a label here")
        return self.labels

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return features and labels on the device.

        Raises:
            DataMismatch: there are no labels.
        """
        return torch.from_numpy(self.features).to(device), torch.from_numpy(self.known_labels()).to(device)


Batches = list[Rows]
"""The batches of a process, in the order in which it saw them."""


def rows_of(predictions: Predictions, batch: Batch, layer: str = EMBEDDING) -> Rows:
    """Return the output of ``layer`` (B x ...), the ids, and ``label``, ``camera`` and ``query`` if known.

    They are copies: those of the whole dataset are kept, and would keep pinned memory and the slots of loader workers.
    """
    features = predictions[layer if layer == EMBEDDING else f"layers/{layer}"]
    ids = list(batch["id"])
    return Rows(
        features.detach().flatten(1).to("cpu", torch.float32, copy=True).numpy(),
        batch["label"].to("cpu", copy=True).numpy() if isinstance(batch.get("label"), Tensor) else None,
        ids,
        batch["camera"].to("cpu", copy=True).numpy() if "camera" in batch else None,
        torch.as_tensor(batch.get("query", [False] * len(ids))).cpu().numpy().astype(bool),
    )


def concatenate(states: Sequence[Batches]) -> Rows | None:
    """Return the rows of all processes in the order of the data (processes take batches in turn); None without any.

    Raises:
        DataMismatch: an embedding is not finite.
    """
    batches = [batch for turn in zip_longest(*states) for batch in turn if batch is not None]
    if not batches:
        return None
    features, labels, ids, cameras, queries = zip(*batches, strict=True)
    names = list(chain(*ids))
    invalid = np.flatnonzero(np.concatenate([~np.isfinite(rows).all(1) for rows in features]))
    if len(invalid):
        raise DataMismatch(
            f"{len(invalid)} of {len(names)} embeddings are not finite, the first that of {names[invalid[0]]}; if all "
            "are, the model has diverged"
        )
    return Rows(
        np.concatenate(features),
        None if any(column is None for column in labels) else np.concatenate(labels),
        names,
        None if any(column is None for column in cameras) else np.concatenate(cameras),
        np.concatenate(queries),
    )


def normalize_rows(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Scale rows to length 1; a row of zeros stays."""
    rows = features.astype(np.float64)
    lengths: NDArray[np.float64] = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def check_labels(name: str, dataset_info: DatasetInfo, *, multi_label: bool = False) -> None:
    """Check that a classifier can learn from the data.

    Args:
        name: name of the evaluator, for the message.
        dataset_info: facts about the data.
        multi_label: whether images may have several labels.

    Raises:
        ValueError: images have no classes, or several labels where they may not.
    """
    if len(dataset_info.classes) < 2 or dataset_info.boxes or (dataset_info.multi_label and not multi_label):
        needed = "labels" if multi_label else "one label"
        raise ValueError(f"{name}: every image of the data needs {needed}, of two classes or more")


class EmbeddingEvaluator(Evaluator):
    """Base of evaluators that keep the embeddings of the evaluated samples. Subclasses implement ``_scores``."""

    def __init__(self) -> None:
        self._batches: Batches = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch: ``predictions["embedding"]`` (B x D); ``label``, ``camera`` and ``query`` if known."""
        self._batches.append(rows_of(predictions, batch))

    def state(self) -> Any:
        """Return the batches of this process."""
        return self._batches

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Return the scores of all processes' samples; none without samples.

        Raises:
            DataMismatch: an embedding is not finite.
        """
        rows = concatenate(states)
        return {} if rows is None else self._scores(rows)

    def _scores(self, rows: Rows) -> dict[str, float]:
        raise NotImplementedError


class FeatureBankEvaluator(Evaluator):
    """Base of evaluators that learn from features of the training samples and evaluate on features of others.

    Subclasses implement ``_scores``, for the first layer, or ``compute``.

    Each rank keeps the features of its samples in host memory: 4 bytes per number, so ImageNet's 1.28 million training
    images with 2,048 numbers each take 10.5 GB per layer over all ranks. In the end rank 0 has them twice, as the ranks
    sent them and in the order of the data, and computes on its device alone.

    Args:
        name: name of the evaluator, for messages.
        dataset_info: facts about the data.
        layers: ``embedding``, or names of modules.
        multi_label: whether images may have several labels.

    Raises:
        ValueError: see :func:`check_labels`.
    """

    layers: Sequence[str] = (EMBEDDING,)

    def __init__(
        self, name: str, dataset_info: DatasetInfo, layers: Sequence[str] = (EMBEDDING,), *, multi_label: bool = False
    ) -> None:
        check_labels(name, dataset_info, multi_label=multi_label)
        self.layers = tuple(layers)
        self._training: dict[str, Batches] = {layer: [] for layer in self.layers}
        self._evaluated: dict[str, Batches] = {layer: [] for layer in self.layers}

    def learn(self, predictions: Predictions, batch: Batch) -> None:
        """Add training samples: their features and ``batch["label"]``."""
        for layer, batches in self._training.items():
            batches.append(rows_of(predictions, batch, layer))

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add samples to evaluate on: their features and ``batch["label"]``."""
        for layer, batches in self._evaluated.items():
            batches.append(rows_of(predictions, batch, layer))

    def state(self) -> BankState:
        """Return the batches of this process."""
        return self._training, self._evaluated

    def train_and_test(self, states: Sequence[BankState], layer: str) -> tuple[Rows, Rows] | None:
        """Return training and evaluated samples of all processes; None if nothing is evaluated.

        Raises:
            DataMismatch: there are no training samples, or a feature is not finite.
        """
        train, test = (concatenate([batches[layer] for batches in column]) for column in zip(*states, strict=True))
        if test is None:
            return None
        if train is None:
            raise DataMismatch("there are no training samples to learn from")
        return train, test

    def compute(self, states: Sequence[BankState]) -> dict[str, float]:
        """Return the scores of all processes' samples; none if nothing is evaluated.

        Raises:
            DataMismatch: there are no training samples, or a feature is not finite.
        """
        split = self.train_and_test(states, self.layers[0])
        return {} if split is None else self._scores(*split)

    def _scores(self, train: Rows, test: Rows) -> dict[str, float]:
        raise NotImplementedError


BankState = tuple[dict[str, Batches], dict[str, Batches]]
"""Batches by layer: of training samples, and of evaluated ones."""
