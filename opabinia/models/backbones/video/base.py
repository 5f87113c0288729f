"""What the networks for clips have in common: clips in, one vector each out, whatever their length and size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from timm.models._manipulate import checkpoint_seq
from torch import Tensor, nn

from opabinia.contracts import Backbone, DataMismatch

Kernel = tuple[int, int, int]
"""Frames, rows, columns: the size of a kernel, or a stride."""


class ClipBackbone(Backbone):
    """Clips (B x C x T x H x W, float) to one vector each (B x D).

    What comes out of the last layer is averaged over all of its places, so any number of frames and any size will do
    where a subclass does not say otherwise. Compute in float32 on CPUs: with torch 2.15 the weight gradients of 3-d
    convolutions in bfloat16 are wrong there for odd sizes.

    Attributes:
        layers: what the names of parameters begin with, from the stem to the last block; a parameter's depth is the
            place of its name's beginning.
        recompute: whether activations of blocks are computed again in the backward pass.
    """

    clips = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels
        self.layers: list[tuple[str, ...]] = []
        self.recompute = False

    def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """B x C x T x H x W to B x D.

        Raises:
            ValueError: there is an offset; networks for clips take none.
            Unfit: these are no clips, or none of a size that the network takes.
        """
        if offset is not None:
            raise ValueError(f"offset: {type(self).__name__} has no tokens that it could be added to")
        if images.ndim != 5:
            raise DataMismatch(
                f"{type(self).__name__} takes clips, B x C x T x H x W, not a tensor of {times(images.shape)}; images "
                "are for other backbones, such as timm's"
            )
        return self.vectors(images)

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x D."""
        raise NotImplementedError

    def depths(self) -> dict[str, int]:
        """Depth of each parameter by its name, from 0 (the stem) on, block by block."""
        return {name: self._depth(name) for name, _ in self.named_parameters()}

    def _depth(self, name: str) -> int:
        found = [depth for depth, starts in enumerate(self.layers) if f"{name}.".startswith(_dotted(starts))]
        assert found, f"{type(self).__name__} does not say where {name} stands"
        return max(found)

    def checkpoint_activations(self) -> None:
        """From now on compute activations of blocks again in the backward pass; the running statistics of their norms
        move twice a step then."""
        self.recompute = True

    def through(self, blocks: nn.Sequential, maps: Tensor) -> Tensor:
        """What ``blocks`` make of ``maps``, in the way that :attr:`recompute` says."""
        output: Tensor = checkpoint_seq(blocks, maps) if self.recompute and self.training else blocks(maps)
        return output


def _dotted(starts: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{start}." for start in starts)


def times(shape: Sequence[int]) -> str:
    """A shape in words: ``4 x 32 x 32``."""
    return " x ".join(map(str, shape))


def pooled(maps: Tensor) -> Tensor:
    """Mean over all places: B x M x t x h x w to B x M. (torch's 3-d pooling has no deterministic gradient on GPUs.)"""
    return maps.mean((2, 3, 4))


class FramePool(nn.Module):
    """The maximum of 3 x 3 places, every second one, of each frame by itself: B x M x t x h x w to half the height and
    width. (torch's 3-d pooling has no deterministic gradient on GPUs.)"""

    def forward(self, maps: Tensor) -> Tensor:
        """B x M x t x h x w to B x M x t x ceil(h / 2) x ceil(w / 2), in the same layout."""
        if maps.is_contiguous():
            joined = F.max_pool2d(maps.flatten(1, 2), 3, 2, 1)
            return joined.unflatten(1, maps.shape[1:3])  # type: ignore[no-untyped-call,no-any-return]
        frames = F.max_pool2d(maps.transpose(1, 2).flatten(0, 1), 3, 2, 1)
        apart: Tensor = frames.unflatten(0, (len(maps), maps.shape[2])).transpose(1, 2)  # type: ignore[no-untyped-call]
        return apart


Form = Literal["3d", "2+1d"]


def convolution(
    inputs: int, outputs: int, kernel: Kernel, stride: Kernel = (1, 1, 1), *, form: Form = "3d"
) -> nn.Module:
    """A convolution without bias whose output has the size of its input, divided by the stride and rounded up.

    Args:
        form: ``2+1d`` makes it of two, over places and then over frames, with a norm and ReLU between them (Tran et al.
            2018, section 3.5). They have as many channels between them as give both together the weights of one:
            floor(t d^2 N M / (d^2 N + t M)).

    Raises:
        ValueError: a kernel has an even side, so that it has no centre.
    """
    if not all(side % 2 for side in kernel):
        raise ValueError(f"kernels have a centre, so their sides are odd numbers, not {times(kernel)}")
    frames, rows, columns = kernel
    if form == "3d" or frames == 1:
        return nn.Conv3d(inputs, outputs, kernel, stride, tuple(side // 2 for side in kernel), bias=False)  # type: ignore[arg-type]
    area = rows * columns
    between = max(1, frames * area * inputs * outputs // (area * inputs + frames * outputs))
    return nn.Sequential(
        convolution(inputs, between, (1, rows, columns), (1, *stride[1:])),
        nn.BatchNorm3d(between),
        nn.ReLU(inplace=True),
        convolution(between, outputs, (frames, 1, 1), (stride[0], 1, 1)),
    )


def draw(model: nn.Module) -> None:
    """Draw the weights of all convolutions for ReLU behind them (He et al. 2015, by the size of their outputs)."""
    for module in model.modules():
        if isinstance(module, nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
