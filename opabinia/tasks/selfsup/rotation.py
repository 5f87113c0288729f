"""RotNet (Gidaris et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, DataMismatch, DatasetInfo
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions, forward_by_size


@register.task
class Rotation(SelfSupervised):
    """RotNet: classify by how many quarter turns an image was rotated; a batch has all four rotations of each image.

    Gidaris et al. 2018, Unsupervised Representation Learning by Predicting Image Rotations. It learns from square
    images, or from any number of square views of each. Training transforms may flip images but must not rotate them.

    Args:
        backbone: maps images to vectors.
        evaluators: of the embeddings; null takes ``knn`` if every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
    """

    min_samples_per_rank = 1

    def __init__(
        self, dataset_info: DatasetInfo, /, *, backbone: BackbonePart, **options: Unpack[SharedOptions]
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        self.head = self.backbone.make_head(4)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss``; ``top1``, the accuracy (1/4 by chance); and ``std``, the spread of vectors: 1 even, 0
        collapsed."""
        images = [self.normalize(view) for view in self.images_or_views(batch)]
        vectors = torch.cat(forward_by_size(self.backbone, quarter_turns(images)))
        logits = self.head(vectors)
        turns = torch.arange(4, device=logits.device).repeat_interleave(len(images[0])).repeat(len(images))
        return {
            "loss": cross_entropy(logits, turns),
            "top1": (logits.argmax(1) == turns).float().mean(),
            "std": spread(vectors),
        }


def quarter_turns(images: Sequence[Tensor]) -> list[Tensor]:
    """Return each tensor (B x C x s x s) rotated by zero to three quarter turns, counterclockwise.

    Raises:
        DataMismatch: the images are not square.
    """
    for views in images:
        height, width = views.shape[-2:]
        if height != width:
            raise DataMismatch(
                f"Rotation needs square images, not {height} x {width}: the shape would reveal the rotation; crop or "
                "resize them to a square in data.train.transforms"
            )
    return [views.rot90(turn, (-2, -1)) for views in images for turn in range(4)]
