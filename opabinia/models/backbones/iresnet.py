"""IResNet: the residual networks of face recognition (Deng et al. 2019, ArcFace), with insightface's weight names."""

from __future__ import annotations

import math
from typing import Literal

from timm.layers.squeeze_excite import SEModule
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, Count, Fraction
from opabinia.models.backbones.module import ModuleBackbone, check_image_size

BLOCKS = {
    "iresnet18": (2, 2, 2, 2),
    "iresnet34": (3, 4, 6, 3),
    "iresnet50": (3, 4, 14, 3),
    "iresnet100": (3, 13, 30, 3),
    "iresnet200": (6, 26, 60, 6),
}
"""Blocks of the four stages by model."""


class ImprovedBlock(nn.Module):
    """Residual block: batch norm, convolution, batch norm, PReLU, convolution with stride, batch norm (section 3.1).

    Args:
        channels: number of channels of input and output.
        stride: 1 or 2.
        se: squeeze and excitation before the sum.
    """

    def __init__(self, channels: tuple[int, int], stride: int, se: bool) -> None:
        super().__init__()
        width = channels[1]
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.conv1 = nn.Conv2d(*channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.prelu = nn.PReLU(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.se = SEModule(width, rd_ratio=1 / 16) if se else nn.Identity()
        shortcut = (nn.Conv2d(*channels, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.downsample = nn.Sequential(*shortcut) if stride == 2 else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        """Return feature maps."""
        inner = self.prelu(self.bn2(self.conv1(self.bn1(maps))))
        output: Tensor = self.se(self.bn3(self.conv2(inner))) + self.downsample(maps)
        return output


class IResNet(nn.Module):
    """Images (B x C x H x W) to flattened feature maps of stride 16.

    Args:
        channels: number of channels of an image.
        blocks: number of blocks of the four stages.
        image_size: height and width of the images.
        se: squeeze and excitation in every block.
        dropout: dropout probability of the feature maps.

    Attributes:
        num_features: length of the vectors.
    """

    def __init__(
        self, channels: int, blocks: tuple[int, int, int, int], image_size: tuple[int, int], se: bool, dropout: float
    ) -> None:
        super().__init__()
        self.image_size = image_size
        self.num_features = 512 * math.prod(math.ceil(side / 16) for side in image_size)
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.prelu = nn.PReLU(64)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(
                ImprovedBlock((before, width), 2, se),
                *(ImprovedBlock((width, width), 1, se) for _ in range(count - 1)),
            )
            for before, width, count in zip((64, 64, 128, 256), (64, 128, 256, 512), blocks, strict=True)
        )
        self.bn2 = nn.BatchNorm2d(512)
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0, 0.1)

    def forward(self, images: Tensor) -> Tensor:
        """Return vectors (B x D).

        Raises:
            DataMismatch: the images have another size.
        """
        check_image_size(images, self.image_size)
        maps = self.prelu(self.bn1(self.conv1(images)))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        vectors: Tensor = self.dropout(self.bn2(maps)).flatten(1)
        return vectors


@register.backbone
def iresnet(
    channels: int,
    /,
    *,
    image_size: tuple[Count, Count],
    model: Literal["iresnet18", "iresnet34", "iresnet50", "iresnet100", "iresnet200"] = "iresnet50",
    se: bool = False,
    dropout: Fraction = 0.0,
) -> Backbone:
    """IResNet for face recognition (Deng et al. 2019, ArcFace, section 3.1): no pooling, an ``embedding`` of the task
    ``reid`` reduces the flattened feature map.

    Weights of insightface and FastReID load with ``init: {weights: FILE, target_prefix: backbone.module}``.

    Args:
        channels: channels of the images.
        image_size: height and width of the images, usually 112; others are refused.
        model: number of layers.
        se: squeeze and excitation in every block.
        dropout: dropout probability of the feature maps.
    """
    return ModuleBackbone(IResNet(channels, BLOCKS[model], image_size, se, dropout), channels)
