"""Non-local blocks: attention over all positions of feature maps, and over all frames (Wang et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

NonLocalBlocks = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
"""For each of four stages the indices, from 0, of the residual blocks that a non-local block follows."""

NonLocalType = Literal["softmax", "dot_product"]
"""Weights of the positions: softmax of dot products (embedded Gaussian), or dot products divided by the number of
positions."""


class NonLocal(nn.Module):
    """Residual attention from all positions to all others (Wang et al. 2018, sections 3.2 and 3.3).

    Its norm has weight 0 at first, so that a pretrained model initially computes the same (section 4.1).

    Args:
        channels: C.
        kind: weights of the positions.
        inner: number of channels of queries, keys and values; None: half as many.
        clips: for feature maps of clips; as in PySlowFast keys and values are then max pooled over 2 x 2 positions, and
            softmax is scaled as in transformers.
    """

    def __init__(
        self, channels: int, kind: NonLocalType = "softmax", *, inner: int | None = None, clips: bool = False
    ) -> None:
        super().__init__()
        self.kind, self.clips = kind, clips
        inner = inner or channels // 2
        conv, norm = (nn.Conv3d, nn.BatchNorm3d) if clips else (nn.Conv2d, nn.BatchNorm2d)
        self.theta, self.phi, self.g = (conv(channels, inner, 1) for _ in range(3))
        self.out = conv(inner, channels, 1)
        self.norm = norm(channels)
        nn.init.zeros_(self.norm.weight)

    def forward(self, maps: Tensor) -> Tensor:
        """B x C x h x w, or B x C x t x h x w, of the same shape."""
        pooled = maps
        if self.clips:
            kernel = [min(2, side) for side in maps.shape[3:]]
            pooled = F.max_pool2d(maps.flatten(1, 2), kernel).unflatten(1, maps.shape[1:3])  # type: ignore[no-untyped-call]
        query = self.theta(maps).flatten(2).transpose(1, 2)
        key, value = (conv(pooled).flatten(2).transpose(1, 2) for conv in (self.phi, self.g))
        if self.kind == "softmax":
            attended = F.scaled_dot_product_attention(query, key, value, scale=None if self.clips else 1.0)
        else:  # the product of keys and values first: it has no size of positions times positions
            attended = query @ (key.transpose(1, 2) @ value) / key.shape[1]
        output: Tensor = self.out(attended.transpose(1, 2).unflatten(2, maps.shape[2:]))  # type: ignore[no-untyped-call]
        residual: Tensor = maps + self.norm(output)
        return residual
