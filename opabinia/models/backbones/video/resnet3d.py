"""ResNets over frames, rows and columns: small ones for CPUs, R(2+1)D, and the slow pathway of SlowFast alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch.nn.functional as F
from annotated_types import MinLen
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, Count
from opabinia.models.backbones.video.base import ClipBackbone, Form, FramePool, Kernel, convolution, draw, pooled
from opabinia.models.backbones.video.inflate import Inflation, begin_with_images


class BasicBlock3d(nn.Module):
    """Two convolutions beside a shortcut (He et al. 2016, figure 5, left), both over frames, too.

    Args:
        inputs: channels of the maps that come in.
        width: channels of those that go out.
        frames: side of the kernels in time.
        stride: of the first convolution.
        form: of both; see :func:`opabinia.models.backbones.video.base.convolution`.
    """

    expansion = 1

    def __init__(self, inputs: int, width: int, frames: int, stride: Kernel, form: Form = "3d") -> None:
        super().__init__()
        self.conv1 = convolution(inputs, width, (frames, 3, 3), stride, form=form)
        self.bn1 = nn.BatchNorm3d(width)
        self.conv2 = convolution(width, width, (frames, 3, 3), form=form)
        self.bn2 = nn.BatchNorm3d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, maps: Tensor) -> Tensor:
        """B x M x t x h x w to B x M' x t' x h' x w'."""
        shortcut = maps if self.downsample is None else self.downsample(maps)
        maps = F.relu(self.bn1(self.conv1(maps)), inplace=True)
        return F.relu(self.bn2(self.conv2(maps)) + shortcut, inplace=True)

    @property
    def last_norm(self) -> nn.BatchNorm3d:
        """The norm right before the shortcut is added."""
        return self.bn2


class Bottleneck3d(nn.Module):
    """A 3 x 3 convolution between two of 1 x 1, beside a shortcut; the first of the three goes over frames, too
    (Feichtenhofer et al. 2019, table 1). The 3 x 3 has the stride of rows and columns.

    Args:
        inputs: channels of the maps that come in.
        width: a quarter of the channels of those that go out.
        frames: side of the first kernel in time.
        stride: of the block.
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, frames: int, stride: Kernel) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = convolution(inputs, width, (frames, 1, 1), (stride[0], 1, 1))
        self.bn1 = nn.BatchNorm3d(width)
        self.conv2 = convolution(width, width, (1, 3, 3), (1, *stride[1:]))
        self.bn2 = nn.BatchNorm3d(width)
        self.conv3 = convolution(width, outputs, (1, 1, 1))
        self.bn3 = nn.BatchNorm3d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, maps: Tensor) -> Tensor:
        """B x M x t x h x w to B x M' x t' x h' x w'."""
        shortcut = maps if self.downsample is None else self.downsample(maps)
        maps = F.relu(self.bn1(self.conv1(maps)), inplace=True)
        maps = F.relu(self.bn2(self.conv2(maps)), inplace=True)
        return F.relu(self.bn3(self.conv3(maps)) + shortcut, inplace=True)

    @property
    def last_norm(self) -> nn.BatchNorm3d:
        """The norm right before the shortcut is added."""
        return self.bn3


def _shortcut(inputs: int, outputs: int, stride: Kernel) -> nn.Sequential | None:
    """What brings maps to the size of a block's output; None where they have it."""
    if inputs == outputs and stride == (1, 1, 1):
        return None
    return nn.Sequential(nn.Conv3d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm3d(outputs))


# --- stages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Blocks in a row, the first of which has the stride.

    Attributes:
        width: of its blocks; bottlenecks give four times as many channels.
        blocks: how many.
        frames: side of kernels in time.
        stride: frames, rows, columns.
    """

    width: int
    blocks: int
    frames: int
    stride: Kernel


def stage(inputs: int, plan: Stage, *, bottlenecks: bool, form: Form = "3d") -> nn.Sequential:
    """The blocks of a stage.

    Args:
        inputs: channels of the maps that come in.
    """
    blocks: list[nn.Module] = []
    for number in range(plan.blocks):
        stride = (1, 1, 1) if number else plan.stride
        if bottlenecks:
            blocks.append(Bottleneck3d(inputs, plan.width, plan.frames, stride))
        else:
            blocks.append(BasicBlock3d(inputs, plan.width, plan.frames, stride, form))
        inputs = plan.width * (Bottleneck3d if bottlenecks else BasicBlock3d).expansion
    return nn.Sequential(*blocks)


def begin_as_identity(model: nn.Module) -> None:
    """Have every residual block give its shortcut at first: its last norm has weight 0 (Goyal et al. 2017, section
    5.1)."""
    for module in model.modules():
        if isinstance(module, BasicBlock3d | Bottleneck3d):
            nn.init.zeros_(module.last_norm.weight)


class ResNet3d(ClipBackbone):
    """A ResNet for clips. Its layers have the names that timm's and torchvision's 2-d ResNets have, so that their
    weights go in by name (:mod:`opabinia.models.backbones.video.inflate`).

    Args:
        channels: channels of the frames.
        stem: channels, kernel and stride of the first convolution.
        stages: from the first on.
        bottlenecks: whether they have those, or basic blocks.
        pool: halve height and width behind the stem.
        form: of all convolutions over frames and places.
        zero_init: begin as :func:`begin_as_identity` says.
    """

    def __init__(
        self,
        channels: int,
        *,
        stem: tuple[int, Kernel, Kernel],
        stages: Sequence[Stage],
        bottlenecks: bool = False,
        pool: bool = False,
        form: Form = "3d",
        zero_init: bool = True,
    ) -> None:
        expansion = (Bottleneck3d if bottlenecks else BasicBlock3d).expansion
        super().__init__(stages[-1].width * expansion)
        width, kernel, stride = stem
        self.conv1 = convolution(channels, width, kernel, stride, form=form)
        self.bn1 = nn.BatchNorm3d(width)
        self.maxpool = FramePool() if pool else nn.Identity()
        self.layers = [("conv1", "bn1")]
        for number, plan in enumerate(stages, start=1):
            self.add_module(f"layer{number}", stage(width, plan, bottlenecks=bottlenecks, form=form))
            width = plan.width * expansion
            self.layers += [(f"layer{number}.{block}",) for block in range(plan.blocks)]
        self._count = len(stages)
        draw(self)
        if zero_init:
            begin_as_identity(self)

    def clip_maps(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to maps (B x D x t x h x w), whose mean over places is what :meth:`forward` gives."""
        maps: Tensor = self.maxpool(F.relu(self.bn1(self.conv1(clips)), inplace=True))
        for number in range(1, self._count + 1):
            blocks = self.get_submodule(f"layer{number}")
            assert isinstance(blocks, nn.Sequential)
            maps = self.through(blocks, maps)
        return maps

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x D."""
        return pooled(self.clip_maps(clips))


# --- parts ----------------------------------------------------------------------------------------------------------


@register.backbone
def resnet3d(
    channels: int,
    /,
    *,
    widths: Annotated[Sequence[Count], MinLen(1)] = (16, 32, 64),
    blocks: Sequence[Count] = (1, 1, 1),
    block: Literal["basic", "bottleneck"] = "basic",
    form: Form = "3d",
    frames: Sequence[Count] | None = None,
    temporal_strides: Sequence[Count] | None = None,
    stem_kernel: tuple[Count, Count, Count] = (3, 3, 3),
    stem_stride: tuple[Count, Count, Count] = (1, 2, 2),
    stem_pool: bool = False,
    zero_init: bool = True,
    images: str | None = None,
    inflation: Inflation = "mean",
) -> Backbone:
    """A ResNet for clips of any length and size (Hara et al. 2018; Tran et al. 2018). As it stands it has 0.23 million
    weights and is made for CPUs.

    Stages behind the first one halve height and width. R3D-18 and R(2+1)D-18 are ``widths: [64, 128, 256, 512], blocks:
    [2, 2, 2, 2], temporal_strides: [1, 2, 2, 2], stem_kernel: [3, 7, 7]`` with ``form`` 3d and 2+1d; a ResNet-50 over
    frames is the backbone ``slow``. Compute in float32 on CPUs: with torch 2.15 gradients in bfloat16 are wrong there
    for odd sizes.

    Args:
        channels: channels of the frames.
        widths: of the stages; bottlenecks give four times as many channels. The stem has the first one's.
        blocks: how many a stage has.
        block: ``basic``: two convolutions over frames and places; ``bottleneck``: one over frames, then one over
            places, between fewer channels.
        form: ``2+1d`` makes two of each convolution, over places and then over frames (R(2+1)D).
        frames: side of the kernels in time, for each stage, odd numbers; null: 3.
        temporal_strides: for each stage; null: 1, so that no frames are lost.
        stem_kernel: frames, rows, columns of the first convolution, odd numbers.
        stem_stride: its stride.
        stem_pool: halve height and width behind it once more.
        zero_init: the last norm of every block has weight 0 at first (Goyal et al. 2017, section 5.1).
        images: timm's name of a 2-d ResNet of the same blocks and widths, such as ``resnet18.tv_in1k``, to begin with:
            its weights are downloaded and become kernels over frames, too (Carreira and Zisserman 2017, I3D). null:
            weights are drawn. (A file's or a run's go in by ``init``.)
        inflation: of those weights: ``mean``: the same for each frame, divided by their number; ``centre``: in the
            middle and 0 elsewhere, so that the network begins as one of single frames.

    Raises:
        ValueError: there are not as many numbers for each stage, a kernel has an even side, or bottlenecks, whose
            convolutions go over frames or places and never over both, are to be made of two; or the weights of
            ``images`` do not fill the network.
    """
    told = {
        "blocks": blocks,
        "frames": frames or [3] * len(widths),
        "temporal_strides": temporal_strides or [1] * len(widths),
    }
    for name, values in told.items():
        if len(values) != len(widths):
            raise ValueError(f"{name}: {len(values)} numbers for {len(widths)} stages (widths); each has one")
    for name, sides in (("frames", told["frames"]), ("stem_kernel", stem_kernel)):
        if not all(side % 2 for side in sides):
            raise ValueError(f"{name}: kernels have a centre, so their sides are odd numbers, not {list(sides)}")
    if form == "2+1d" and block == "bottleneck":
        raise ValueError("form: bottlenecks go over places and frames one after the other anyhow; 2+1d is for basic")
    stages = [
        Stage(width=width, blocks=count, frames=side, stride=(stride, 2, 2) if number else (stride, 1, 1))
        for number, (width, count, side, stride) in enumerate(zip(widths, *told.values(), strict=True))
    ]
    net = ResNet3d(
        channels,
        stem=(widths[0], stem_kernel, stem_stride),
        stages=stages,
        bottlenecks=block == "bottleneck",
        pool=stem_pool,
        form=form,
        zero_init=zero_init,
    )
    if images:
        begin_with_images(net, channels, images, inflation)
    return net


BLOCKS: dict[int, tuple[int, int, int, int]] = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""Bottlenecks in the stages of a ResNet, by its depth (He et al. 2016, table 1)."""


@register.backbone
def slow(
    channels: int,
    /,
    *,
    depth: Literal[50, 101] = 50,
    zero_init: bool = True,
    images: str | None = None,
    inflation: Inflation = "mean",
) -> Backbone:
    """The slow pathway of SlowFast alone, SlowOnly (Feichtenhofer et al. 2019, section 4.1): a ResNet that goes over
    frames in its last two stages, in the first convolution of each bottleneck, and keeps all frames.

    With 50 layers, 400 classes and 8 frames of 256 x 256 it has 32.45 million weights and 54.5 billion multiply-adds
    (PyTorchVideo's model zoo).

    Args:
        channels: channels of the frames.
        depth: layers.
        zero_init: the last norm of every block has weight 0 at first (Goyal et al. 2017, section 5.1).
        images: timm's name of a 2-d ResNet of the same blocks and widths, such as ``resnet50.tv_in1k``, to begin with:
            its weights are downloaded and become kernels over frames, too (Carreira and Zisserman 2017, I3D). null:
            weights are drawn. (A file's or a run's go in by ``init``.)
        inflation: of those weights: ``mean``: the same for each frame, divided by their number; ``centre``: in the
            middle and 0 elsewhere, so that the network begins as one of single frames.

    Raises:
        ValueError: those weights do not fill the network.
    """
    stages = [
        Stage(width=64 * 2**i, blocks=count, frames=1 if i < 2 else 3, stride=(1, 2, 2) if i else (1, 1, 1))
        for i, count in enumerate(BLOCKS[depth])
    ]
    stem = (64, (1, 7, 7), (1, 2, 2))
    net = ResNet3d(channels, stem=stem, stages=stages, bottlenecks=True, pool=True, zero_init=zero_init)
    if images:
        begin_with_images(net, channels, images, inflation)
    return net
