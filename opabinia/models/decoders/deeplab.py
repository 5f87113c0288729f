"""DeepLabV3+."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models.segmentation.deeplabv3 import ASPP

from opabinia.config import register
from opabinia.contracts import Count, Level, SegmentationDecoder
from opabinia.models.decoders.layers import DecoderNorm, conv_block, resize_like


@register.decoder(name="deeplabv3plus")
class DeepLabV3Plus(SegmentationDecoder):
    """Atrous spatial pyramid pooling (torchvision's) on the coarsest feature map, joined with the finest one (Chen et
    al. 2018, DeepLabV3+, section 3).

    Args:
        levels: feature levels of the backbone. The paper's backbone ends with stride 16: ``options: {output_stride:
            16}`` of a timm ResNet.
        classes: K.
        channels: number of channels of the decoder.
        dilations: dilations of the pyramid pooling; the paper's are for stride 16, at stride 8 they are doubled.
        fine_channels: to which the finest feature map is reduced.
        norm: after the convolutions of the decoder; the pyramid pooling has batch norms.

    Raises:
        ValueError: the backbone has one level only.
    """

    min_samples_per_rank = 2  # batch norm over one pooled pixel per image

    def __init__(
        self,
        levels: Sequence[Level],
        classes: int,
        /,
        *,
        channels: Count = 256,
        dilations: tuple[Count, Count, Count] = (6, 12, 18),
        fine_channels: Count = 48,
        norm: DecoderNorm = "batch",
    ) -> None:
        super().__init__()
        if len(levels) < 2:
            raise ValueError("deeplabv3plus needs a fine and a coarse feature map, and the backbone gives one")
        self.aspp = ASPP(levels[-1].channels, dilations, channels)
        self.reduce = nn.Sequential(
            nn.Conv2d(levels[0].channels, fine_channels, 1, bias=False), nn.BatchNorm2d(fine_channels), nn.ReLU()
        )
        self.fuse = nn.Sequential(
            conv_block(channels + fine_channels, channels, 3, norm), conv_block(channels, channels, 3, norm)
        )
        self.classifier = nn.Conv2d(channels, classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        context = resize_like(self.aspp(maps[-1]), maps[0])
        logits: Tensor = self.classifier(self.fuse(torch.cat([context, self.reduce(maps[0])], dim=1)))
        return logits
