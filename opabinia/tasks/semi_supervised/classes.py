"""Pseudo-labels of classification: the classes of which the teacher is sure."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Batch, Fraction, Hook, Predictions, PseudoLabeler, PseudoLabels, Run, Source, Task
from opabinia.models.losses.cross_entropy import is_exclusive
from opabinia.runtime.collectives import gather_batch
from opabinia.tasks.classification_base import ClassificationBase


@register.pseudo_labels(name="classes")
class ClassLabels(PseudoLabeler):
    """Pseudo-labels of classification: the most probable class, if its probability is high enough (Sohn et al. 2020,
    FixMatch, equation 4). The loss is averaged over all unlabeled images; those without a label have the loss 0.

    Args:
        threshold: least probability.
        flexible: lower thresholds for classes that few images have reached so far (Zhang et al. 2021, FlexMatch,
            equations 5 to 11, with threshold warm-up and their convex mapping): the threshold of a class is multiplied
            by ``x / (2 - x)`` for the number of images whose newest label at ``threshold`` it is, relative to the
            largest such number or that of images without a label.

    Raises:
        ValueError: the task is no classification with one label per image, or its loss does not fit.
    """

    latest: Tensor

    def __init__(self, task: Task, unlabeled: Source, /, *, threshold: Fraction = 0.95, flexible: bool = False) -> None:
        super().__init__()
        if not isinstance(task, ClassificationBase):
            raise ValueError(f"classes are labels of classification; the task is {type(task).__name__}")
        if task.dataset_info.multi_label:
            raise ValueError("images may have several labels in this data; classes are exclusive")
        if not is_exclusive(task.loss):
            raise ValueError("images without a pseudo-label have the loss 0 with task.loss: cross_entropy or focal")
        self.threshold, self.flexible = threshold, flexible
        self._classes = len(task.dataset_info.classes)
        # The newest label of each unlabeled image; the number of classes where it never had one.
        self.register_buffer("latest", torch.full((len(unlabeled) if flexible else 0,), self._classes))
        self._newest: list[tuple[Tensor, Tensor]] = []

    def forward(self, predictions: Predictions, batch: Batch) -> PseudoLabels:
        """Return ``label`` (B x K): one-hot rows, and zeros for images without a label."""
        confidences, classes = predictions["probabilities"].max(1)
        thresholds: float | Tensor = self.threshold
        if self.flexible:
            self._record(batch, classes.where(confidences >= self.threshold, self._classes))
            thresholds = self.threshold * self.threshold_factors()[classes]
        kept = confidences >= thresholds
        labels = (classes[:, None] == torch.arange(self._classes, device=classes.device)) & kept[:, None]
        precision = None
        if "label" in batch:
            precision = ((classes == batch["label"]) & kept).sum() / kept.sum().clamp(min=1)
        return PseudoLabels({"label": labels.float()}, kept.float().mean(), precision)

    def threshold_factors(self) -> Tensor:
        """Return the factor of the threshold of each class (K)."""
        ones = torch.ones_like(self.latest, dtype=torch.float32)
        counts = ones.new_zeros(self._classes + 1).scatter_add_(0, self.latest, ones)
        status = counts[:-1] / counts.max().clamp(min=1)
        return status / (2 - status)

    def _record(self, batch: Batch, labels: Tensor) -> None:
        """Keep the labels of the global batch for the end of the step."""
        self._newest.append(gather_batch(batch["index"], labels, batch["id"]))

    def update(self) -> None:
        """Take over the labels of the newest step; images that lost theirs keep it."""
        for indices, labels in self._newest:
            self.latest.scatter_(0, indices, labels.where(labels < self._classes, self.latest[indices]))
        self._newest = []

    def hooks(self) -> list[Hook]:
        """Return the update of the newest labels, if thresholds are flexible."""
        return [_SavedLabels(self)] if self.flexible else []


class _SavedLabels(Hook):
    """Updates the newest labels after each step, and saves them."""

    def __init__(self, labels: ClassLabels) -> None:
        self._labels = labels

    def after_step(self, run: Run) -> None:
        self._labels.update()

    def tensors(self) -> dict[str, Tensor]:
        return {"latest": self._labels.latest}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self._labels.latest.copy_(tensors["latest"])
