"""Barlow Twins (Zbontar et al. 2021)."""

from __future__ import annotations

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, EvaluatorPart, NonNegative, Positive
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.redundancy import Normalize, barlow_twins
from opabinia.models.projectors import mlp
from opabinia.tasks.selfsup.base import SelfSupervised, of_all_processes


@register.task
class BarlowTwins(SelfSupervised):
    """Every coordinate is to say the same of two views of an image, and something else than the other coordinates.

    Zbontar et al. 2021, Barlow Twins: Self-Supervised Learning via Redundancy Reduction. Of more than two views every
    pair counts, by its mean. Means, variances and correlations are those of the batch of all processes.

    Args:
        backbone: images to vectors.
        hidden: width of the projector's hidden layers.
        projection: width of what is compared; the loss makes a square of it.
        layers: of the projector.
        off_diagonal: weight of the correlations between different coordinates (the paper's lambda).
        scale: of the whole loss.
        normalize: by mean and variance of each view (``per_view``, the paper), or of all views (``joint``, VISSL).
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
        off_diagonal: NonNegative = 0.0051,
        scale: Positive = 0.024,
        normalize: Normalize = "per_view",
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        # A bias at the end would vanish with the mean.
        self.projector = mlp([self.backbone.out_channels, *[hidden] * (layers - 1), projection], last_bias=False)
        self._off_diagonal, self._scale, self._normalize = off_diagonal, scale, normalize

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss``, and ``std``, how far projections are spread: 1 evenly, 0 collapsed."""
        # One view after the other, as in the paper: a batch norm sees one of them at a time.
        projections = [self.projector(self.backbone(view)) for view in self.views(batch)]
        everybody = of_all_processes(projections, batch["id"])
        loss = barlow_twins(everybody, self._off_diagonal, self._scale, normalize=self._normalize)
        return {"loss": loss, "std": spread(everybody[0])}
