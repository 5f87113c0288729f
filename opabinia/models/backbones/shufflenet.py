"""ShuffleNet V2 (Ma et al. 2018), with the weight names of its authors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone
from opabinia.models.backbones.module import ModuleBackbone

CHANNELS = {
    "shufflenet_v2_x0_5": (48, 96, 192, 1024),
    "shufflenet_v2_x1_0": (116, 232, 464, 1024),
    "shufflenet_v2_x1_5": (176, 352, 704, 1024),
    "shufflenet_v2_x2_0": (244, 488, 976, 2048),
}
"""Channels of the three stages and of the last convolution by model (table 5)."""


def _conv_norm(channels: tuple[int, int], kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(*channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(channels[1])]


class ShuffleBlock(nn.Module):
    """Block of ShuffleNet V2 (figure 3, c and d): one half of the channels is convolved, the other kept; with
    ``stride`` 2 both branches see all channels.

    Args:
        channels: number of channels of input and output.
        stride: 1 or 2.
    """

    def __init__(self, channels: tuple[int, int], stride: int) -> None:
        super().__init__()
        inner = channels[1] // 2
        taken = channels[0] if stride == 2 else inner
        self.branch_main = nn.Sequential(
            *(*_conv_norm((taken, inner)), nn.ReLU()),
            *_conv_norm((inner, inner), 3, stride, inner),
            *(*_conv_norm((inner, channels[1] - taken)), nn.ReLU()),
        )
        projection = [*_conv_norm((taken, taken), 3, 2, taken), *_conv_norm((taken, taken)), nn.ReLU()]
        self.branch_proj = nn.Sequential(*projection) if stride == 2 else None

    def forward(self, maps: Tensor) -> Tensor:
        """Return feature maps."""
        if self.branch_proj is not None:
            return torch.cat((self.branch_proj(maps), self.branch_main(maps)), 1)
        # Every other channel is convolved: this is the channel shuffle.
        return torch.cat((maps[:, 0::2], self.branch_main(maps[:, 1::2])), 1)


class ShuffleNet(nn.Module):
    """Images (B x C x H x W) to feature maps of stride 32.

    Args:
        channels: number of channels of an image.
        widths: channels of the three stages and of the last convolution.
    """

    def __init__(self, channels: int, widths: tuple[int, int, int, int]) -> None:
        super().__init__()
        stem, *stages = 24, *widths[:3]
        self.first_conv = nn.Sequential(*_conv_norm((channels, stem), 3, 2), nn.ReLU())
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        for before, width, repeats in zip((stem, *stages), stages, (4, 8, 4), strict=False):
            blocks += [ShuffleBlock((before, width), 2), *(ShuffleBlock((width, width), 1) for _ in range(repeats - 1))]
        self.features = nn.Sequential(*blocks)
        self.conv_last = nn.Sequential(*_conv_norm((stages[-1], widths[3])), nn.ReLU())
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0, 0.01 if name.startswith("first") else 1 / module.weight.shape[1])
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.bias, 0.0001)

    def forward(self, images: Tensor) -> Tensor:
        """Return feature maps (B x M x H/32 x W/32)."""
        maps: Tensor = self.conv_last(self.features(self.maxpool(self.first_conv(images))))
        return maps


@register.backbone
def shufflenet(
    channels: int,
    /,
    *,
    model: Literal["shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0"],
) -> Backbone:
    """ShuffleNet V2 (Ma et al. 2018), as its authors and FastReID have it.

    Their pretrained weights load with ``init: {weights: FILE, target_prefix: backbone.module}``.

    Args:
        channels: channels of the images.
        model: width of the network.
    """
    return ModuleBackbone(ShuffleNet(channels, CHANNELS[model]), channels)
