"""Semi-supervised training: a task learns from labeled images, and from unlabeled ones by a teacher's predictions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    SINGLE,
    UNLABELED,
    WEAK_IMAGE,
    Batch,
    Clock,
    DatasetInfo,
    Fraction,
    Hook,
    NonNegative,
    PseudoLabeler,
    PseudoLabels,
    PseudoLabelsPart,
    Stream,
    Task,
    TransformPart,
)
from opabinia.optim.ema import Ema, SavedAverage
from opabinia.runtime.collectives import counted_samples
from opabinia.runtime.durations import Duration
from opabinia.tasks.multitask.partial_labels import stream_factors
from opabinia.tasks.wrapper_base import TaskWrapper, combine_losses


@register.section(name="semi_supervised")
@dataclass(frozen=True, kw_only=True)
class SemiSupervised:
    """Semi-supervised training: images without labels, and how they get pseudo-labels.

    A teacher, which is an exponential moving average of the trained weights (Tarvainen and Valpola 2017, Mean
    Teacher), predicts the labels of weakly augmented images; the task learns them from strongly augmented ones.

    Args:
        unlabeled: the unlabeled images and the transforms of the weak view, those that move pixels among them. Labels
            of this source are never trained on; with the classes of the labeled data they give ``pseudo/precision``.
        strong: further transforms, of the strong view: colors, blur, erasing. For boxes and segmentation maps they must
            not move pixels.
        pseudo_labels: how predictions become labels: ``classes``, ``pixels`` or ``boxes``.
        batch_share: share of the unlabeled images in each batch. FixMatch has seven for each labeled one (0.875).
        weight: multiplies the losses of unlabeled images.
        warmup: beginning of the run in which only labeled images are trained on, and the teacher is a copy of the
            weights (the burn-in of Unbiased Teacher).
        decay: fraction of the teacher that an update keeps; after the warm-up it rises to this value as in
            ``ema.warmup``.
    """

    unlabeled: Stream
    strong: Sequence[TransformPart] = ()
    pseudo_labels: PseudoLabelsPart
    batch_share: Annotated[float, Interval(gt=0, lt=1)] = 0.5
    weight: NonNegative = 1.0
    warmup: Duration = Duration(0, "ep")
    decay: Fraction = 0.999


class SemiSupervisedTask(TaskWrapper):
    """A task that learns from unlabeled images, too: a step calls it in place of the task.

    Args:
        task: the task that is trained.
        labeler: makes pseudo-labels of the teacher's predictions.
        settings: weights and times.
    """

    def __init__(self, task: Task, labeler: PseudoLabeler, settings: SemiSupervised) -> None:
        super().__init__(task, copy.deepcopy(task).eval().requires_grad_(False))
        self.labeler, self.settings = labeler, settings

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return the losses of the labeled images under the task's names, ``pseudo_loss`` of the unlabeled ones, and
        ``pseudo/kept`` and ``pseudo/precision``, see :class:`opabinia.contracts.PseudoLabels`.

        Args:
            batch: with the streams of labeled and unlabeled images.
            clock: of the run.
        """
        factors, counts = stream_factors(batch), batch.get("counts", {})
        # A stream with too few samples for the micro-batches repeats one, which counts 0.
        with counted_samples(counts.get(SINGLE) != 0):
            losses = self.task(batch["streams"][SINGLE], clock)
        added: dict[str, Tensor] = {}
        if clock.step >= clock.steps(self.settings.warmup):
            with counted_samples(counts.get(UNLABELED) != 0):
                added = self._pseudo_losses(batch["streams"][UNLABELED], factors[UNLABELED], clock)
        return combine_losses(losses, factors[SINGLE], added)

    def _pseudo_losses(self, batch: Batch, factor: float, clock: Clock) -> dict[str, Tensor]:
        """Return the values of unlabeled images; ``factor``: of their mean, see :func:`stream_factors`."""
        pseudo = self._label(batch)
        known: Batch = {name: batch[name] for name in ("id", "image_sizes") if name in batch}
        loss = self.labeler.loss(self.task, {**known, "image": batch["image"], **pseudo.labels}, clock)
        values = {"pseudo_loss": self.settings.weight * factor * pseudo.factor * loss, "pseudo/kept": pseudo.kept}
        return values if pseudo.precision is None else {**values, "pseudo/precision": pseudo.precision}

    def _label(self, batch: Batch) -> PseudoLabels:
        """Return the pseudo-labels of a batch, from its weak views."""
        sizes = {name: batch["image_sizes"] for name in ("image_sizes", "original_size") if "image_sizes" in batch}
        assert self.average is not None
        with torch.no_grad():
            predictions = self.labeler.predict(self.average, {"image": batch[WEAK_IMAGE], "id": batch["id"], **sizes})
        labels: PseudoLabels = self.labeler(predictions, batch)
        return labels

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return the hooks of the task, the update of the teacher, and the hooks of the pseudo-labels."""
        assert self.average is not None
        ema = Ema(decay=self.settings.decay, start=self.settings.warmup, warmup=True)
        teacher = SavedAverage(self.average, self.task, ema.weight_at, buffers="synchronized")
        return [*self.task.hooks(dataset_info), teacher, *self.labeler.hooks()]
