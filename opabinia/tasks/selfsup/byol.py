"""BYOL (Grill et al. 2020)."""

from __future__ import annotations

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Count,
    DatasetInfo,
    EvaluatorPart,
    Fraction,
    Hook,
    SchedulePart,
)
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.regression import cosine_regression
from opabinia.models.projectors import mlp
from opabinia.optim.schedules import cosine
from opabinia.tasks.selfsup.base import SelfSupervised
from opabinia.tasks.selfsup.momentum_teacher import Follow, Teacher


@register.task(name="byol")
class BYOL(SelfSupervised):
    """One view's prediction is to be what a slowly following teacher makes of the other view.

    Grill et al. 2020, Bootstrap Your Own Latent. Of more than two views every ordered pair counts, by its mean. The
    paper's batch norms see all processes: ``train.sync_batch_norm``.

    Args:
        backbone: images to vectors.
        hidden: width of the hidden layer of projector and predictor.
        projection: width of what is compared.
        momentum: share of the teacher that a step keeps, at first.
        momentum_schedule: multiplies ``1 - momentum`` over time; the paper's cosine takes the momentum to 1.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        hidden: Count = 4096,
        projection: Count = 256,
        momentum: Fraction = 0.996,
        momentum_schedule: SchedulePart = cosine,
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        self.projector = mlp([self.backbone.out_channels, hidden, projection])
        self.predictor = mlp([projection, hidden, projection])
        self.teacher = Teacher(backbone=self.backbone, projector=self.projector)
        self._momentum, self._schedule = momentum, momentum_schedule

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss``, from 0 to 8, and ``std``, how far projections are spread: 1 evenly, 0 collapsed."""
        views = self.views(batch)
        # One view after the other, as in the paper: a batch norm sees one of them at a time.
        projections = [self.projector(self.backbone(view)) for view in views]
        predictions = [self.predictor(projection) for projection in projections]
        targets = [self.teacher(view) for view in views]
        # Two squared distances (equation 2, and with the views exchanged), each 2 - 2 cos.
        loss = 2 * (2 + 2 * cosine_regression(predictions, targets))
        return {"loss": loss, "std": spread(projections[0])}

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """The teacher follows after every step."""
        return [Follow(self.teacher, [self.backbone, self.projector], self._momentum, self._schedule)]
