"""SimSiam (Chen and He 2021)."""

from __future__ import annotations

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, EvaluatorPart
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.regression import cosine_regression
from opabinia.models.projectors import mlp
from opabinia.tasks.selfsup.base import SelfSupervised


@register.task(name="simsiam")
class SimSiam(SelfSupervised):
    """One view's prediction is to be the other view's projection, through which no gradient flows.

    Chen and He 2021, Exploring Simple Siamese Representation Learning. Of more than two views every ordered pair
    counts, by its mean. The paper's batch norms see all processes: ``train.sync_batch_norm``. Its default keeps the
    predictor's learning rate constant, which no key does here: the schedule is that of all parameters, as in the first
    row of the paper's table 1 (67.7 % on ImageNet, where the constant rate has 68.1 %).

    Args:
        backbone: images to vectors.
        projection: width of the projector, its hidden layers and what is compared.
        layers: of the projector; 2 for small images, as on CIFAR in the paper (appendix D).
        hidden: width of the predictor's hidden layer, a quarter of its ends.
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
        projection: Count = 2048,
        layers: Count = 3,
        hidden: Count = 512,
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        self.projector = mlp([self.backbone.out_channels, *[projection] * layers], last_norm=True, last_bias=False)
        self.predictor = mlp([projection, hidden, projection])

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss``, from -1 to 1, and ``std``, how far projections are spread: 1 evenly, 0 collapsed."""
        # One view after the other, as in the paper: a batch norm sees one of them at a time.
        projections = [self.projector(self.backbone(view)) for view in self.views(batch)]
        predictions = [self.predictor(projection) for projection in projections]
        return {"loss": cosine_regression(predictions, projections), "std": spread(projections[0])}
