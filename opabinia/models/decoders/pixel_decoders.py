"""Decoders without a pyramid: a linear layer, convolutions on one level, and the perceptrons of SegFormer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Count, Fraction, Level, SegmentationDecoder
from opabinia.models.decoders.layers import DecoderNorm, conv_block, resize_like


@register.decoder
class Linear(SegmentationDecoder):
    """A linear layer on the last feature map, such as the tokens of a vision transformer, after a batch norm (the probe
    of Oquab et al. 2023, DINOv2, section 7.4).

    Args:
        levels: feature levels of the backbone.
        classes: K.
        norm: whether a batch norm comes first.
        dropout: dropout probability of whole channels.
    """

    def __init__(self, levels: Sequence[Level], classes: int, /, *, norm: bool = True, dropout: Fraction = 0.0) -> None:
        super().__init__()
        channels = levels[-1].channels
        self.norm = nn.BatchNorm2d(channels) if norm else nn.Identity()
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(channels, classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(self.norm(maps[-1])))
        return logits


@register.decoder
class Fcn(SegmentationDecoder):
    """Convolutions on one feature map (Long et al. 2015). As ``task.auxiliary`` on the level before the last it is the
    auxiliary head of PSPNet and UPerNet.

    Args:
        levels: feature levels of the backbone.
        classes: K.
        level: number of the feature map, counted from the end: 1 is the last.
        channels: number of channels of the convolutions.
        convolutions: their number.
        dropout: dropout probability of whole channels, before the classifier.
        norm: after each convolution.

    Raises:
        ValueError: the backbone has fewer levels.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        classes: int,
        /,
        *,
        level: Count = 1,
        channels: Count = 256,
        convolutions: Count = 1,
        dropout: Fraction = 0.1,
        norm: DecoderNorm = "batch",
    ) -> None:
        super().__init__()
        if level > len(levels):
            raise ValueError(f"level: {level} from the end, and the backbone has {len(levels)} levels")
        self._level = level
        widths = [levels[-level].channels, *[channels] * convolutions]
        pairs = pairwise(widths)
        self.convs = nn.Sequential(*(conv_block(first, second, 3, norm) for first, second in pairs))
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(channels, classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(self.convs(maps[-self._level])))
        return logits


@register.decoder(name="segformer")
class SegFormer(SegmentationDecoder):
    """A linear layer for each level, resized to the finest one and fused by another (Xie et al. 2021, SegFormer,
    section 3.2).

    Args:
        levels: feature levels of the backbone.
        classes: K.
        channels: number of channels of each level; the paper has 256 for B0 and B1, 768 for the larger ones.
        dropout: dropout probability of whole channels, before the classifier.
        norm: after the fusion.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        classes: int,
        /,
        *,
        channels: Count = 256,
        dropout: Fraction = 0.1,
        norm: DecoderNorm = "batch",
    ) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Conv2d(level.channels, channels, 1) for level in levels)
        self.fuse = conv_block(channels * len(levels), channels, 1, norm)
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(channels, classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        projected = [project(level) for project, level in zip(self.projections, maps, strict=True)]
        fused = self.fuse(torch.cat([resize_like(level, projected[0]) for level in reversed(projected)], dim=1))
        logits: Tensor = self.classifier(self.dropout(fused))
        return logits
