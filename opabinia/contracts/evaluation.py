"""Evaluation: predictions of a batch, and the evaluators that accumulate over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from opabinia.contracts.data import Batch

Predictions = Mapping[str, Tensor]
"""What a model says of a batch, one row a sample in every tensor: ``logits`` (B x K), ``embedding`` (B x D) ...

Of things found in pictures, at most D a picture, best first, in the pixels of the picture as it was read: ``boxes``
(B x D x 4: left, top, right, bottom), ``scores`` (B x D), ``labels`` (int64, B x D; -1 where there are fewer),
``masks`` (B x D x S x S: the chance that a pixel belongs to the thing, the box being stretched to S x S), ``keypoints``
(B x D x P x 3: x, y, score); and losses of the batch, where its truth is known, as ``losses/<name>`` (B times the same
number)."""

EMBEDDING = "embedding"
"""What a task itself calls its features; every other layer is a module of it."""


class Evaluator(Protocol):
    """Accumulates over the batches of one evaluation; the result is the same on any number of processes.

    Example: ``update`` counts correct samples, ``gather`` brings the counts of all processes together in the
    order of positions, ``compute`` divides.

    Two more methods are used where they are there, called after ``compute`` with the same states: ``details(states)``
    gives tables by name that are too long for the journal (``eval/<set>/details.json``), ``files(states)`` plain values
    by the name of a file that is written beside it; this one is asked of the first process only.

    One that compares with the training data (a classifier by nearest neighbours) has ``learn(predictions, batch)``,
    too: like ``update``, for the samples of the training data, read as those of this set are, all of them before
    ``update`` sees the first.

    Attributes:
        better: the scores it gives and which way is better ("max" or "min"); the first one is its headline.
        layers: where it is there: names of modules of the task; what they give of each sample (B x D, maps and tokens
            averaged over their places) is in ``predictions`` as ``layers/<name>``. The name ``embedding`` asks for what
            the task's ``features`` gives, which is there as ``embedding``.
        device: where it is there: set to that of the task before the first batch. Predictions and batches themselves
            are on the host, so that a batch is judged while the next one goes through the model.
    """

    better: dict[str, str]

    def update(self, predictions: Predictions, batch: Batch) -> None: ...

    def state(self) -> Any:
        """What this process has seen, plain and small enough to be sent to the others."""
        ...

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Scores from the states of all processes, as fractions of 1. An empty data set gives no scores."""
        ...
