"""RotNet (Gidaris et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, DataMismatch, DatasetInfo, EvaluatorPart
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.tasks.selfsup.base import SelfSupervised, in_few_passes


@register.task
class Rotation(SelfSupervised):
    """By how many quarters an image was turned is to be told; all four turns of each image are in the batch.

    Gidaris et al. 2018, Unsupervised Representation Learning by Predicting Image Rotations. It learns from square
    images, or from any number of square views of each. Mirroring them does no harm, turning them takes the answer away.

    Args:
        backbone: images to vectors.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.
    """

    least = 1

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        self.head = self.backbone.make_head(4)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss``; ``top1``, how often the turn is told right (1/4 by chance); and ``std``, how far vectors are
        spread: 1 evenly, 0 collapsed."""
        images = self.views(batch, least=1) if "views" in batch else [self.normalize(batch["image"])]
        vectors = torch.cat(in_few_passes(self.backbone, quarter_turns(images)))
        logits = self.head(vectors)
        turns = torch.arange(4, device=logits.device).repeat_interleave(len(images[0])).repeat(len(images))
        return {
            "loss": cross_entropy(logits, turns),
            "top1": (logits.argmax(1) == turns).float().mean(),
            "std": spread(vectors),
        }


def quarter_turns(images: Sequence[Tensor]) -> list[Tensor]:
    """Of each entry (B x C x s x s) itself, and turned by one, two and three quarters, counterclockwise.

    Raises:
        Unfit: they are not square.
    """
    for one in images:
        height, width = one.shape[-2:]
        if height != width:
            raise DataMismatch(
                f"Rotation turns images by a quarter, so they must be square, not {height} x {width}: their shape "
                "would tell the turn; crop or resize them to a square in data.train.transforms"
            )
    return [one.rot90(turn, (-2, -1)) for one in images for turn in range(4)]
