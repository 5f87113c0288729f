"""MoCo v3 (Chen, Xie and He 2021)."""

from __future__ import annotations

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Count,
    DatasetInfo,
    EvaluatorPart,
    Fraction,
    Hook,
    Positive,
    SchedulePart,
)
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.contrastive import against_keys
from opabinia.models.projectors import mlp
from opabinia.optim.schedules import cosine
from opabinia.tasks.selfsup.base import SelfSupervised, of_all_processes
from opabinia.tasks.selfsup.momentum_teacher import Follow, Teacher


@register.task(name="moco_v3")
class MoCoV3(SelfSupervised):
    """Each view's prediction is to be told what a slowly following teacher makes of the other view, among the batch.

    Chen, Xie and He 2021, An Empirical Study of Training Self-Supervised Vision Transformers. There is no queue:
    batches are large (4,096 in the paper), and images of all processes are told apart.

    Args:
        backbone: images to vectors.
        hidden: width of the hidden layers of projector and predictor.
        projection: width of what is compared.
        layers: of the projector: the paper's 3; 2 for ResNets in the authors' code.
        momentum: share of the teacher that a step keeps, at first.
        momentum_schedule: multiplies ``1 - momentum`` over time; the paper's cosine takes the momentum to 1.
        temperature: divides cosines; the paper's 0.2, 1.0 for ResNets in the authors' code.
        freeze_patches: whether the projection of patches stays as it is drawn, which keeps the training of a vision
            transformer from jumping (section 4.1); null: where the backbone has one.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.

    Raises:
        ValueError: patches are to be frozen, and the backbone has none.
    """

    whole_batches = True

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
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        if freeze_patches is not False:
            self._freeze_patches(required=freeze_patches is True)
        widths = [self.backbone.out_channels, *[hidden] * (layers - 1), projection]
        self.projector = mlp(widths, last_norm=True, last_bias=False)
        self.predictor = mlp([projection, hidden, projection], last_norm=False, last_bias=False)
        self.teacher = Teacher(backbone=self.backbone, projector=self.projector)
        self.temperature = temperature
        self._momentum, self._schedule = momentum, momentum_schedule

    def _freeze_patches(self, *, required: bool) -> None:
        """Let the projection of patches learn nothing.

        Raises:
            ValueError: it is required, and there is none.
        """
        patches = [one for name, one in self.backbone.named_parameters() if "patch_embed." in name]
        if required and not patches:
            raise ValueError(
                "freeze_patches: the backbone has no projection of patches; leave the key out, or say null"
            )
        for parameter in patches:
            parameter.requires_grad_(False)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss``, and ``std``, how far predictions are spread: 1 evenly, 0 collapsed."""
        views = self.views(batch, 2)
        # One view after the other, as in the paper: a batch norm sees one of them at a time.
        own = [self.predictor(self.projector(self.backbone(view))) for view in views]
        given = [self.teacher(view) for view in views]
        queries, keys = (of_all_processes(both, batch["id"]) for both in (own, given))
        loss = against_keys(queries[0], keys[1], self.temperature) + against_keys(queries[1], keys[0], self.temperature)
        return {"loss": loss, "std": spread(queries[0])}

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """The teacher follows after every step."""
        return [Follow(self.teacher, [self.backbone, self.projector], self._momentum, self._schedule)]
