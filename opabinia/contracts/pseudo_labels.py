"""Pseudo-labels: labels of unlabeled images that a teacher predicts."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from opabinia.contracts.clock import Clock
from opabinia.contracts.data import Batch
from opabinia.contracts.evaluation import Predictions
from opabinia.contracts.training import Hook, Task, total_loss


class PseudoLabels(NamedTuple):
    """Labels of a batch of unlabeled images.

    Attributes:
        labels: labels by their keys in a batch that the task trains on: ``label``, ``mask``, ``boxes`` and ``labels``;
            ``image``, if the method mixes the images.
        kept: share of the images, boxes or pixels with a pseudo-label (0-d).
        precision: share of the pseudo-labels that are right (0-d), 0 without any; None without ground truth.
        factor: multiplies the losses (0-d).
    """

    labels: dict[str, Any]
    kept: Tensor
    precision: Tensor | None = None
    factor: Tensor | float = 1.0


class PseudoLabeler(nn.Module):
    """Turns the predictions of a teacher into labels that a task trains on. Built with the task and the unlabeled
    source; labels of that source must serve the precision alone.

    State that changes during a run belongs in buffers that a hook saves and changes after a step, so that a resumed
    run is exact.

    Attributes:
        keeps_positions: labels belong to positions in the image, so the strong transforms must not move pixels.
    """

    keeps_positions: bool = False

    def predict(self, teacher: Task, batch: Batch) -> Predictions:
        """Return the predictions that :meth:`forward` takes, by default those of ``teacher.predict``.

        Args:
            teacher: in evaluation mode.
            batch: ``image``, ``id`` and, of images that differ in size, ``image_sizes`` and an ``original_size`` equal
                to them.
        """
        return teacher.predict(batch)

    def forward(self, predictions: Predictions, batch: Batch) -> PseudoLabels:
        """Return the pseudo-labels of a batch.

        Args:
            predictions: see :meth:`predict`; without gradients.
            batch: the unlabeled images; ``index`` (int64, B) is the index of each in its source. Its labels, if it has
                some, are the ground truth and must serve the precision alone.
        """
        raise NotImplementedError

    def loss(self, task: Task, batch: Batch, clock: Clock) -> Tensor:
        """Return the loss of images with their pseudo-labels (0-d), by default the total loss of the task.

        Args:
            task: the student.
            batch: the strong views with their pseudo-labels in place of labels.
            clock: of the run.
        """
        return total_loss(task(batch, clock))[0]

    def hooks(self) -> list[Hook]:
        """Return hooks that update and save the state of the method."""
        return []
