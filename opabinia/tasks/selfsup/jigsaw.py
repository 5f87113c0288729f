"""Jigsaw puzzles (Noroozi and Favaro 2016)."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DataMismatch, DatasetInfo, Fraction
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions

GRID = 3
PATCHES = GRID**2
CANDIDATES = 50_000
"""Permutations of which :func:`distant_permutations` chooses."""


@register.task(name="jigsaw")
class Jigsaw(SelfSupervised):
    """Jigsaw puzzles: classify in which of some permutations the nine patches of an image are shuffled.

    Noroozi and Favaro 2016, Unsupervised Learning of Visual Representations by Solving Jigsaw Puzzles. It learns from
    square images, or from any number of square views of each. The defaults are those of VISSL, whose backbone is a
    ResNet and sees a patch at a time; patches are cut at random places of their cells, so that their edges do not
    reveal the order.

    Args:
        backbone: maps patches to vectors.
        permutations: number of permutations, K, chosen far apart; see :func:`distant_permutations`.
        permutation_seed: of their choice.
        gap: share of a cell (a third of the image) by which a patch is smaller: VISSL's 64 of 85 pixels.
        hidden: width of a patch's projection.
        evaluators: of the embeddings; null takes ``knn`` if every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
    """

    has_validation_loss = False  # puzzles are drawn in training

    permutations: Tensor

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        permutations: Count = 2000,
        permutation_seed: int = 0,
        gap: Fraction = 0.25,
        hidden: Count = 1000,
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        self.gap = gap
        self.register_buffer("permutations", distant_permutations(permutations, permutation_seed))
        width = self.backbone.out_channels
        self.projector = nn.Sequential(nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True))
        self.head = nn.Linear(PATCHES * hidden, permutations)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss``; ``top1``, the accuracy (1 / K by chance); and ``std``, the spread of vectors: 1 even, 0
        collapsed."""
        images = [self.normalize(view) for view in self.images_or_views(batch)]
        patches = torch.cat([cut_patches(view, self.gap) for view in images])
        classes = torch.randint(len(self.permutations), (len(patches),), device=patches.device)
        shuffled = patches.gather(1, self.permutations[classes].view(-1, PATCHES, 1, 1, 1).expand_as(patches))
        vectors = self.backbone(shuffled.flatten(0, 1))
        logits = self.head(self.projector(vectors).view(len(patches), -1))
        top1 = (logits.argmax(1) == classes).float().mean()
        return {"loss": cross_entropy(logits, classes), "top1": top1, "std": spread(vectors)}


def cut_patches(images: Tensor, gap: float) -> Tensor:
    """Cut images (B x C x H x W) into nine patches, row by row (B x 9 x C x p x p).

    A patch is smaller than its cell by a share ``gap``, and lies at a random place of it; the places are the same for
    all images of the batch.

    Raises:
        DataMismatch: the images are not square, or patches would have no pixels.
    """
    height, width = images.shape[2:]
    cell, size = height // GRID, round(height // GRID * (1 - gap))
    if height != width or size < 1:
        raise DataMismatch(
            f"patches are cut from square images of some pixels, not {height} x {width} with a gap of {gap}; crop or "
            "resize them to a square in data.train.transforms"
        )
    places = torch.randint(cell - size + 1, (PATCHES, 2)).tolist()
    corners = [(number // GRID * cell + y, number % GRID * cell + x) for number, (y, x) in enumerate(places)]
    return torch.stack([images[:, :, top : top + size, left : left + size] for top, left in corners], 1)


def distant_permutations(count: int, seed: int = 0) -> Tensor:
    """Choose permutations of nine patches that are far apart (int64, K x 9): of :data:`CANDIDATES` drawn ones each next
    one has the largest mean Hamming distance to those before (Noroozi and Favaro 2016, algorithm 1).

    Args:
        count: K.
        seed: of the choice, which depends on nothing else.

    Raises:
        ValueError: ``count`` is above a fifth of the candidates.
    """
    if count > CANDIDATES // 5:
        raise ValueError(f"permutations: {count} is too many; at most {CANDIDATES // 5}")
    drawn = np.random.default_rng(seed).random((CANDIDATES, PATCHES)).argsort(1)
    columns = np.ascontiguousarray(drawn.T.astype(np.uint8))
    distances = np.zeros(CANDIDATES, dtype=np.int32)
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(int(distances.argmax()))
        step = np.zeros(CANDIDATES, dtype=np.int32)
        for column in columns:
            step += column != column[chosen[-1]]
        distances += np.where(step == 0, np.iinfo(np.int32).min // 2, step)  # the same one is not chosen again
    return torch.from_numpy(columns[:, chosen].T.astype(np.int64))
