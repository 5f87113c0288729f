"""OSNet: omni-scale feature learning for person re-identification (Zhou et al. 2019), with torchreid's weight names."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone
from opabinia.models.backbones.module import ModuleBackbone

CHANNELS = {
    "osnet_x1_0": (64, 256, 384, 512),
    "osnet_x0_75": (48, 192, 288, 384),
    "osnet_x0_5": (32, 128, 192, 256),
    "osnet_x0_25": (16, 64, 96, 128),
}
"""Channels of the stem and the three stages by model (section 4.1)."""


class ConvNorm(nn.Module):
    """Convolution, norm and ReLU.

    Args:
        channels: number of channels of input and output.
        kernel: side of the kernel.
        stride: stride of the convolution.
        relu: end with a ReLU.
        instance: instance instead of batch norm.
    """

    def __init__(
        self, channels: tuple[int, int], kernel: int = 1, stride: int = 1, relu: bool = True, instance: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(*channels, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.InstanceNorm2d(channels[1], affine=True) if instance else nn.BatchNorm2d(channels[1])
        self.relu = nn.ReLU() if relu else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        """Return feature maps."""
        output: Tensor = self.relu(self.bn(self.conv(maps)))
        return output


class LightConv(nn.Module):
    """Lite 3 x 3: a convolution of single pixels, one of single channels, batch norm and ReLU (section 3.1)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Return feature maps of the same shape."""
        return F.relu(self.bn(self.conv2(self.conv1(maps))))


class Gate(nn.Module):
    """Aggregation gate: channel weights from the averaged feature map, shared by all streams (section 3.2)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // 16, 1)
        self.fc2 = nn.Conv2d(channels // 16, channels, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """Return weighted feature maps."""
        weights: Tensor = self.fc2(self.fc1(maps.mean((2, 3), keepdim=True)).relu()).sigmoid()
        return maps * weights


class OmniScaleBlock(nn.Module):
    """Residual block with streams of one to four Lite 3 x 3, summed by a gate (section 3.2, figure 4).

    Args:
        channels: number of channels of input and output.
        instance: instance norm after the sum (OSNet-IBN).
    """

    def __init__(self, channels: tuple[int, int], instance: bool) -> None:
        super().__init__()
        inner = channels[1] // 4
        self.conv1 = ConvNorm((channels[0], inner))
        self.conv2a = LightConv(inner)
        self.conv2b, self.conv2c, self.conv2d = (
            nn.Sequential(*(LightConv(inner) for _ in range(length))) for length in (2, 3, 4)
        )
        self.gate = Gate(inner)
        self.conv3 = ConvNorm((inner, channels[1]), relu=False)
        self.downsample = ConvNorm(channels, relu=False) if channels[0] != channels[1] else nn.Identity()
        self.IN = nn.InstanceNorm2d(channels[1], affine=True) if instance else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        """Return feature maps of the same size."""
        reduced = self.conv1(maps)
        streams = (self.conv2a, self.conv2b, self.conv2c, self.conv2d)
        gated = torch.stack([self.gate(stream(reduced)) for stream in streams]).sum(0)
        output: Tensor = self.IN(self.conv3(gated) + self.downsample(maps)).relu()
        return output


class OSNet(nn.Module):
    """Images (B x C x H x W) to feature maps of stride 16.

    Args:
        channels: number of channels of an image.
        widths: channels of the stem and of the three stages.
        instance: instance norms in the stem and the first stage (OSNet-IBN).
    """

    def __init__(self, channels: int, widths: tuple[int, int, int, int], instance: bool) -> None:
        super().__init__()
        self.conv1 = ConvNorm((channels, widths[0]), 7, 2, instance=instance)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.conv2, self.conv3, self.conv4 = (
            nn.Sequential(
                OmniScaleBlock((widths[stage], widths[stage + 1]), instance and stage == 0),
                OmniScaleBlock((widths[stage + 1], widths[stage + 1]), instance and stage == 0),
                *([nn.Sequential(ConvNorm((widths[stage + 1], widths[stage + 1])), nn.AvgPool2d(2))] * (stage < 2)),
            )
            for stage in range(3)
        )
        self.conv5 = ConvNorm((widths[3], widths[3]))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return feature maps (B x M x H/16 x W/16)."""
        maps: Tensor = self.conv5(self.conv4(self.conv3(self.conv2(self.maxpool(self.conv1(images))))))
        return maps


@register.backbone
def osnet(
    channels: int,
    /,
    *,
    model: Literal["osnet_x1_0", "osnet_x0_75", "osnet_x0_5", "osnet_x0_25"] = "osnet_x1_0",
    ibn: bool = False,
) -> Backbone:
    """OSNet, a small network for re-identification (Zhou et al. 2019): 1.9 million parameters at width 1.

    Pretrained weights of torchreid and FastReID load with ``init: {weights: FILE, target_prefix: backbone.module}``.

    Args:
        channels: channels of the images.
        model: width of the network.
        ibn: instance norms in the stem and after the blocks of the first stage (OSNet-IBN).
    """
    return ModuleBackbone(OSNet(channels, CHANNELS[model], ibn), channels)
