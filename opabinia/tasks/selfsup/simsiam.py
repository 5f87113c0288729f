"""SimSiam (Chen and He 2021)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.regression import cosine_regression
from opabinia.models.projectors import mlp
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions


@register.task(name="simsiam")
class SimSiam(SelfSupervised):
    """SimSiam: predict the projection of one view, without its gradient, from another view.

    Chen and He 2021, Exploring Simple Siamese Representation Learning. Losses of all ordered pairs of views are
    averaged. The paper's batch norms are synchronized over processes: ``train.sync_batch_norm``. Its default keeps the
    predictor's learning rate constant, which no key does here: all parameters share one schedule, as in the first row
    of the paper's table 1 (67.7 % on ImageNet; the constant learning rate has 68.1 %).

    Args:
        backbone: maps images to vectors.
        projection: width of the projections and of the projector's hidden layers.
        layers: number of layers of the projector; 2 for small images, as on CIFAR in the paper (appendix D).
        hidden: width of the predictor's hidden layer, a quarter of ``projection`` in the paper.
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
        projection: Count = 2048,
        layers: Count = 3,
        hidden: Count = 512,
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        self.projector = mlp([self.backbone.out_channels, *[projection] * layers], last_norm=True, last_bias=False)
        self.predictor = mlp([projection, hidden, projection])

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss``, from -1 to 1, and ``std``, the spread of projections: 1 even, 0 collapsed."""
        # Views go through separately, as in the paper: a batch norm sees one at a time.
        projections = [self.projector(self.backbone(view)) for view in self.views(batch)]
        predictions = [self.predictor(projection) for projection in projections]
        return {"loss": cosine_regression(predictions, projections), "std": spread(projections[0])}
