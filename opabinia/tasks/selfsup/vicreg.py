"""VICReg (Bardes et al. 2022)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, NonNegative
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses import redundancy
from opabinia.models.projectors import mlp
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions, gather_views


@register.task(name="vicreg")
class VICReg(SelfSupervised):
    """VICReg: equal vectors for views of an image, with enough variance and no covariance of coordinates.

    Bardes et al. 2022, VICReg: Variance-Invariance-Covariance Regularization. The invariance term covers all pairs of
    views. Variances and covariances are those of the batch of all processes.

    Args:
        backbone: maps images to vectors.
        hidden: width of the expander's hidden layers.
        projection: width of the vectors; the loss computes a square matrix of this size.
        layers: number of layers of the expander.
        invariance: weight of the distance between views.
        variance: weight of the hinge that keeps standard deviations at 1 or more.
        covariance: weight of the covariances of different coordinates.
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
        invariance: NonNegative = 25.0,
        variance: NonNegative = 25.0,
        covariance: NonNegative = 1.0,
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        # A bias of the last layer would change none of the three losses.
        self.expander = mlp([self.backbone.out_channels, *[hidden] * (layers - 1), projection], last_bias=False)
        self._invariance, self._variance, self._covariance = invariance, variance, covariance

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``invariance_loss``, ``variance_loss`` and ``covariance_loss``, weighted, and ``std``, the spread of
        vectors: 1 even, 0 collapsed."""
        # Views go through separately, as in the paper: a batch norm sees one at a time.
        vectors = [self.expander(self.backbone(view)) for view in self.views(batch)]
        gathered = gather_views(vectors, batch["id"])
        return {
            "invariance_loss": self._invariance * redundancy.invariance(gathered),
            "variance_loss": self._variance * redundancy.variance(gathered),
            "covariance_loss": self._covariance * redundancy.covariance(gathered),
            "std": spread(gathered[0]),
        }
