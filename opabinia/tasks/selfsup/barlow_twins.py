"""Barlow Twins (Zbontar et al. 2021)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, NonNegative, Positive
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.redundancy import Normalize, barlow_twins
from opabinia.models.projectors import mlp
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions, gather_views


@register.task
class BarlowTwins(SelfSupervised):
    """Barlow Twins: each coordinate agrees between two views of an image and is decorrelated from the others.

    Zbontar et al. 2021, Barlow Twins: Self-Supervised Learning via Redundancy Reduction. Losses of all pairs of views
    are averaged. Means, variances and correlations are those of the batch of all processes.

    Args:
        backbone: maps images to vectors.
        hidden: width of the projector's hidden layers.
        projection: width of the projections; the loss computes a square matrix of this size.
        layers: number of layers of the projector.
        off_diagonal: weight of the correlations between different coordinates (the paper's lambda).
        scale: of the whole loss.
        normalize: with mean and variance of each view (``per_view``, the paper), or of all views (``joint``, VISSL).
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
        hidden: Count = 8192,
        projection: Count = 8192,
        layers: Count = 3,
        off_diagonal: NonNegative = 0.0051,
        scale: Positive = 0.024,
        normalize: Normalize = "per_view",
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        # The normalization would remove a bias of the last layer.
        self.projector = mlp([self.backbone.out_channels, *[hidden] * (layers - 1), projection], last_bias=False)
        self._off_diagonal, self._scale, self._normalize = off_diagonal, scale, normalize

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss`` and ``std``, the spread of projections: 1 even, 0 collapsed."""
        # Views go through separately, as in the paper: a batch norm sees one at a time.
        projections = [self.projector(self.backbone(view)) for view in self.views(batch)]
        gathered = gather_views(projections, batch["id"])
        loss = barlow_twins(gathered, self._off_diagonal, self._scale, normalize=self._normalize)
        return {"loss": loss, "std": spread(gathered[0])}
