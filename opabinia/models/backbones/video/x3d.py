"""X3D: networks of depth-wise convolutions, expanded from a tiny 2-d one (Feichtenhofer 2020)."""

from __future__ import annotations

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.config import register
from opabinia.models.backbones.video.base import ClipBackbone, Kernel, global_pool, init_weights, shortcut_projection

DEPTH_FACTORS: dict[str, float] = {"XS": 2.2, "S": 2.2, "M": 2.2, "L": 5.0}
"""Expansion of the number of blocks (SlowFast's configs). XS, S and M are one network for clips of three sizes."""

WIDTH_FACTOR, BOTTLENECK_FACTOR = 2.0, 2.25
BASE_STAGES = ((1, 12), (2, 24), (5, 48), (3, 96))
"""Blocks and channels of the stages of the network that all are expanded from (X2D in the paper)."""


def round_to_eight(width: float) -> int:
    """Round a width to a multiple of 8, at least 8 and nine tenths of it (Howard et al. 2019, MobileNet)."""
    nearest = max(8, int(width + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * width else nearest + 8


class SqueezeExcite3d(nn.Module):
    """Squeeze and excitation (Hu et al. 2018), with a sixteenth of the channels in between.

    Args:
        channels: number of channels of the feature maps.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        between = round_to_eight(channels / 16)
        self.fc1 = nn.Conv3d(channels, between, 1)
        self.fc2 = nn.Conv3d(between, channels, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """B x M x t x h x w of the same shape."""
        means = maps.mean((2, 3, 4), keepdim=True)
        weights: Tensor = self.fc2(F.relu(self.fc1(means), inplace=True)).sigmoid()
        return maps * weights


class X3dBlock(nn.Module):
    """An inverted bottleneck with a depth-wise 3 x 3 x 3 convolution and a shortcut.

    Args:
        inputs, outputs: channels.
        stride: stride of rows and columns.
        excite: squeeze and excitation after the depth-wise convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, excite: bool) -> None:
        super().__init__()
        between = int(outputs * BOTTLENECK_FACTOR)
        strides: Kernel = (1, stride, stride)
        self.conv1 = nn.Conv3d(inputs, between, 1, bias=False)
        self.bn1 = nn.BatchNorm3d(between)
        self.conv2 = nn.Conv3d(between, between, 3, strides, 1, groups=between, bias=False)
        self.bn2 = nn.BatchNorm3d(between)
        self.se = SqueezeExcite3d(between) if excite else nn.Identity()
        self.conv3 = nn.Conv3d(between, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm3d(outputs)
        self.downsample = shortcut_projection(inputs, outputs, strides)

    def forward(self, maps: Tensor) -> Tensor:
        """B x M x t x h x w to B x M' x t x h' x w'."""
        shortcut = maps if self.downsample is None else self.downsample(maps)
        maps = F.relu(self.bn1(self.conv1(maps)), inplace=True)
        maps = F.silu(self.se(self.bn2(self.conv2(maps))))
        return F.relu(self.bn3(self.conv3(maps)) + shortcut, inplace=True)


@register.backbone
class X3d(ClipBackbone):
    """X3D (Feichtenhofer 2020), for clips of any length and size. On CPUs its depth-wise convolutions take about
    ten times as long as other convolutions with as many multiply-adds.

    XS, S and M are one network of 3.8 million weights with 400 classes, for clips of 4 x 160 x 160, 13 x 160 x 160 and
    16 x 224 x 224 (0.60, 1.96 and 4.73 billion multiply-adds); L has 6.2 million, and 18.4 billion at 16 x 312 x 312
    (SlowFast's model zoo).

    Args:
        channels: channels of the frames.
        size: size of the network.
        zero_init_last: the last norm of every block has weight 0 at first (Goyal et al. 2017, section 5.1).
    """

    def __init__(
        self, channels: int, /, *, size: Literal["XS", "S", "M", "L"] = "M", zero_init_last: bool = True
    ) -> None:
        super().__init__(2048)
        width = round_to_eight(BASE_STAGES[0][1] * WIDTH_FACTOR)
        self.stem = nn.Sequential(  # spatial, then temporal, with nothing in between
            nn.Conv3d(channels, width, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
            nn.Conv3d(width, width, (5, 1, 1), 1, (2, 0, 0), groups=width, bias=False),
            nn.BatchNorm3d(width),
            nn.ReLU(inplace=True),
        )
        self.layers = [("stem",)]
        self.stages = nn.ModuleList()
        for number, (blocks, base) in enumerate(BASE_STAGES):
            stage: list[nn.Module] = []
            outputs = round_to_eight(base * WIDTH_FACTOR)
            for i in range(math.ceil(blocks * DEPTH_FACTORS[size])):
                stage.append(X3dBlock(width, outputs, 1 if i else 2, excite=i % 2 == 0))
                width = outputs
                self.layers.append((f"stages.{number}.{i}",))
            self.stages.append(nn.Sequential(*stage))
        wide = int(width * BOTTLENECK_FACTOR)
        self.conv5 = nn.Sequential(nn.Conv3d(width, wide, 1, bias=False), nn.BatchNorm3d(wide), nn.ReLU(inplace=True))
        self.fc1 = nn.Linear(wide, self.out_channels, bias=False)
        self.layers[-1] += ("conv5", "fc1")
        init_weights(self, zero_init_last=zero_init_last)
        nn.init.normal_(self.fc1.weight, std=0.01)

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x 2048."""
        maps = self.stem(clips)
        for blocks in self.stages:
            maps = self.run_blocks(blocks, maps)
        return F.relu(self.fc1(global_pool(self.conv5(maps))))
