"""SlowFast: a wide pathway on few frames and a narrow one on all frames (Feichtenhofer et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Count
from opabinia.models.backbones.non_local import NonLocalBlocks, NonLocalType
from opabinia.models.backbones.video.base import ClipBackbone, FramePool, Kernel, convolution, global_pool, init_weights
from opabinia.models.backbones.video.resnet3d import STAGE_DEPTHS, Bottleneck3d, StageSpec, build_stage
from opabinia.runtime.device import move_tensor


class Pathway(nn.Module):
    """One of the two pathways: a ResNet of bottlenecks that keeps all of its frames.

    Args:
        channels: channels of the frames.
        width: width of the stem; each stage's bottlenecks are twice as wide as those before.
        stem_frames: temporal size of the first kernel.
        frames: temporal sizes of the kernels of the four stages.
        blocks: numbers of blocks of the stages.
        temporal_blocks: numbers of blocks of the stages that have these kernels; others see single frames.
        lateral: channels that are concatenated from the other pathway before each stage.
        non_local: for each stage the indices of the blocks that a non-local block follows.
        non_local_type: type of these blocks.
    """

    def __init__(
        self,
        channels: int,
        *,
        width: int,
        stem_frames: int,
        frames: tuple[int, ...],
        blocks: tuple[int, ...],
        temporal_blocks: Sequence[int],
        lateral: tuple[int, ...] = (0, 0, 0, 0),
        non_local: NonLocalBlocks = ((), (), (), ()),
        non_local_type: NonLocalType = "softmax",
    ) -> None:
        super().__init__()
        self.conv1 = convolution(channels, width, (stem_frames, 7, 7), (1, 2, 2))
        self.bn1 = nn.BatchNorm3d(width)
        self.maxpool = FramePool()
        inputs = width
        for i in range(4):
            stride: Kernel = (1, 2, 2) if i else (1, 1, 1)
            kernels = tuple(frames[i] if block < temporal_blocks[i] else 1 for block in range(blocks[i]))
            spec = StageSpec(
                width=width * 2**i,
                blocks=blocks[i],
                frames=kernels,
                stride=stride,
                non_local=non_local[i],
                non_local_type=non_local_type,
            )
            self.add_module(f"layer{i + 1}", build_stage(inputs + lateral[i], spec, bottlenecks=True))
            inputs = spec.width * Bottleneck3d.expansion
        self.channels = inputs

    def stem(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x width x T x H / 4 x W / 4."""
        maps: Tensor = self.maxpool(F.relu(self.bn1(self.conv1(clips)), inplace=True))
        return maps


class Fusion(nn.Module):
    """A lateral connection from the fast to the slow pathway (section 3.3, time-strided convolution).

    Args:
        inputs: channels of the fast pathway.
        outputs: channels that the slow pathway gets.
        kernel: temporal size.
        alpha: temporal stride.
        norm: batch norm and ReLU after the convolution.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, alpha: int, norm: bool) -> None:
        super().__init__()
        self.conv = convolution(inputs, outputs, (kernel, 1, 1), (alpha, 1, 1))
        self.bn = nn.BatchNorm3d(outputs) if norm else None

    def forward(self, maps: Tensor) -> Tensor:
        """B x M x T x h x w to B x M' x ceil(T / alpha) x h x w."""
        fused: Tensor = self.conv(maps)
        return fused if self.bn is None else F.relu(self.bn(fused), inplace=True)


@register.backbone(name="slowfast")
class SlowFast(ClipBackbone):
    """SlowFast (Feichtenhofer et al. 2019), for clips of any length and size; its input are the frames of the fast
    pathway, 32 in the paper.

    With 400 classes and 32 frames of 256 x 256 the 8x8 of 50 layers, which are the defaults, has 34.57 million weights
    and 65.7 billion multiply-adds; the 4x16 (``alpha: 8, fusion_kernel: 5``) 34.48 and 36.1; the 8x8 of 101 layers
    (``fusion_kernel: 5``) 62.83 and 125.9. PyTorchVideo's model zoo lists the same weights, and 65.7, 36.7 and 127.2
    billion.

    Args:
        channels: channels of the frames.
        depth: number of layers of each pathway.
        alpha: ratio of the frames of the fast pathway to those of the slow one; it need not divide the clips.
        beta: ratio of the channels of the slow pathway to those of the fast one; it divides 64 (the paper's beta is
            1 / 8).
        fusion_kernel: temporal size of the convolutions from the fast to the slow pathway; an odd number.
        fusion_ratio: ratio of their output channels to their input channels.
        fusion_norm: batch norm and ReLU after these convolutions; false for weights of mmaction2.
        slow_frames: frames of the slow pathway: ``even``: from the first to the last at equal distances (PySlowFast);
            ``strided``: each alpha-th from the first on (mmaction2).
        temporal_blocks: number of first blocks in each of the four stages that have temporal kernels (PySlowFast's 16x8
            of 101 layers: [3, 4, 6, 3]); null: all.
        fast_temporal_blocks: the same for the fast pathway; null: as in the slow one.
        non_local: for each of the four stages of the slow pathway the indices, from 0, of the blocks that a non-local
            block follows (Wang et al. 2018), such as [[], [1, 3], [1, 3, 5], []].
        non_local_type: weights of its positions: softmax, or dot products divided by the number of positions.
        zero_init_last: the last norm of every block has weight 0 at first (Goyal et al. 2017, section 5.1).

    Raises:
        ValueError: ``beta`` does not divide 64, ``fusion_kernel`` is even, or a block of ``non_local`` does not exist.
    """

    def __init__(
        self,
        channels: int,
        /,
        *,
        depth: Literal[50, 101] = 50,
        alpha: Count = 4,
        beta: Count = 8,
        fusion_kernel: Count = 7,
        fusion_ratio: Count = 2,
        fusion_norm: bool = True,
        slow_frames: Literal["even", "strided"] = "even",
        temporal_blocks: tuple[Count, Count, Count, Count] | None = None,
        fast_temporal_blocks: tuple[Count, Count, Count, Count] | None = None,
        non_local: NonLocalBlocks = ((), (), (), ()),
        non_local_type: NonLocalType = "softmax",
        zero_init_last: bool = True,
    ) -> None:
        if 64 % beta:
            raise ValueError(f"beta: it must divide the slow pathway's 64 channels, such as 8; {beta} does not")
        if not fusion_kernel % 2:
            raise ValueError(
                f"fusion_kernel: a kernel has a center, so it is an odd number such as 7, not {fusion_kernel}"
            )
        blocks, narrow = STAGE_DEPTHS[depth], 64 // beta
        temporal = temporal_blocks or blocks
        # Outputs of the fast pathway's stem and first three stages, which are fused before each slow stage.
        fast_channels = (narrow, *(narrow * 2**i * Bottleneck3d.expansion for i in range(3)))
        lateral = tuple(fusion_ratio * count for count in fast_channels)
        make = partial(Pathway, channels, blocks=blocks)
        attention: Any = {"non_local": non_local, "non_local_type": non_local_type}
        slow = make(
            width=64, stem_frames=1, frames=(1, 1, 3, 3), temporal_blocks=temporal, lateral=lateral, **attention
        )
        fast = make(width=narrow, stem_frames=5, frames=(3, 3, 3, 3), temporal_blocks=fast_temporal_blocks or temporal)
        super().__init__(slow.channels + fast.channels)
        self.alpha, self._strided = alpha, slow_frames == "strided"
        self.slow, self.fast = slow, fast
        self.fusions = nn.ModuleList(
            Fusion(inputs, outputs, fusion_kernel, alpha, fusion_norm)
            for inputs, outputs in zip(fast_channels, lateral, strict=True)
        )
        self.layers = [("slow.conv1", "slow.bn1", "fast.conv1", "fast.bn1", "fusions.0")]
        for number, count in enumerate(blocks, start=1):
            self.layers += [(f"slow.layer{number}.{i}", f"fast.layer{number}.{i}") for i in range(count)]
            if number < 4:
                self.layers[-1] += (f"fusions.{number}",)
        init_weights(self, zero_init_last=zero_init_last)

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x D."""
        if self._strided:
            slow_clips = clips[:, :, :: self.alpha]
        else:
            frames = torch.tensor(slow_frames(clips.shape[2], self.alpha))
            slow_clips = clips.index_select(2, move_tensor(frames, clips.device))
        slow, fast = self.slow.stem(slow_clips), self.fast.stem(clips)
        for number, fusion in enumerate(self.fusions, start=1):
            slow = torch.cat([slow, fusion(fast)], dim=1)
            slow = self.run_blocks(self.slow.get_submodule(f"layer{number}"), slow)
            fast = self.run_blocks(self.fast.get_submodule(f"layer{number}"), fast)
        return torch.cat([global_pool(slow), global_pool(fast)], dim=1)


def slow_frames(frames: int, alpha: int) -> list[int]:
    """Return the frame indices of the slow pathway: ceil(frames / alpha) from the first to the last at equal distances,
    rounded down, as in SlowFast's code (a single one is the first).

    Example: of 8 frames with alpha 4: 0 and 7.
    """
    count = -(-frames // alpha)
    return [i * (frames - 1) // max(1, count - 1) for i in range(count)]
