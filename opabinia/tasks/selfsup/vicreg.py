"""VICReg (Bardes et al. 2022)."""

from __future__ import annotations

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, EvaluatorPart, NonNegative
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.redundancy import covariance as covariance_of
from opabinia.models.losses.redundancy import invariance as invariance_of
from opabinia.models.losses.redundancy import variance as variance_of
from opabinia.models.projectors import mlp
from opabinia.tasks.selfsup.base import SelfSupervised, of_all_processes


@register.task(name="vicreg")
class VICReg(SelfSupervised):
    """Views of an image are to have the same vector, in coordinates that vary enough and not together.

    Bardes et al. 2022, VICReg: Variance-Invariance-Covariance Regularization. Of more than two views every pair is to
    be alike. Variances and covariances are those of the batch of all processes.

    Args:
        backbone: images to vectors.
        hidden: width of the expander's hidden layers.
        projection: width of what is compared; the loss makes a square of it.
        layers: of the expander.
        invariance: weight of the distance between views.
        variance: weight of what deviations lack to 1.
        covariance: weight of the covariances of different coordinates.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.
    """

    whole_batches = True

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
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        # A bias at the end would change none of the three losses.
        self.expander = mlp([self.backbone.out_channels, *[hidden] * (layers - 1), projection], last_bias=False)
        self._invariance, self._variance, self._covariance = invariance, variance, covariance

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``invariance_loss``, ``variance_loss`` and ``covariance_loss``, weighted, and ``std``, how far vectors are
        spread: 1 evenly, 0 collapsed."""
        # One view after the other, as in the paper: a batch norm sees one of them at a time.
        vectors = [self.expander(self.backbone(view)) for view in self.views(batch)]
        everybody = of_all_processes(vectors, batch["id"])
        return {
            "invariance_loss": self._invariance * invariance_of(everybody),
            "variance_loss": self._variance * variance_of(everybody),
            "covariance_loss": self._covariance * covariance_of(everybody),
            "std": spread(everybody[0]),
        }
