"""Features as a task returns them, evaluated on any number of processes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opabinia.contracts import Batch, DatasetInfo, Predictions

CLASSES = ("a", "b", "c")
DATASET_INFO = DatasetInfo(samples=60, classes=CLASSES)


def class_clusters(centres: Tensor, each: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return vectors around the centre of their class (N x D) and their labels, which cycle through the classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(centres) * each) % len(centres)
    return centres[labels] + noise * torch.randn(len(labels), centres.shape[1], generator=generator), labels


def batches(features: Tensor, labels: Tensor | None, size: int = 7) -> list[tuple[Predictions, Batch]]:
    """Return the predictions and batches of a dataset; the features of layer ``wide`` are three times the embedding."""
    result = []
    for rows in torch.split(torch.arange(len(features)), size):
        batch: Batch = {"id": [str(row) for row in rows.tolist()]}
        if labels is not None:
            batch["label"] = labels[rows]
        result.append(({"embedding": features[rows], "layers/wide": 3 * features[rows]}, batch))
    return result


def states(make: Any, train: Sequence[Any], queries: Sequence[Any], processes: int = 1) -> list[Any]:
    """Return the states of evaluators on that many processes, which take batches in turn."""
    result = []
    for rank in range(processes):
        evaluator = make()
        for batch in train[rank::processes]:
            evaluator.learn(*batch)
        for batch in queries[rank::processes]:
            evaluator.update(*batch)
        result.append(evaluator.state())
    return result


def evaluate_batches(
    make: Any, train: Sequence[Any], queries: Sequence[Any], processes: int = 1
) -> tuple[dict[str, float], Any]:
    """Return scores and tables."""
    rank_states = states(make, train, queries, processes)
    evaluator = make()
    scores = evaluator.compute(rank_states)
    return scores, evaluator.details(rank_states)
