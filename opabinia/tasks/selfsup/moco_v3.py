"""MoCo v3 (Chen, Xie and He 2021)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, Fraction, Positive, SchedulePart
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.contrastive import moco_v3_loss
from opabinia.models.projectors import mlp
from opabinia.optim.schedules import cosine
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions, gather_views
from opabinia.tasks.selfsup.momentum_teacher import MomentumTeacher


@register.task(name="moco_v3")
class MoCoV3(SelfSupervised):
    """MoCo v3: contrast each view's prediction with a momentum teacher's projections of the batch.

    Chen, Xie and He 2021, An Empirical Study of Training Self-Supervised Vision Transformers. There is no queue:
    batches are large (4,096 in the paper), and negatives come from all processes.

    Args:
        backbone: maps images to vectors.
        hidden: width of the hidden layers of projector and predictor.
        projection: width of the projections.
        layers: number of layers of the projector: the paper's 3; 2 for ResNets in the authors' code.
        momentum: fraction of the teacher that a step keeps, at first.
        momentum_schedule: multiplies ``1 - momentum`` over time; the paper's cosine takes the momentum to 1.
        temperature: divides cosines; the paper's 0.2, 1.0 for ResNets in the authors' code.
        freeze_patches: freeze the random patch projection, which stabilizes the training of a vision transformer
            (section 4.1); null: if the backbone has one.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.

    Raises:
        ValueError: ``freeze_patches`` is true, and the backbone has no patch projection.
    """

    requires_full_batch = True

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        hidden: Count = 4096,
        projection: Count = 256,
        layers: Count = 3,
        momentum: Fraction = 0.99,
        momentum_schedule: SchedulePart = cosine,
        temperature: Positive = 0.2,
        freeze_patches: bool | None = None,
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        patches = [param for name, param in self.backbone.named_parameters() if "patch_embed." in name]
        if freeze_patches and not patches:
            raise ValueError("freeze_patches: the backbone has no patch projection; remove the key, or set it to null")
        if freeze_patches is not False:
            for param in patches:
                param.requires_grad_(False)
        widths = [self.backbone.out_channels, *[hidden] * (layers - 1), projection]
        self.projector = mlp(widths, last_norm=True, last_bias=False)
        self.predictor = mlp([projection, hidden, projection], last_norm=False, last_bias=False)
        self.teacher = MomentumTeacher(momentum, momentum_schedule, backbone=self.backbone, projector=self.projector)
        self.temperature = temperature

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss`` and ``std``, the spread of predictions: 1 even, 0 collapsed."""
        views = self.views(batch, 2)
        # Views go through separately, as in the paper: a batch norm sees one at a time.
        predictions = [self.predictor(self.projector(self.backbone(view))) for view in views]
        targets = [self.teacher(view) for view in views]
        queries, keys = (gather_views(vectors, batch["id"]) for vectors in (predictions, targets))
        loss = moco_v3_loss(queries[0], keys[1], self.temperature) + moco_v3_loss(queries[1], keys[0], self.temperature)
        return {"loss": loss, "std": spread(queries[0])}
