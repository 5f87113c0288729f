"""Deformable convolutions in ResNets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision.ops import deform_conv2d

from opabinia.config import register
from opabinia.contracts import Count


@register.section(name="deformable")
@dataclass(frozen=True, kw_only=True)
class DeformableOptions:
    """Deformable convolutions of a ResNet, as in detectron2 (DEFORM_ON_PER_STAGE and the like).

    Args:
        stages: the stages, 1 to 4, whose 3 x 3 convolutions are deformable.
        modulated: with learned weights of the samples (Zhu et al. 2019).
        groups: groups of channels with offsets of their own.
    """

    stages: tuple[Literal[1, 2, 3, 4], ...]
    modulated: bool = False
    groups: Count = 1


class DeformableConv(nn.Module):
    """A convolution that samples its input at learned offsets (Dai et al. 2017), with learned weights of the samples if
    ``modulated`` (Zhu et al. 2019). It keeps the weight of the convolution that it replaces; offsets begin at 0.

    detectron2's ``conv2_offset`` has the shapes and order of ``offset``.

    Args:
        conv: without bias.
        groups: G, channels of a group share their offsets.
        modulated: see above; the weights begin at 0.5, as in detectron2.
    """

    def __init__(self, conv: nn.Conv2d, groups: int, modulated: bool) -> None:
        super().__init__()
        self.weight, self.modulated = conv.weight, modulated
        self.geometry: dict[str, Any] = {name: getattr(conv, name) for name in ("stride", "padding", "dilation")}
        height, width = conv.kernel_size
        numbers = (3 if modulated else 2) * groups * height * width
        self.offset = nn.Conv2d(conv.in_channels, numbers, (height, width), **self.geometry)
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)  # type: ignore[arg-type]

    def forward(self, input: Tensor) -> Tensor:
        """B x C x H x W to B x D x h x w."""
        offsets, mask = self.offset(input), None
        if self.modulated:
            first, second, mask = offsets.chunk(3, dim=1)
            offsets, mask = torch.cat([first, second], dim=1), mask.sigmoid()
        output: Tensor = deform_conv2d(input, offsets, self.weight, mask=mask, **self.geometry)
        return output


def add_deformable_convolutions(net: Any, options: DeformableOptions) -> None:
    """Make the 3 x 3 convolutions of bottlenecks in timm's ResNet deformable.

    Raises:
        ValueError: the blocks are no bottlenecks.
    """
    for stage in options.stages:
        for block in getattr(net, f"layer{stage}"):
            conv = getattr(block, "conv2", None)
            if not hasattr(block, "conv3") or not isinstance(conv, nn.Conv2d):
                raise ValueError(f"deformable: {type(block).__name__} has no 3 x 3 convolution between two others")
            block.conv2 = DeformableConv(conv, options.groups, options.modulated)
