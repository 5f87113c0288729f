"""Image networks on the frames of a clip: temporal segments (TSN) and temporal shift (TSM)."""

from __future__ import annotations

from typing import Literal

import torch
from timm.models._efficientnet_blocks import InvertedResidual
from timm.models.resnet import BasicBlock, Bottleneck
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import BackbonePart
from opabinia.models.backbones.module import build_backbone
from opabinia.models.backbones.video.base import ClipBackbone

SHIFT_DIVISOR = 8
"""One channel in eight is shifted in each direction (Lin et al. 2019, section 5.1)."""


def shift_channels(maps: Tensor, frames: int) -> Tensor:
    """Shift a part of the channels to the previous frame and another part to the next one (Lin et al. 2019, section
    3.2, bidirectional). Zeros fill the ends of a clip.

    Args:
        maps: (frames * B) x M x h x w, all first frames before all second ones.
        frames: number of frames of a clip.

    Returns:
        feature maps of the same shape.
    """
    clips = maps.unflatten(0, (frames, -1))  # type: ignore[no-untyped-call]
    count = clips.shape[2] // SHIFT_DIVISOR
    later, earlier, rest = clips.split([count, count, clips.shape[2] - 2 * count], dim=2)
    padding = torch.zeros_like(later[:1])
    parts = [torch.cat([later[1:], padding]), torch.cat([padding, earlier[:-1]]), rest]
    shifted: Tensor = torch.cat(parts, dim=2).flatten(0, 1)
    return shifted


class ShiftedConv2d(nn.Conv2d):
    """A convolution of temporally shifted feature maps; its weights keep their names.

    Attributes:
        frames: number of frames of the current clips.
    """

    frames: int = 1

    def forward(self, input: Tensor) -> Tensor:
        """(frames * B) x M x h x w; see :func:`shift_channels`."""
        output: Tensor = super().forward(shift_channels(input, self.frames))
        return output


def add_temporal_shifts(model: nn.Module) -> list[ShiftedConv2d]:
    """Shift the input of the first convolution of residual blocks, not that of the shortcut (residual shift).

    As in the authors' code this is done in every block, or in every second one if a stage has 23 blocks or more. Of
    MobileNets these are the inverted residuals with a shortcut.

    Raises:
        ValueError: the model has no residual blocks of timm's ResNets or MobileNets.
    """
    first = {
        module: "conv_pw" if isinstance(module, InvertedResidual) else "conv1"
        for module in model.modules()
        if isinstance(module, BasicBlock | Bottleneck) or (isinstance(module, InvertedResidual) and module.has_skip)
    }
    if not first or not all(type(getattr(block, name)) is nn.Conv2d for block, name in first.items()):
        raise ValueError(
            "shift: tsm is for the residual blocks of timm's ResNets and MobileNets, such as resnet50, and this "
            "backbone has none"
        )
    stages = [module for module in model.modules() if isinstance(module, nn.Sequential)]
    longest = max((sum(child in first for child in stage) for stage in stages), default=0)
    every = 2 if longest >= 23 else 1
    shifted = []
    for stage in stages:
        for block in [child for child in stage if child in first][::every]:
            shifted.append(_with_shift(getattr(block, first[block])))
            setattr(block, first[block], shifted[-1])
    return shifted


def _with_shift(plain: nn.Conv2d) -> ShiftedConv2d:
    """Convert a convolution, with the same weights."""
    options = {name: getattr(plain, name) for name in ("kernel_size", "stride", "padding", "dilation", "groups")}
    shifted = ShiftedConv2d(plain.in_channels, plain.out_channels, **options, bias=plain.bias is not None)
    shifted.weight, shifted.bias = plain.weight, plain.bias
    return shifted.train(plain.training)


@register.backbone
class Tsn(ClipBackbone):
    """Image backbone on the frames of a clip, of any number: the mean of its vectors over frames (Wang et al. 2016,
    TSN: with a linear classifier this is the mean of the logits, the paper's consensus).

    All first frames come before all second ones, so that a norm over parts of the batch has the frames of a clip in one
    part if the clips divide evenly.

    Args:
        channels: channels of the frames.
        backbone: the image backbone; its pretrained weights are used unchanged.
        shift: ``tsm``: in residual blocks an eighth of the channels comes from the previous frame and another from the
            next one, which models motion without additional weights or multiply-adds (Lin et al. 2019, TSM, residual
            shift); for timm's ResNets and MobileNets. ``none``: frames are independent.

    Raises:
        ValueError: the backbone takes clips itself, or has no residual blocks to shift in.
    """

    def __init__(self, channels: int, /, *, backbone: BackbonePart, shift: Literal["none", "tsm"] = "none") -> None:
        net = build_backbone(backbone, channels)
        if net.clips:
            raise ValueError("backbone: it takes clips itself; TSN is for image backbones, such as timm's resnet50")
        super().__init__(net.out_channels)
        self.frames = net
        self.preprocessing = net.preprocessing
        self.trained_classes = net.trained_classes
        if shift == "tsm":
            add_temporal_shifts(net)

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x D."""
        count = clips.shape[2]
        for module in self.frames.modules():
            if isinstance(module, ShiftedConv2d):
                module.frames = count
        vectors = self.frames(clips.permute(2, 0, 1, 3, 4).flatten(0, 1))
        mean: Tensor = vectors.unflatten(0, (count, -1)).mean(0)  # len() would fix the batch size of an export
        return mean

    def make_head(self, classes: int) -> nn.Module:
        """Return the classifier of the image backbone; a linear one gives the mean of its logits over the frames."""
        return self.frames.make_head(classes)

    def depths(self) -> dict[str, int]:
        """As in the image backbone."""
        return {f"frames.{name}": depth for name, depth in self.frames.depths().items()}

    def checkpoint_activations(self) -> None:
        """As in the image backbone."""
        self.frames.checkpoint_activations()
