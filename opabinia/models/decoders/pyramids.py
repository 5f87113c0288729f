"""Decoders of feature pyramids: semantic FPN and UPerNet."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

import torch
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork

from opabinia.config import register
from opabinia.contracts import Count, Fraction, Level, NeckPart, SegmentationDecoder
from opabinia.models.decoders.layers import DecoderNorm, GridAverage, check_strides, conv_block, resize_like
from opabinia.models.necks import fpn, norm_factory


@register.decoder(name="fpn")
class SemanticFpn(SegmentationDecoder):
    """The semantic branch of Panoptic FPN: each level of the pyramid is convolved and enlarged to stride 4, and their
    sum is classified (Kirillov et al. 2019, Panoptic Feature Pyramid Networks, section 3; detectron2's SemSegFPNHead).

    Args:
        levels: feature levels of the backbone, ending with strides 4, 8, 16, 32; or of the pyramid, with ``neck:
            null``.
        classes: K.
        neck: makes the pyramid; null: ``levels`` are one. Its levels above stride 32 are not used.
        channels: number of channels of the convolutions.
        norm: after each convolution.

    Raises:
        ValueError: there are no such levels.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        classes: int,
        /,
        *,
        neck: NeckPart | None = fpn,
        channels: Count = 128,
        norm: DecoderNorm = "group",
    ) -> None:
        super().__init__()
        self.neck = neck(levels) if neck else None
        used = [level for level in (self.neck.out_levels if self.neck else levels) if level.stride <= 32]
        check_strides(used, "fpn")
        self.scales = nn.ModuleList(self._enlarge(level, channels, norm) for level in used)
        self.classifier = nn.Conv2d(channels, classes, 1)

    @staticmethod
    def _enlarge(level: Level, channels: int, norm: DecoderNorm) -> nn.Sequential:
        """Return convolutions that enlarge a level to stride 4, by two after each."""
        doublings = int(log2(level.stride)) - 2
        layers: list[nn.Module] = []
        for index in range(max(1, doublings)):
            layers.append(conv_block(channels if index else level.channels, channels, 3, norm))
            if doublings:
                layers.append(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False))
        return nn.Sequential(*layers)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        pyramid = self.neck(maps) if self.neck else maps
        first, *others = (scale(level) for scale, level in zip(self.scales, pyramid, strict=False))
        logits: Tensor = self.classifier(sum(others, first))
        return logits


@register.decoder(name="upernet")
class UPerNet(SegmentationDecoder):
    """Pooling at four sizes on the coarsest map, a feature pyramid, and a fusion of its levels (Xiao et al. 2018,
    Unified Perceptual Parsing, section 3.2; the widths are mmsegmentation's).

    Args:
        levels: feature levels of the backbone, ending with strides 4, 8, 16, 32.
        classes: K.
        channels: number of channels of each level.
        pool_sizes: rows and columns of the pooled maps.
        dropout: dropout probability of whole channels, before the classifier.
        norm: after each convolution.

    Raises:
        ValueError: the backbone has no such levels.
    """

    min_samples_per_rank = 2  # batch norm over one pooled pixel per image

    def __init__(
        self,
        levels: Sequence[Level],
        classes: int,
        /,
        *,
        channels: Count = 512,
        pool_sizes: tuple[int, ...] = (1, 2, 3, 6),
        dropout: Fraction = 0.1,
        norm: DecoderNorm = "batch",
    ) -> None:
        super().__init__()
        check_strides(levels, "upernet")
        *finer, coarsest = levels[-4:]
        self.pools = nn.ModuleList(
            nn.Sequential(GridAverage(size), conv_block(coarsest.channels, channels, 1, norm)) for size in pool_sizes
        )
        self.bottleneck = conv_block(coarsest.channels + channels * len(pool_sizes), channels, 3, norm)
        inputs = [*(level.channels for level in finer), channels]
        self.fpn = FeaturePyramidNetwork(inputs, channels, norm_layer=norm_factory(norm, channels))
        self.fuse = conv_block(channels * 4, channels, 3, norm)
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(channels, classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        *finer, coarsest = maps[-4:]
        pooled = [resize_like(pool(coarsest), coarsest) for pool in self.pools]
        context = self.bottleneck(torch.cat([coarsest, *pooled], dim=1))
        pyramid = list(self.fpn({str(index): level for index, level in enumerate([*finer, context])}).values())
        fused = self.fuse(torch.cat([resize_like(level, pyramid[0]) for level in pyramid], dim=1))
        logits: Tensor = self.classifier(self.dropout(fused))
        return logits
