"""Tasks: what a batch means, and who judges what a model says of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from opabinia.contracts.clock import Clock
from opabinia.contracts.data import Batch, DatasetInfo

if TYPE_CHECKING:
    from opabinia.contracts.runs import Hook

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


class Task(nn.Module):
    """Says what a batch means. DDP, FSDP and compile wrap this one object.

    A task is an ``nn.Module`` with the methods below, in this order in every task of the house.

    Attributes:
        whole_batches: whether its losses compare the samples of a batch with each other, so that a batch cannot go
            through in pieces.
        compares_classes: whether they compare samples of a class with others, of which a batch must hold some.
        least: samples of a process that a step needs at least.
        size_multiple: images of a batch may differ in size; they are padded at the right and below to the largest of
            them, rounded up to a multiple of this. None: they may not.
    """

    whole_batches: bool = False
    compares_classes: bool = False
    least: int = 1
    size_multiple: int | None = None

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor] | Tensor | Sequence[Tensor]:
        """Losses of a batch. ``total_loss`` alone is trained if given, else the sum of every key that contains
        ``loss``; the rest is only logged. A bare tensor is the loss; a list is summed."""
        raise NotImplementedError

    def predict(self, batch: Batch) -> Predictions:
        """Batched predictions, read by evaluators and by the predict command."""
        raise NotImplementedError

    def readable(self, prediction: Mapping[str, Tensor]) -> dict[str, Any]:
        """One sample's prediction (a row of each tensor) as plain values for people: names of classes, not numbers.

        Here the ``embedding`` alone, rounded to six digits; where there is none all tensors.
        """
        if EMBEDDING in prediction:
            return {EMBEDDING: [round(value, 6) for value in prediction[EMBEDDING].tolist()]}
        return {name: value.tolist() for name, value in prediction.items()}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """``embedding`` (B x D): what stands before the head. Other layers are listened to by the names of modules."""
        raise NotImplementedError

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Fresh evaluators for one evaluation of a data set with these facts."""
        return []

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Hooks the method itself needs (momentum teachers, prototypes frozen at first)."""
        return []

    def initialised(self, names: Collection[str]) -> None:
        """``init`` has filled the tensors of these names; what began as a copy of them is to be one again."""
