"""Base of clip backbones: clips of any length and size to one vector each."""

from __future__ import annotations

from typing import Any, Literal

import torch.nn.functional as F
from timm.models._manipulate import checkpoint_seq
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from opabinia.contracts import Backbone, DataMismatch
from opabinia.models.backbones.module import format_size

Kernel = tuple[int, int, int]
"""Frames, rows, columns: the size of a kernel, or a stride."""


class ClipBackbone(Backbone):
    """Clips (B x C x T x H x W, float) to one vector each (B x D).

    The output of the last layer is averaged over all positions and frames, so clips can have any length and size unless
    a subclass says otherwise. Compute in float32 on CPUs: with torch 2.15 the weight gradients of 3-d convolutions in
    bfloat16 are wrong there for odd sizes.

    Attributes:
        layers: prefixes of parameter names, from the stem to the last block; the depth of a parameter is the index of
            its prefix.
        recompute: recompute activations of blocks in the backward pass.
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
            ValueError: an offset is given; clip backbones have no tokens.
            DataMismatch: the input is not clips, or has a size that the network does not take.
        """
        if offset is not None:
            raise ValueError(f"offset: {type(self).__name__} has no tokens that it could be added to")
        if images.ndim != 5:
            raise DataMismatch(
                f"{type(self).__name__} takes clips, B x C x T x H x W, not a tensor of {format_size(images.shape)}; "
                "images are for other backbones, such as timm's"
            )
        return self.vectors(images)

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x D."""
        raise NotImplementedError

    def depths(self) -> dict[str, int]:
        """Depth of each parameter by its name, from 0 (the stem) on, block by block."""
        prefixes = [tuple(f"{prefix}." for prefix in layer) for layer in self.layers]
        return {
            name: max(depth for depth, layer in enumerate(prefixes) if f"{name}.".startswith(layer))
            for name, _ in self.named_parameters()
        }

    def checkpoint_activations(self) -> None:
        """Recompute activations of blocks in the backward pass (activation checkpointing); the running statistics of
        their norms are then updated twice per step."""
        self.recompute = True

    def run_block(self, block: nn.Module, *values: Any) -> Any:
        """Apply a block to its inputs, with activation checkpointing if :attr:`recompute` is set."""
        if self.recompute and self.training:
            return checkpoint(block, *values, use_reentrant=False)
        return block(*values)

    def run_blocks(self, blocks: nn.Module, maps: Tensor) -> Tensor:
        """Apply ``blocks`` to ``maps``, with activation checkpointing if :attr:`recompute` is set."""
        output: Tensor = checkpoint_seq(blocks, maps) if self.recompute and self.training else blocks(maps)
        return output


def global_pool(maps: Tensor) -> Tensor:
    """Average over frames and positions: B x M x t x h x w to B x M. (torch's 3-d pooling has no deterministic gradient
    on GPUs.)"""
    return maps.mean((2, 3, 4))


class FramePool(nn.Module):
    """Max pooling of each frame, 3 x 3 with stride 2. (torch's 3-d pooling has no deterministic gradient on GPUs.)"""

    def forward(self, maps: Tensor) -> Tensor:
        """B x M x t x h x w to B x M x t x ceil(h / 2) x ceil(w / 2), in the same memory format."""
        if maps.is_contiguous():
            flat = F.max_pool2d(maps.flatten(1, 2), 3, 2, 1)
            return flat.unflatten(1, maps.shape[1:3])  # type: ignore[no-untyped-call,no-any-return]
        frames = F.max_pool2d(maps.transpose(1, 2).flatten(0, 1), 3, 2, 1)
        pooled: Tensor = frames.unflatten(0, (-1, maps.shape[2])).transpose(1, 2)  # type: ignore[no-untyped-call]
        return pooled


def shortcut_projection(inputs: int, outputs: int, stride: Kernel) -> nn.Sequential | None:
    """Build the projection of a block's shortcut to the size of its output; None where the sizes are equal."""
    if inputs == outputs and stride == (1, 1, 1):
        return None
    return nn.Sequential(nn.Conv3d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm3d(outputs))


ConvType = Literal["3d", "2+1d"]


def convolution(
    inputs: int, outputs: int, kernel: Kernel, stride: Kernel = (1, 1, 1), *, conv_type: ConvType = "3d"
) -> nn.Module:
    """Build a convolution without bias whose output has the size of its input, divided by the stride and rounded up.

    Args:
        inputs, outputs: channels.
        conv_type: ``2+1d`` factorizes it into a spatial and a temporal convolution with norm and ReLU between them
            (Tran et al. 2018, section 3.5), with as many channels between them as keep the number of weights:
            floor(t d^2 N M / (d^2 N + t M)).

    Raises:
        ValueError: a side of the kernel is even.
    """
    if not all(side % 2 for side in kernel):
        raise ValueError(f"kernels have a center, so their sides are odd numbers, not {format_size(kernel)}")
    frames, rows, columns = kernel
    if conv_type == "3d" or frames == 1:
        return nn.Conv3d(inputs, outputs, kernel, stride, tuple(side // 2 for side in kernel), bias=False)  # type: ignore[arg-type]
    area = rows * columns
    between = max(1, frames * area * inputs * outputs // (area * inputs + frames * outputs))
    return nn.Sequential(
        convolution(inputs, between, (1, rows, columns), (1, *stride[1:])),
        nn.BatchNorm3d(between),
        nn.ReLU(inplace=True),
        convolution(between, outputs, (frames, 1, 1), (stride[0], 1, 1)),
    )


def init_weights(model: nn.Module, *, zero_init_last: bool) -> None:
    """Initialize the weights of all convolutions for ReLU (He et al. 2015, fan-out).

    Args:
        zero_init_last: set the last norm of every residual block to weight 0, so that the block is an identity at first
            (Goyal et al. 2017, section 5.1).
    """
    for module in model.modules():
        last_norm = getattr(module, "bn3", None) or getattr(module, "bn2", None)
        if zero_init_last and last_norm is not None:
            nn.init.zeros_(last_norm.weight)
        if isinstance(module, nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
