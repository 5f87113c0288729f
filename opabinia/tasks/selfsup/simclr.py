"""SimCLR (Chen et al. 2020)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, Positive
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.contrastive import nt_xent
from opabinia.models.projectors import mlp
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions, forward_by_size, gather_views


@register.task(name="simclr")
class SimCLR(SelfSupervised):
    """SimCLR: contrast two views of an image with all views of the other images in the batch.

    Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations.

    Args:
        backbone: maps images to vectors.
        hidden: width of the projector's hidden layer; null takes the backbone's.
        projection: width of the projections.
        layers: number of layers of the projector (the paper's 2; 3 in SimCLR v2).
        temperature: divides cosines; the paper's 0.1 for batches of 4,096, 0.5 for small ones.
        evaluators: of the embeddings; null takes ``knn`` if every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
    """

    requires_full_batch = True

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        hidden: Count | None = None,
        projection: Count = 128,
        layers: Count = 2,
        temperature: Positive = 0.1,
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        width = self.backbone.out_channels
        self.projector = mlp([width, *[hidden or width] * (layers - 1), projection])
        self.temperature = temperature

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss`` and ``std``, the spread of projections: 1 even, 0 collapsed."""
        views = forward_by_size(lambda images: self.projector(self.backbone(images)), self.views(batch))
        gathered = gather_views(views, batch["id"])
        return {"loss": nt_xent(gathered, self.temperature), "std": spread(gathered[0])}
