"""3-d ResNets: small ones for CPUs, R3D, R(2+1)D, and SlowOnly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch.nn.functional as F
from annotated_types import MinLen
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, Count
from opabinia.models.backbones.non_local import NonLocal, NonLocalBlocks, NonLocalType
from opabinia.models.backbones.video.base import (
    ClipBackbone,
    ConvType,
    FramePool,
    Kernel,
    convolution,
    global_pool,
    init_weights,
    shortcut_projection,
)
from opabinia.models.backbones.video.inflate import Inflation, load_image_weights


class BasicBlock3d(nn.Module):
    """Two spatiotemporal convolutions with a shortcut (He et al. 2016, figure 5, left).

    Args:
        inputs: channels of the input.
        width: channels of the output.
        frames: temporal size of the kernels.
        stride: stride of the first convolution.
        conv_type: type of both; see :func:`opabinia.models.backbones.video.base.convolution`.
    """

    expansion = 1

    def __init__(self, inputs: int, width: int, frames: int, stride: Kernel, conv_type: ConvType = "3d") -> None:
        super().__init__()
        self.conv1 = convolution(inputs, width, (frames, 3, 3), stride, conv_type=conv_type)
        self.bn1 = nn.BatchNorm3d(width)
        self.conv2 = convolution(width, width, (frames, 3, 3), conv_type=conv_type)
        self.bn2 = nn.BatchNorm3d(width)
        self.downsample = shortcut_projection(inputs, width, stride)

    def forward(self, maps: Tensor) -> Tensor:
        """B x M x t x h x w to B x M' x t' x h' x w'."""
        shortcut = maps if self.downsample is None else self.downsample(maps)
        maps = F.relu(self.bn1(self.conv1(maps)), inplace=True)
        return F.relu(self.bn2(self.conv2(maps)) + shortcut, inplace=True)


class Bottleneck3d(nn.Module):
    """A temporal convolution, a 3 x 3 convolution with the spatial stride and a 1 x 1 convolution, with a shortcut
    (Feichtenhofer et al. 2019, table 1).

    Args:
        inputs: channels of the input.
        width: a quarter of the channels of the output.
        frames: temporal size of the first kernel.
        stride: stride of the block.
        non_local: kind of the non-local block that follows, if any.
        depthwise: the temporal kernel and stride are in the second convolution, which is depth-wise (Tran et al. 2019,
            ir-CSN).
    """

    expansion = 4

    def __init__(
        self,
        inputs: int,
        width: int,
        frames: int,
        stride: Kernel,
        non_local: NonLocalType | None = None,
        *,
        depthwise: bool = False,
    ) -> None:
        super().__init__()
        outputs = width * self.expansion
        if depthwise:
            first: nn.Module = convolution(inputs, width, (1, 1, 1))
            padding = (frames // 2, 1, 1)
            second: nn.Module = nn.Conv3d(width, width, (frames, 3, 3), stride, padding, groups=width, bias=False)
        else:
            first = convolution(inputs, width, (frames, 1, 1), (stride[0], 1, 1))
            second = convolution(width, width, (1, 3, 3), (1, *stride[1:]))
        self.conv1 = first
        self.bn1 = nn.BatchNorm3d(width)
        self.conv2 = second
        self.bn2 = nn.BatchNorm3d(width)
        self.conv3 = convolution(width, outputs, (1, 1, 1))
        self.bn3 = nn.BatchNorm3d(outputs)
        self.downsample = shortcut_projection(inputs, outputs, stride)
        self.non_local: nn.Module = NonLocal(outputs, non_local, clips=True) if non_local else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        """B x M x t x h x w to B x M' x t' x h' x w'."""
        shortcut = maps if self.downsample is None else self.downsample(maps)
        maps = F.relu(self.bn1(self.conv1(maps)), inplace=True)
        maps = F.relu(self.bn2(self.conv2(maps)), inplace=True)
        output: Tensor = self.non_local(F.relu(self.bn3(self.conv3(maps)) + shortcut, inplace=True))
        return output


# --- stages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StageSpec:
    """A sequence of blocks, the first of which has the stride.

    Attributes:
        width: width of its blocks; bottlenecks give four times as many channels.
        blocks: number of blocks.
        frames: temporal sizes of the kernels, which the blocks take in turn.
        stride: frames, rows, columns.
        non_local: indices of the bottlenecks that a non-local block follows.
        non_local_type: type of these blocks.
        depthwise: bottlenecks have their temporal kernels in depth-wise convolutions.
    """

    width: int
    blocks: int
    frames: tuple[int, ...]
    stride: Kernel
    non_local: Sequence[int] = ()
    non_local_type: NonLocalType = "softmax"
    depthwise: bool = False


def build_stage(inputs: int, spec: StageSpec, *, bottlenecks: bool, conv_type: ConvType = "3d") -> nn.Sequential:
    """Build the blocks of a stage.

    Args:
        inputs: channels of the input.
        spec: description of the stage.
        bottlenecks: bottlenecks instead of basic blocks.
        conv_type: type of basic blocks.

    Raises:
        ValueError: a non-local block is to follow a block that does not exist.
    """
    if missing := [index for index in spec.non_local if not 0 <= index < spec.blocks]:
        raise ValueError(f"non_local: a stage has the blocks 0 to {spec.blocks - 1}, not {missing}")
    blocks: list[nn.Module] = []
    for index in range(spec.blocks):
        frames, stride = spec.frames[index % len(spec.frames)], (1, 1, 1) if index else spec.stride
        if bottlenecks:
            attention = spec.non_local_type if index in spec.non_local else None
            blocks.append(Bottleneck3d(inputs, spec.width, frames, stride, attention, depthwise=spec.depthwise))
        else:
            blocks.append(BasicBlock3d(inputs, spec.width, frames, stride, conv_type))
        inputs = spec.width * (Bottleneck3d if bottlenecks else BasicBlock3d).expansion
    return nn.Sequential(*blocks)


def halve_frames(maps: Tensor) -> Tensor:
    """Max pooling of every two frames; the last one of an odd number is dropped, unless it is the only one. (torch's
    3-d pooling has no deterministic gradient on GPUs.)"""
    if maps.shape[2] < 2:
        return maps
    pairs = maps[:, :, : maps.shape[2] // 2 * 2].unflatten(2, (-1, 2))  # type: ignore[no-untyped-call]
    pooled: Tensor = pairs.amax(3)
    return pooled


class ResNet3d(ClipBackbone):
    """A ResNet for clips. Its layers have the names of timm's and torchvision's 2-d ResNets, so that their weights can
    be inflated by name (:mod:`opabinia.models.backbones.video.inflate`).

    Args:
        channels: channels of the frames.
        stem: channels, kernel and stride of the first convolution.
        stages: from the first on.
        bottlenecks: bottlenecks instead of basic blocks.
        pool: max pooling after the stem, which halves height and width.
        temporal_pool: max pooling after the first stage, which halves the number of frames.
        conv_type: type of all spatiotemporal convolutions.
        zero_init_last: see :func:`opabinia.models.backbones.video.base.init_weights`.
    """

    def __init__(
        self,
        channels: int,
        *,
        stem: tuple[int, Kernel, Kernel],
        stages: Sequence[StageSpec],
        bottlenecks: bool = False,
        pool: bool = False,
        temporal_pool: bool = False,
        conv_type: ConvType = "3d",
        zero_init_last: bool = True,
    ) -> None:
        expansion = (Bottleneck3d if bottlenecks else BasicBlock3d).expansion
        super().__init__(stages[-1].width * expansion)
        width, kernel, stride = stem
        self.conv1 = convolution(channels, width, kernel, stride, conv_type=conv_type)
        self.bn1 = nn.BatchNorm3d(width)
        self.maxpool = FramePool() if pool else nn.Identity()
        self.layers = [("conv1", "bn1")]
        for number, spec in enumerate(stages, start=1):
            self.add_module(f"layer{number}", build_stage(width, spec, bottlenecks=bottlenecks, conv_type=conv_type))
            width = spec.width * expansion
            self.layers += [(f"layer{number}.{block}",) for block in range(spec.blocks)]
        self._num_stages, self._temporal_pool = len(stages), temporal_pool
        init_weights(self, zero_init_last=zero_init_last)

    def clip_maps(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to feature maps (B x D x t x h x w), whose global average is the output of
        :meth:`forward`."""
        maps: Tensor = self.maxpool(F.relu(self.bn1(self.conv1(clips)), inplace=True))
        for number in range(1, self._num_stages + 1):
            maps = self.run_blocks(self.get_submodule(f"layer{number}"), maps)
            if self._temporal_pool and number == 1:
                maps = halve_frames(maps)
        return maps

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x D."""
        return global_pool(self.clip_maps(clips))


# --- parts ----------------------------------------------------------------------------------------------------------


@register.backbone
def resnet3d(
    channels: int,
    /,
    *,
    widths: Annotated[Sequence[Count], MinLen(1)] = (16, 32, 64),
    blocks: Sequence[Count] = (1, 1, 1),
    block: Literal["basic", "bottleneck", "depthwise"] = "basic",
    conv_type: ConvType = "3d",
    temporal_kernels: Sequence[Count] | None = None,
    temporal_strides: Sequence[Count] | None = None,
    stem_kernel: tuple[Count, Count, Count] = (3, 3, 3),
    stem_stride: tuple[Count, Count, Count] = (1, 2, 2),
    stem_pool: bool = False,
    zero_init_last: bool = True,
    pretrained_2d: str | None = None,
    inflation: Inflation = "mean",
) -> Backbone:
    """3-d ResNet for clips of any length and size (Hara et al. 2018; Tran et al. 2018). With its defaults it has 0.23
    million weights and is made for CPUs.

    Stages after the first one halve height and width. R3D-18 and R(2+1)D-18 are ``widths: [64, 128, 256, 512], blocks:
    [2, 2, 2, 2], temporal_strides: [1, 2, 2, 2], stem_kernel: [3, 7, 7]`` with ``conv_type`` 3d and 2+1d; a 3-d
    ResNet-50 is ``slow``. Compute in float32 on CPUs: torch 2.15 has wrong gradients in bfloat16 for odd sizes there.

    Args:
        channels: channels of the frames.
        widths: widths of the stages; bottlenecks give four times as many channels. The stem has the first stage's.
        blocks: number of blocks of each stage.
        block: ``basic``: two spatiotemporal convolutions; ``bottleneck``: a temporal and a spatial convolution with
            fewer channels between them; ``depthwise``: one with a depth-wise convolution (Tran et al. 2019, ir-CSN).
        conv_type: ``2+1d`` factorizes each convolution into a spatial and a temporal one (R(2+1)D).
        temporal_kernels: temporal size of the kernels, for each stage, odd numbers; null: 3.
        temporal_strides: for each stage; null: 1, which keeps all frames.
        stem_kernel: frames, rows, columns of the first convolution, odd numbers.
        stem_stride: its stride.
        stem_pool: max pooling after the stem, which halves height and width.
        zero_init_last: the last norm of every block has weight 0 at first (Goyal et al. 2017, section 5.1).
        pretrained_2d: timm's name of a 2-d ResNet with the same blocks and widths, such as ``resnet18.tv_in1k``, whose
            weights are downloaded and inflated (Carreira and Zisserman 2017, I3D). null: random weights. (``init``
            takes those of a file or a run.)
        inflation: rule for those weights: ``mean``: the same for each frame, divided by their number; ``center``:
            in the middle frame and 0 elsewhere, so that the network begins as one of single frames.

    Raises:
        ValueError: the options do not fit together, or the weights of ``pretrained_2d`` do not fill the network.
    """
    per_stage = {
        "blocks": blocks,
        "temporal_kernels": temporal_kernels or [3] * len(widths),
        "temporal_strides": temporal_strides or [1] * len(widths),
    }
    for name, values in per_stage.items():
        if len(values) != len(widths):
            raise ValueError(f"{name}: {len(values)} numbers for {len(widths)} stages (widths); each has one")
    for name, sides in (("temporal_kernels", per_stage["temporal_kernels"]), ("stem_kernel", stem_kernel)):
        if not all(side % 2 for side in sides):
            raise ValueError(f"{name}: kernels have a center, so their sides are odd numbers, not {list(sides)}")
    if conv_type == "2+1d" and block != "basic":
        raise ValueError("conv_type: bottlenecks are factorized already; 2+1d is for basic blocks")
    make = partial(StageSpec, depthwise=block == "depthwise")
    stages = [
        make(width=width, blocks=count, frames=(side,), stride=(stride, 2, 2) if number else (stride, 1, 1))
        for number, (width, count, side, stride) in enumerate(zip(widths, *per_stage.values(), strict=True))
    ]
    net = ResNet3d(
        channels,
        stem=(widths[0], stem_kernel, stem_stride),
        stages=stages,
        bottlenecks=block != "basic",
        pool=stem_pool,
        conv_type=conv_type,
        zero_init_last=zero_init_last,
    )
    return load_image_weights(net, channels, pretrained_2d, inflation)


STAGE_DEPTHS: dict[int, tuple[int, int, int, int]] = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""Bottlenecks in the stages of a ResNet, by its depth (He et al. 2016, table 1)."""


@register.backbone
def slow(
    channels: int,
    /,
    *,
    depth: Literal[50, 101] = 50,
    non_local: NonLocalBlocks = ((), (), (), ()),
    non_local_type: NonLocalType = "softmax",
    zero_init_last: bool = True,
    pretrained_2d: str | None = None,
    inflation: Inflation = "mean",
) -> Backbone:
    """SlowOnly, the slow pathway of SlowFast alone (Feichtenhofer et al. 2019, section 4.1): a 3-d ResNet with temporal
    convolutions in the bottlenecks of its last two stages, which keeps all frames.

    With 50 layers, 400 classes and 8 frames of 256 x 256 it has 32.45 million weights and 54.5 billion multiply-adds
    (PyTorchVideo's model zoo).

    Args:
        channels: channels of the frames.
        depth: number of layers.
        non_local: for each of the four stages the indices, from 0, of the blocks that a non-local block follows (Wang
            et al. 2018), such as [[], [1, 3], [1, 3, 5], []].
        non_local_type: weights of its positions: softmax, or dot products divided by the number of positions.
        zero_init_last: the last norm of every block has weight 0 at first (Goyal et al. 2017, section 5.1).
        pretrained_2d: timm's name of a 2-d ResNet with the same blocks and widths, such as ``resnet50.tv_in1k``, whose
            weights are downloaded and inflated (Carreira and Zisserman 2017, I3D). null: random weights. (``init``
            takes those of a file or a run.)
        inflation: rule for those weights: ``mean``: the same for each frame, divided by their number; ``center``:
            in the middle frame and 0 elsewhere, so that the network begins as one of single frames.

    Raises:
        ValueError: those weights do not fill the network, or a block of ``non_local`` does not exist.
    """
    kernels = ((1,), (1,), (1,), (3,), (3,))
    return _bottleneck_resnet3d(
        channels, depth, kernels, non_local, non_local_type, zero_init_last, pretrained_2d, inflation
    )


@register.backbone
def i3d(
    channels: int,
    /,
    *,
    depth: Literal[50, 101] = 50,
    frame_stride: Count = 1,
    non_local: NonLocalBlocks = ((), (), (), ()),
    non_local_type: NonLocalType = "softmax",
    zero_init_last: bool = True,
    pretrained_2d: str | None = None,
    inflation: Inflation = "mean",
) -> Backbone:
    """I3D, an inflated ResNet (Carreira and Zisserman 2017; Wang et al. 2018, Non-local Neural Networks, table 1):
    temporal kernels of 5 frames in the stem and of 3 in every second bottleneck or more, and pooling of every two
    frames after the first stage. As in PySlowFast the stem keeps all frames.

    With 50 layers and 400 classes it has 28.04 million weights.

    Args:
        channels: channels of the frames.
        depth: number of layers.
        frame_stride: frames from one position of the stem to the next; 4 for that of mmaction2, whose convolution and
            pooling halve the frames (in training its statistics are of twice as many frames).
        non_local: indices of the blocks of each stage that a non-local block follows, see ``slow``.
        non_local_type: weights of its positions, see ``slow``.
        zero_init_last: the last norm of every block has weight 0 at first (Goyal et al. 2017, section 5.1).
        pretrained_2d: timm's name of a 2-d ResNet with the same blocks and widths, see ``slow``.
        inflation: rule for those weights, see ``slow``.

    Raises:
        ValueError: those weights do not fill the network, or a block of ``non_local`` does not exist.
    """
    kernels = ((5,), (3,), (3, 1), (3, 1), (1, 3))
    return _bottleneck_resnet3d(
        channels,
        depth,
        kernels,
        non_local,
        non_local_type,
        zero_init_last,
        pretrained_2d,
        inflation,
        frame_stride=frame_stride,
        temporal_pool=True,
    )


@register.backbone
def c2d(
    channels: int,
    /,
    *,
    depth: Literal[50, 101] = 50,
    temporal_pool: bool = True,
    non_local: NonLocalBlocks = ((), (), (), ()),
    non_local_type: NonLocalType = "softmax",
    zero_init_last: bool = True,
    pretrained_2d: str | None = None,
) -> Backbone:
    """C2D, a ResNet of single frames whose only temporal layers are poolings (Wang et al. 2018, Non-local Neural
    Networks, table 1). With 50 layers and 400 classes it has 24.33 million weights.

    Args:
        channels: channels of the frames.
        depth: number of layers.
        temporal_pool: max pooling of every two frames after the first stage.
        non_local: indices of the blocks of each stage that a non-local block follows, see ``slow``.
        non_local_type: weights of its positions, see ``slow``.
        zero_init_last: the last norm of every block has weight 0 at first (Goyal et al. 2017, section 5.1).
        pretrained_2d: timm's name of a 2-d ResNet with the same blocks and widths, see ``slow``.

    Raises:
        ValueError: those weights do not fill the network, or a block of ``non_local`` does not exist.
    """
    kernels = ((1,),) * 5
    return _bottleneck_resnet3d(
        channels,
        depth,
        kernels,
        non_local,
        non_local_type,
        zero_init_last,
        pretrained_2d,
        "mean",
        temporal_pool=temporal_pool,
    )


def _bottleneck_resnet3d(
    channels: int,
    depth: Literal[50, 101],
    frames: tuple[tuple[int, ...], ...],
    non_local: NonLocalBlocks,
    non_local_type: NonLocalType,
    zero_init_last: bool,
    pretrained_2d: str | None,
    inflation: Inflation,
    *,
    frame_stride: int = 1,
    temporal_pool: bool = False,
) -> ResNet3d:
    """Build a ResNet with 50 or 101 layers; ``frames`` are the temporal sizes of the kernels of stem and stages."""
    stages = [
        StageSpec(
            width=64 * 2**i,
            blocks=count,
            frames=frames[i + 1],
            stride=(1, 2, 2) if i else (1, 1, 1),
            non_local=non_local[i],
            non_local_type=non_local_type,
        )
        for i, count in enumerate(STAGE_DEPTHS[depth])
    ]
    net = ResNet3d(
        channels,
        stem=(64, (frames[0][0], 7, 7), (frame_stride, 2, 2)),
        stages=stages,
        bottlenecks=True,
        pool=True,
        temporal_pool=temporal_pool,
        zero_init_last=zero_init_last,
    )
    return load_image_weights(net, channels, pretrained_2d, inflation)
