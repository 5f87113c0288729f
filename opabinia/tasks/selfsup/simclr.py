"""SimCLR (Chen et al. 2020)."""

from __future__ import annotations

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, EvaluatorPart, Positive
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.contrastive import nt_xent
from opabinia.models.projectors import mlp
from opabinia.tasks.selfsup.base import SelfSupervised, in_few_passes, of_all_processes


@register.task(name="simclr")
class SimCLR(SelfSupervised):
    """Two views of an image are to be nearer to each other than to all views of the other images in the batch.

    Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations.

    Args:
        backbone: images to vectors.
        hidden: width of the projector's hidden layer; null takes the backbone's.
        projection: width of what is compared.
        layers: of the projector (the paper's 2; 3 in SimCLR v2).
        temperature: divides cosines; the paper's 0.1 for batches of 4,096, 0.5 for small ones.
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
        hidden: Count | None = None,
        projection: Count = 128,
        layers: Count = 2,
        temperature: Positive = 0.1,
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        width = self.backbone.out_channels
        self.projector = mlp([width, *[hidden or width] * (layers - 1), projection])
        self.temperature = temperature

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss``, and ``std``, how far projections are spread: 1 evenly, 0 collapsed."""
        views = in_few_passes(lambda images: self.projector(self.backbone(images)), self.views(batch))
        everybody = of_all_processes(views, batch["id"])
        return {"loss": nt_xent(everybody, self.temperature), "std": spread(everybody[0])}
