"""Anchors of detectors: left, top, right, bottom in pixels, float32. Nothing here waits for the device.

The coding of boxes relative to anchors is in :mod:`opabinia.models.losses.boxes`, their matching with ground truth in
:mod:`opabinia.models.losses.matching`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from opabinia.runtime.device import move_tensor

Convention = Literal["detectron2", "torchvision"]
"""The library whose anchors are used. torchvision's, for its weights, have corners on whole pixels, and their strides
are the batch's size divided by the feature map's, rounded down."""


def cell_anchors(sizes: Sequence[float], aspect_ratios: Sequence[float], *, rounded: bool = False) -> Tensor:
    """Return the anchors of one position, centered at (0, 0), A x 4: for each size one of each ratio, as in detectron2.

    Args:
        sizes: square roots of their areas, in pixels.
        aspect_ratios: height / width.
        rounded: round corners to whole pixels, and order by ratio first, then size: torchvision's weights were trained
            with that.

    Example: size 32 with the ratio 0.5 is [-22.6274, -11.3137, 22.6274, 11.3137]; rounded [-23, -11, 23, 11].
    """
    size = torch.tensor(sizes, dtype=torch.float64)
    root = torch.tensor(aspect_ratios, dtype=torch.float64).sqrt()
    pairs = torch.cartesian_prod(root, size).flip(1) if rounded else torch.cartesian_prod(size, root)
    width, height = (pairs[:, 0] / pairs[:, 1]).float(), (pairs[:, 0] * pairs[:, 1]).float()
    corners = torch.stack([-width, -height, width, height], dim=1) / 2
    return corners.round() if rounded else corners


def grid_anchors(cells: Tensor, shape: tuple[int, int], stride: int | tuple[int, int], offset: float = 0.0) -> Tensor:
    """Return the anchors of every position of a feature map: h * w * A x 4, row by row, the A of a position in a row.

    Args:
        cells: A x 4, centered at (0, 0).
        shape: h and w of the feature map.
        stride: pixels between positions; a pair is vertical, horizontal.
        offset: shift of the first position, in strides: 0 (detectron2, torchvision) or 0.5, the center of its cell.

    Example: the first one of size 32 and ratio 0.5 at stride 4 and offset 0.5 is [-20.6274, -9.3137, 24.6274, 13.3137].
    """
    strides = (stride, stride) if isinstance(stride, int) else stride
    rows, columns = (
        (torch.arange(side, device=cells.device) + offset) * step for side, step in zip(shape, strides, strict=True)
    )
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    centers = torch.stack([x, y, x, y], dim=-1)
    return (centers.view(-1, 1, 4) + cells).reshape(-1, 4)


class AnchorGrid:
    """Anchors for all levels of a feature pyramid.

    Args:
        sizes: sizes of each level, from fine to coarse.
        aspect_ratios: height / width, the same on all levels.
        strides: strides of the levels.
        offset: see :func:`grid_anchors`.
        convention: see :data:`Convention`.

    Attributes:
        num_anchors: A, anchors per position.

    Raises:
        ValueError: there are not as many lists of sizes as levels, or these differ in length.
    """

    def __init__(
        self,
        sizes: Sequence[Sequence[float]],
        aspect_ratios: Sequence[float],
        strides: Sequence[int],
        *,
        offset: float = 0.0,
        convention: Convention = "detectron2",
    ) -> None:
        if len(sizes) != len(strides):
            raise ValueError(f"sizes: {len(sizes)} lists for {len(strides)} levels")
        if len({len(level_sizes) for level_sizes in sizes}) != 1:
            raise ValueError("sizes: all levels need the same number of them, because they share a head")
        self.num_anchors = len(sizes[0]) * len(aspect_ratios)
        self._sizes = [tuple(map(float, level_sizes)) for level_sizes in sizes]
        self._aspect_ratios = tuple(map(float, aspect_ratios))
        self._strides, self._offset, self._convention = tuple(strides), offset, convention

    def __call__(self, maps: Sequence[Tensor], shape: tuple[int, int] | None = None) -> list[Tensor]:
        """Return the anchors (h * w * A x 4) of each feature map, which are parts of cached grids: do not change them
        in place.

        Args:
            maps: B x C x h x w.
            shape: height and width of the batch, from which torchvision's strides are computed.
        """
        anchors = []
        # Tensors of a traced graph and fake ones have no values: no cache may keep them.
        traced = torch.compiler.is_compiling() or isinstance(maps[0], FakeTensor)
        build = _cached_anchors.__wrapped__ if traced else _cached_anchors
        for sizes, level_stride, level in zip(self._sizes, self._strides, maps, strict=True):
            height, width = level.shape[-2], level.shape[-1]
            stride, rounded = (level_stride, level_stride), self._convention == "torchvision"
            if rounded and shape is not None:
                stride = (shape[0] // height, shape[1] // width)
            # Batches of many sizes, as multi-scale training has them, share few grids.
            grid = (height, width) if traced else (_next_power_of_two(height), _next_power_of_two(width))
            cached = build(sizes, self._aspect_ratios, rounded, stride, self._offset, grid, level.device)
            anchors.append(cached[:height, :width].reshape(-1, 4))
        return anchors


def _next_power_of_two(side: int) -> int:
    return 1 << (side - 1).bit_length()


@lru_cache(maxsize=64)
def _cached_anchors(
    sizes: tuple[float, ...],
    aspect_ratios: tuple[float, ...],
    rounded: bool,
    stride: tuple[int, int],
    offset: float,
    shape: tuple[int, int],
    device: torch.device,
) -> Tensor:
    """Return the anchors of a feature map as h x w x 4A."""
    # Tensors created in inference mode could not take part in training later.
    with torch.inference_mode(False):
        cells = move_tensor(cell_anchors(sizes, aspect_ratios, rounded=rounded), device)
        return grid_anchors(cells, shape, stride, offset).view(*shape, -1)
