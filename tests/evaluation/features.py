"""Features as a task gives them, seen by an evaluator on any number of processes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opabinia.contracts import Batch, DatasetInfo, Predictions

CLASSES = ("a", "b", "c")
FACTS = DatasetInfo(samples=60, classes=CLASSES)


def around(centres: Tensor, each: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors around the centre of their class (N x D), and the classes, in turn."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(centres) * each) % len(centres)
    return centres[labels] + noise * torch.randn(len(labels), centres.shape[1], generator=generator), labels


def batches(features: Tensor, labels: Tensor | None, size: int = 7) -> list[tuple[Predictions, Batch]]:
    """What is said of a data set, batch by batch; the layer ``wide`` gives the same numbers three times as large."""
    found = []
    for rows in torch.split(torch.arange(len(features)), size):
        batch: Batch = {"id": [str(row) for row in rows.tolist()]}
        if labels is not None:
            batch["label"] = labels[rows]
        found.append(({"embedding": features[rows], "layers/wide": 3 * features[rows]}, batch))
    return found


def states(make: Any, known: Sequence[Any], asked: Sequence[Any], processes: int = 1) -> list[Any]:
    """What that many processes have seen, which take batches in turn."""
    found = []
    for rank in range(processes):
        evaluator = make()
        for seen in known[rank::processes] if hasattr(evaluator, "learn") else ():
            evaluator.learn(*seen)
        for seen in asked[rank::processes]:
            evaluator.update(*seen)
        found.append(evaluator.state())
    return found


def scored(make: Any, known: Sequence[Any], asked: Sequence[Any], processes: int = 1) -> tuple[dict[str, float], Any]:
    """Scores and tables."""
    seen = states(make, known, asked, processes)
    evaluator = make()
    scores = evaluator.compute(seen)
    return scores, getattr(evaluator, "details", lambda states: {})(seen)
