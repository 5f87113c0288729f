"""MAE (He et al. 2022)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DataMismatch, DatasetInfo
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.reconstruction import masked_mse, normalize_patches, patchify
from opabinia.models.masked_decoder import MaskedDecoder
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions


@register.task(name="mae")
class MAE(SelfSupervised):
    """MAE, masked autoencoder: reconstruct the pixels of masked patches from the few visible ones.

    He et al. 2022, Masked Autoencoders Are Scalable Vision Learners. Training images come with masks: their transforms
    end with ``random_patch_mask``. The backbone's position embedding is learned; the paper's is fixed.

    Args:
        backbone: a vision transformer of timm.
        decoder_width: width of the decoder's tokens.
        decoder_depth: number of its blocks.
        decoder_heads: number of its attention heads.
        norm_pixels: reconstruct pixels normalized by mean and deviation of their patch.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.

    Raises:
        ValueError: the backbone has no patches, or the decoder's width is not a multiple of its heads.
    """

    min_samples_per_rank = 1

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        decoder_width: Count = 512,
        decoder_depth: Count = 8,
        decoder_heads: Count = 16,
        norm_pixels: bool = True,
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        if self.backbone.patch_size is None:
            raise ValueError("backbone: mae masks patches, and this one has none; take a vision transformer of timm")
        height, width = self.patch_size = self.backbone.patch_size
        self.decoder = MaskedDecoder(
            self.backbone.token_channels,
            height * width * dataset_info.channels,
            width=decoder_width,
            depth=decoder_depth,
            heads=decoder_heads,
        )
        self.norm_pixels = norm_pixels
        self._visible_counts: dict[int, int] = {}

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss`` and ``std``, the spread of the images' vectors: 1 even, 0 collapsed."""
        images, mask, grid = self._masked_images(batch)
        kept = self._visible(mask)
        tokens = self.backbone.tokens(images, kept=kept)
        patches = patchify(images, self.patch_size)
        target = normalize_patches(patches) if self.norm_pixels else patches
        loss = masked_mse(self.decoder(tokens, kept, grid), target, mask)
        return {"loss": loss, "std": spread(tokens.first)}

    def _masked_images(self, batch: Batch) -> tuple[Tensor, Tensor, tuple[int, int]]:
        """Return normalized images (B x C x H x W), their masks (B x N), and the rows and columns of patches.

        Raises:
            DataMismatch: there are no masks, or they do not fit the images.
        """
        if "image" not in batch or "patch_mask" not in batch:
            raise DataMismatch(
                "MAE learns from images with a patch_mask; end data.train.transforms with random_patch_mask, "
                "without views"
            )
        images, mask = batch["image"], batch["patch_mask"]
        self.check_batch_size(len(images))
        height, width = images.shape[2:]
        grid = height // self.patch_size[0], width // self.patch_size[1]
        patch = f"{self.patch_size[0]} x {self.patch_size[1]}"
        if height % self.patch_size[0] or width % self.patch_size[1]:
            raise DataMismatch(f"images of {height} x {width} cannot be divided into the backbone's patches of {patch}")
        if grid != self.backbone.grid((height, width)):
            raise DataMismatch(f"MAE needs patches side by side, not overlapping ones ({patch}); remove their stride")
        if mask.shape[1] != grid[0] * grid[1]:
            raise DataMismatch(
                f"a patch_mask has {mask.shape[1]} patches, but images of {height} x {width} have {grid[0]} x "
                f"{grid[1]} in the backbone; its transform needs the patch_size of the backbone, {patch}, and "
                "must follow those that change the size"
            )
        return self.normalize(images), mask, grid

    def _visible(self, mask: Tensor) -> Tensor:
        """Return indices of the visible patches (int64, B x M), in their order.

        M is read from the device once for each number of patches, so that other steps need no synchronization.

        Raises:
            DataMismatch: images have different numbers of visible patches, or all or none of them.
        """
        counts, patches = (~mask).sum(1), mask.shape[1]
        if mask.device.type == "cpu" or patches not in self._visible_counts:
            fewest, most = torch.stack(counts.aminmax()).tolist()
            if fewest != most or most in (0, patches):
                raise DataMismatch(
                    f"{fewest} to {most} of the {patches} patches of an image are visible; MAE needs the same number "
                    "for all images of a batch, neither none nor all: take random_patch_mask"
                )
            self._visible_counts[patches] = most
        visible = self._visible_counts[patches]
        torch._assert_async((counts == visible).all(), "images of a batch differ in the number of visible patches")
        return mask.byte().argsort(dim=1, stable=True)[:, :visible]
