"""2-d networks over the frames of a clip: segments (TSN), and channels that move between frames (TSM)."""

from __future__ import annotations

from typing import Literal

import torch
from timm.models.resnet import BasicBlock, Bottleneck
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, BackbonePart
from opabinia.models.backbones.video.base import ClipBackbone

SHARE = 8
"""One channel in so many moves each way (Lin et al. 2019, section 5.1)."""


def shifted(maps: Tensor, frames: int, share: int = SHARE) -> Tensor:
    """Move a part of the channels to the frame before, another to the one behind, and leave the others (Lin et al.
    2019, section 3.2, both ways). Where no frame is left to come from, there are zeros.

    Args:
        maps: (frames * B) x M x h x w, all first frames ahead of all second ones.
        frames: of a clip.
        share: the first one in so many channels are those of the next frame, the second those of the one before.

    Returns:
        maps of the same shape.
    """
    clips = maps.unflatten(0, (frames, -1))  # type: ignore[no-untyped-call]
    count = clips.shape[2] // share
    later, earlier, rest = clips.split([count, count, clips.shape[2] - 2 * count], dim=2)
    nothing = torch.zeros_like(later[:1])
    moved = [torch.cat([later[1:], nothing]), torch.cat([nothing, earlier[:-1]]), rest]
    joined: Tensor = torch.cat(moved, dim=2).flatten(0, 1)
    return joined


class ShiftedConvolution(nn.Conv2d):
    """A convolution of maps whose channels were shifted; its weights have the names that they had.

    Attributes:
        frames: of the clips that come now.
    """

    frames: int = 1

    def forward(self, input: Tensor) -> Tensor:
        """(frames * B) x M x h x w; see :func:`shifted`."""
        output: Tensor = super().forward(shifted(input, self.frames))
        return output


def add_shifts(model: nn.Module) -> list[ShiftedConvolution]:
    """Have the first convolution of residual blocks see shifted maps; the shortcut stays as it is (residual shift).

    As in the authors' code every block has it, every second one in a network with a stage of 23 blocks or more.

    Raises:
        ValueError: the model has no residual blocks of timm's ResNets.
    """
    blocks = [module for module in model.modules() if isinstance(module, BasicBlock | Bottleneck)]
    if not blocks or not all(type(block.conv1) is nn.Conv2d for block in blocks):
        raise ValueError(
            "shift: tsm is for the residual blocks of timm's ResNets, such as resnet50, and this backbone has none"
        )
    stages = [module for module in model.modules() if isinstance(module, nn.Sequential)]
    longest = max((sum(child in blocks for child in stage) for stage in stages), default=0)
    every = 2 if longest >= 23 else 1
    made = []
    for stage in stages:
        for block in [child for child in stage if child in blocks][::every]:
            block.conv1 = _shifted_convolution(block.conv1)
            made.append(block.conv1)
    return made


def _shifted_convolution(plain: nn.Conv2d) -> ShiftedConvolution:
    """One with the same weights."""
    made = ShiftedConvolution(
        plain.in_channels,
        plain.out_channels,
        plain.kernel_size,  # type: ignore[arg-type]
        plain.stride,  # type: ignore[arg-type]
        plain.padding,  # type: ignore[arg-type]
        plain.dilation,  # type: ignore[arg-type]
        plain.groups,
        bias=plain.bias is not None,
    )
    made.weight, made.bias = plain.weight, plain.bias
    return made.train(plain.training)


class FramesBackbone(ClipBackbone):
    """A network for images that sees every frame; its vectors are averaged over a clip.

    Frames go through it with all first ones ahead of all second ones, so that a norm over parts of the batch has the
    frames of a clip in one part, where the clips can be divided evenly.

    Args:
        images: the network.
        shift: whether channels move between frames.

    Raises:
        ValueError: it takes clips itself, or nothing in it can be shifted.
    """

    def __init__(self, images: Backbone, *, shift: bool = False) -> None:
        if images.clips:
            raise ValueError("backbone: it takes clips itself; TSN is for networks of images, such as timm's resnet50")
        super().__init__(images.out_channels)
        self.frames = images
        self.preprocessing = images.preprocessing
        self.trained_classes = images.trained_classes
        if shift:
            add_shifts(images)

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x D."""
        count = clips.shape[2]
        for module in self.frames.modules():
            if isinstance(module, ShiftedConvolution):
                module.frames = count
        vectors = self.frames(clips.permute(2, 0, 1, 3, 4).flatten(0, 1))
        mean: Tensor = vectors.unflatten(0, (count, len(clips))).mean(0)
        return mean

    def make_head(self, classes: int) -> nn.Module:
        """The classifier that the network has for images; a linear one gives the mean of what it says of the frames."""
        return self.frames.make_head(classes)

    def depths(self) -> dict[str, int]:
        """As the network for images tells."""
        return {f"frames.{name}": depth for name, depth in self.frames.depths().items()}

    def checkpoint_activations(self) -> None:
        """As the network for images does."""
        self.frames.checkpoint_activations()


@register.backbone
def tsn(channels: int, /, *, backbone: BackbonePart, shift: Literal["none", "tsm"] = "none") -> Backbone:
    """A network for images over the frames of a clip, of any number: the mean of its vectors over frames (Wang et al.
    2016, TSN: with a linear classifier the mean of what it says of the frames, which is their consensus).

    Args:
        channels: channels of the frames.
        backbone: the network for images; its pretrained weights serve as they are.
        shift: ``tsm``: in residual blocks an eighth of the channels comes from the frame before and another from the
            next one, so that the network sees what moves, at no cost in weights or multiply-adds (Lin et al. 2019, TSM,
            residual shift); for timm's ResNets. ``none``: frames know nothing of each other.

    Raises:
        ValueError: the backbone takes clips itself, or has no residual blocks to shift in.
    """
    return FramesBackbone(backbone(channels), shift=shift == "tsm")
