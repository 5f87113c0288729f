"""BYOL (Grill et al. 2020)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, Fraction, SchedulePart
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.regression import cosine_regression
from opabinia.models.projectors import mlp
from opabinia.optim.schedules import cosine
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions
from opabinia.tasks.selfsup.momentum_teacher import MomentumTeacher


@register.task(name="byol")
class BYOL(SelfSupervised):
    """BYOL: predict a momentum teacher's projection of one view from another view.

    Grill et al. 2020, Bootstrap Your Own Latent. Losses of all ordered pairs of views are averaged. The paper's batch
    norms are synchronized over processes: ``train.sync_batch_norm``.

    Args:
        backbone: maps images to vectors.
        hidden: width of the hidden layer of projector and predictor.
        projection: width of the projections.
        momentum: fraction of the teacher that a step keeps, at first.
        momentum_schedule: multiplies ``1 - momentum`` over time; the paper's cosine takes the momentum to 1.
        evaluators: of the embeddings; null takes ``knn`` if every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
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
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        self.projector = mlp([self.backbone.out_channels, hidden, projection])
        self.predictor = mlp([projection, hidden, projection])
        self.teacher = MomentumTeacher(momentum, momentum_schedule, backbone=self.backbone, projector=self.projector)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss``, from 0 to 8, and ``std``, the spread of projections: 1 even, 0 collapsed."""
        views = self.views(batch)
        # Views go through separately, as in the paper: a batch norm sees one at a time.
        projections = [self.projector(self.backbone(view)) for view in views]
        predictions = [self.predictor(projection) for projection in projections]
        targets = [self.teacher(view) for view in views]
        # Two squared distances (equation 2, and with the views swapped), each 2 - 2 cos.
        loss = 2 * (2 + 2 * cosine_regression(predictions, targets))
        return {"loss": loss, "std": spread(projections[0])}
