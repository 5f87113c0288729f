"""PIRL (Misra and van der Maaten 2020)."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, Fraction, Positive
from opabinia.evaluation.representation.collapse import spread
from opabinia.runtime.collectives import gather_batch
from opabinia.tasks.selfsup.base import SharedOptions
from opabinia.tasks.selfsup.jigsaw import PATCHES, cut_patches
from opabinia.tasks.selfsup.npid import NPID
from opabinia.tasks.selfsup.rotation import quarter_turns


@register.task(name="pirl")
class PIRL(NPID):
    """PIRL: find an image's entry in a memory bank by the image and by a puzzle or rotation of it, which thus do not
    change its representation.

    Misra and van der Maaten 2020, Self-Supervised Learning of Pretext-Invariant Representations. An image has two
    views: the first is embedded and kept in the memory bank (see :class:`opabinia.tasks.selfsup.npid.NPID`), the second
    is transformed. Images need their index: ``data.train.source: {name: indexed, source: ...}``. In the paper
    photometric changes are drawn for each patch, here for each view.

    Args:
        backbone: maps images and patches to vectors.
        pretext: ``jigsaw`` shuffles nine patches of the view; ``rotation`` turns it by 0, 90, 180 or 270 degrees.
        gap: share of its cell by which a patch is smaller.
        transformed_weight: weight of the loss of the transformed view; that of the image has the rest.
        projection: width of the projections.
        loss: as in ``npid``.
        negatives: entries of the memory bank that a step samples.
        temperature: divides cosines.
        momentum: fraction of an image's entry that an update keeps.
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
        pretext: Literal["jigsaw", "rotation"] = "jigsaw",
        gap: Fraction = 0.25,
        transformed_weight: Fraction = 0.5,
        projection: Count = 128,
        loss: Literal["nce", "info_nce"] = "nce",
        negatives: Count = 32000,
        temperature: Positive = 0.07,
        momentum: Fraction = 0.5,
        **options: Unpack[SharedOptions],
    ) -> None:
        memory = {"projection": projection, "loss": loss, "negatives": negatives, "temperature": temperature}
        super().__init__(dataset_info, backbone=backbone, momentum=momentum, **memory, **options)  # type: ignore[arg-type]
        self.pretext, self.gap, self.transformed_weight = pretext, gap, transformed_weight
        self.transformed_projector = nn.Linear(self.backbone.out_channels, projection)
        self.puzzle_projector = nn.Linear(PATCHES * projection, projection) if pretext == "jigsaw" else nn.Identity()

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``image_loss``, ``transformed_loss``, weighted, and ``std``, the spread of the images' projections: 1
        even, 0 collapsed.

        Raises:
            DataMismatch: the batch has no indices of images or not two views, or the second is not square.
        """
        (image, other), indices = self.views(batch, 2), self.image_indices(batch)
        negatives = self._sample_negatives(image.device)
        vectors = torch.cat([self.projector(self.backbone(image)), self._embed_transformed(other)], 1)
        vectors, indices = gather_batch(vectors, indices, batch["id"])
        queries, transformed = vectors.chunk(2, 1)
        log_normalizer = self._current_log_normalizer(queries, indices, negatives)
        self._newest = indices, queries.detach(), log_normalizer
        image_loss = self._compare(queries, indices, negatives, log_normalizer)
        transformed_loss = self._compare(transformed, indices, negatives, log_normalizer)
        return {
            "image_loss": (1 - self.transformed_weight) * image_loss,
            "transformed_loss": self.transformed_weight * transformed_loss,
            "std": spread(queries),
        }

    def _embed_transformed(self, views: Tensor) -> Tensor:
        """Transform views (B x C x s x s), each in its own way, and return projections (B x D)."""
        images = torch.arange(len(views), device=views.device)
        if self.pretext == "rotation":
            turns = torch.randint(4, (len(views),), device=views.device)
            rotated = torch.stack(quarter_turns([views]))[turns, images]
            projected: Tensor = self.transformed_projector(self.backbone(rotated))
            return projected
        order = torch.rand(len(views), PATCHES, device=views.device).argsort(1)
        patches = cut_patches(views, self.gap)[images[:, None], order]
        projections = self.transformed_projector(self.backbone(patches.flatten(0, 1)))
        joined: Tensor = self.puzzle_projector(projections.view(len(views), -1))
        return joined
