"""MAE (He et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DataMismatch, DatasetInfo, EvaluatorPart
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.reconstruction import masked_error, patchify, standardised
from opabinia.models.masked_decoder import MaskedDecoder
from opabinia.tasks.selfsup.base import SelfSupervised


@register.task(name="mae")
class MAE(SelfSupervised):
    """From the few patches that it sees of an image a vision transformer is to tell the pixels of all others.

    He et al. 2022, Masked Autoencoders Are Scalable Vision Learners. Training images come with masks: their transforms
    end with ``random_patches``. The backbone's position embedding is its own, learned; the paper's is fixed.

    Args:
        backbone: a vision transformer of timm.
        decoder_width: of the decoder's tokens.
        decoder_depth: its blocks.
        decoder_heads: of its attention.
        norm_pixels: tell the pixels of a patch normalised by their own mean and deviation.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.

    Raises:
        ValueError: the backbone sees no patches, or the decoder's width does not go with its heads.
    """

    least = 1

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
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        if self.backbone.patch_size is None:
            raise ValueError("backbone: mae hides patches, and this one sees none; take a vision transformer of timm")
        height, width = self.patch_size = self.backbone.patch_size
        self.decoder = MaskedDecoder(
            self.backbone.token_channels,
            height * width * dataset_info.channels,
            width=decoder_width,
            depth=decoder_depth,
            heads=decoder_heads,
        )
        self.norm_pixels = norm_pixels
        self._seen: dict[int, int] = {}

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss``, and ``std``, how far the vectors of images are spread: 1 evenly, 0 collapsed."""
        images, mask, grid = self._masked(batch)
        kept = self._kept(mask)
        tokens = self.backbone.tokens(images, kept=kept)
        patches = patchify(images, self.patch_size)
        target = standardised(patches) if self.norm_pixels else patches
        loss = masked_error(self.decoder(tokens, kept, grid), target, mask)
        return {"loss": loss, "std": spread(tokens.first)}

    def _masked(self, batch: Batch) -> tuple[Tensor, Tensor, tuple[int, int]]:
        """Normalised images (B x C x H x W), their masks (B x N), and the patches down and across.

        Raises:
            Unfit: there are none, or they do not belong together.
        """
        if "image" not in batch or "patch_mask" not in batch:
            raise DataMismatch(
                "MAE learns from whole images with a patch_mask; end data.train.transforms with random_patches, "
                "without views"
            )
        images, mask = batch["image"], batch["patch_mask"]
        self.refuse_few(len(images))
        height, width = images.shape[2:]
        grid = height // self.patch_size[0], width // self.patch_size[1]
        if (grid[0] * self.patch_size[0], grid[1] * self.patch_size[1]) != (height, width):
            raise DataMismatch(
                f"images of {height} x {width} cannot be cut into the backbone's patches of {self._patch}"
            )
        if grid != self.backbone.grid((height, width)):
            raise DataMismatch(
                f"MAE needs patches side by side, not overlapping ones ({self._patch}); leave out their stride"
            )
        if mask.shape[1] != grid[0] * grid[1]:
            raise DataMismatch(
                f"a patch_mask of {mask.shape[1]} patches, for images of {height} x {width}, where the backbone sees "
                f"{grid[0]} x {grid[1]}; its transform is to have the patch_size of the backbone, {self._patch}, and "
                "to stand behind those that change the size"
            )
        return self.normalize(images), mask, grid

    @property
    def _patch(self) -> str:
        return f"{self.patch_size[0]} x {self.patch_size[1]}"

    def _kept(self, mask: Tensor) -> Tensor:
        """Numbers of the patches that are seen (int64, B x M), in their order.

        How many they are is asked of the device once for each number of patches, so that no other step waits for it.

        Raises:
            Unfit: the images do not see equally many, or not some of them.
        """
        counts, patches = (~mask).sum(1), mask.shape[1]
        if mask.device.type == "cpu" or patches not in self._seen:
            fewest, most = torch.stack(counts.aminmax()).tolist()
            if fewest != most or most in (0, patches):
                raise DataMismatch(
                    f"of the {patches} patches of an image {fewest} to {most} are seen; MAE needs as many of every "
                    "image of a batch, some of them seen and some hidden: take random_patches"
                )
            self._seen[patches] = most
        seen = self._seen[patches]
        torch._assert_async((counts == seen).all(), "images of a batch do not see equally many patches")
        return mask.byte().argsort(dim=1, stable=True)[:, :seen]
