"""Necks: feature maps of a backbone to a feature pyramid with equal channels on all levels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

import torch.nn.functional as F
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn
from torchvision.ops.feature_pyramid_network import (
    ExtraFPNBlock,
    FeaturePyramidNetwork,
    LastLevelMaxPool,
    LastLevelP6P7,
)

from opabinia.config import register
from opabinia.contracts import Count, Level, Neck
from opabinia.models.norms import GROUPS, GroupNorm

Norm = Literal["none", "batch", "group"]


class Pyramid(Neck):
    """torchvision's feature pyramid; the weights keep torchvision's names (``fpn.inner_blocks.0.0.weight``).

    Coarser maps are resized to the size of the next finer one, so images can have any size.

    Args:
        levels: the backbone's levels. The last ones are used, one for each stride.
        strides: strides of the levels that are used.
        channels: number of channels of the output.
        norm: after each of its convolutions, which then have no bias.
        extra: makes coarser levels; None: there are none.
        extra_strides: strides of these.

    Raises:
        ValueError: the backbone has no such levels, or the channels are not divisible into groups.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        strides: Sequence[int],
        channels: int,
        norm: Norm,
        extra: ExtraFPNBlock | None,
        extra_strides: Sequence[int],
    ) -> None:
        super().__init__()
        inputs = levels[-len(strides) :]
        if [level.stride for level in inputs] != list(strides):
            raise ValueError(
                f"a feature pyramid needs feature maps of strides {_join(strides)}, and the backbone gives "
                f"{_join([level.stride for level in levels])}; {_remedy(levels)}"
            )
        self._num_inputs = len(inputs)
        in_channels = [level.channels for level in inputs]
        self.fpn = FeaturePyramidNetwork(in_channels, channels, extra, norm_factory(norm, channels))
        self.out_levels = tuple(Level(channels, stride) for stride in (*strides, *extra_strides))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Feature maps of the backbone, from fine to coarse, to those of the pyramid."""
        named = OrderedDict((str(index), level) for index, level in enumerate(maps[-self._num_inputs :]))
        return list(self.fpn(named).values())


def _join(strides: Sequence[int]) -> str:
    return ", ".join(map(str, strides))


def _remedy(levels: Sequence[Level]) -> str:
    if levels[-1].stride != 16:
        return "use a backbone that has them (ResNet, ConvNeXt, Swin)"
    if len(levels) == 1:
        return "the neck simple_pyramid makes them from one map of stride 16"
    return "a ResNet gives them with last_stride: 2; the neck simple_pyramid makes them from a last map of stride 16"


def norm_factory(norm: Norm, channels: int) -> Callable[[int], nn.Module] | None:
    """Return the constructor of a norm layer that takes the channels; None for no norm.

    Raises:
        ValueError: the channels are not divisible into 32 groups.
    """
    if norm == "group" and channels % GROUPS:
        raise ValueError(f"norm: group has {GROUPS} groups, which do not divide the {channels} channels")
    return {"none": None, "batch": nn.BatchNorm2d, "group": partial(GroupNorm, GROUPS)}[norm]


@register.neck
class NoNeck(Neck):
    """Only the backbone's last feature map, unchanged: detectors without a feature pyramid (ResNet-C4, ResNet-DC5).

    Args:
        levels: the backbone's levels.
    """

    def __init__(self, levels: Sequence[Level], /) -> None:
        super().__init__()
        self.out_levels = (levels[-1],)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return the last of the feature maps."""
        return [maps[-1]]


@register.neck
def fpn(levels: Sequence[Level], /, *, channels: Count = 256, norm: Norm = "none") -> Neck:
    """Feature pyramid of R-CNNs: P2 to P5 of strides 4 to 32, and P6, every second position of P5 (Lin et al. 2017,
    section 3; section 4.1, footnote, for P6).

    Args:
        levels: the backbone's levels, ending with strides 4, 8, 16, 32.
        channels: number of channels of each level; the default is the paper's.
        norm: after each convolution; ``group`` has 32 groups. The paper has none.

    Raises:
        ValueError: the backbone has no such levels, or channels are not divisible into groups.
    """
    return Pyramid(levels, (4, 8, 16, 32), channels, norm, LastLevelMaxPool(), (64,))


class LastLevelsWithoutRelu(LastLevelP6P7):  # type: ignore[misc]
    """Two coarser levels by convolutions with nothing between them, as in MMDetection's RetinaNet."""

    def forward(self, p: list[Tensor], c: list[Tensor], names: list[str]) -> tuple[list[Tensor], list[str]]:
        """Append the levels to the pyramid ``p``; the first is made from the last of the backbone's levels ``c``."""
        first = self.p6(c[-1])
        return [*p, first, self.p7(first)], [*names, "p6", "p7"]


@register.neck
def fpn_p3_p7(
    levels: Sequence[Level], /, *, channels: Count = 256, norm: Norm = "none", relu_before_p7: bool = True
) -> Neck:
    """Feature pyramid of RetinaNet: P3 to P5 of strides 8 to 32, P6 and P7 by convolutions with stride 2, the first of
    them on the backbone's last feature map (Lin et al. 2017, Focal loss, section 4, footnote 2).

    Args:
        levels: the backbone's levels, ending with strides 8, 16, 32.
        channels: number of channels of each level; the default is the paper's.
        norm: after each convolution but the last two; ``group`` has 32 groups. The paper has none.
        relu_before_p7: P7 is made from the positive part of P6, as in the paper; MMDetection's RetinaNet has none.

    Raises:
        ValueError: the backbone has no such levels, or channels are not divisible into groups.
    """
    extra = (LastLevelP6P7 if relu_before_p7 else LastLevelsWithoutRelu)(levels[-1].channels, channels)
    extra.use_P5 = False  # torchvision uses P5 if the numbers of channels happen to be equal
    return Pyramid(levels, (8, 16, 32), channels, norm, extra, (64, 128))


@register.neck
def fpn_p3_p7_from_p5(levels: Sequence[Level], /, *, channels: Count = 256, norm: Norm = "none") -> Neck:
    """Feature pyramid like ``fpn_p3_p7``, but with P6 made from P5, as in FCOS (Tian et al. 2019, section 3.2) and in
    torchvision's first RetinaNet.

    Args:
        levels: the backbone's levels, ending with strides 8, 16, 32.
        channels: number of channels of each level; the default is the paper's.
        norm: after each convolution but the last two; ``group`` has 32 groups. The paper has none.

    Raises:
        ValueError: the backbone has no such levels, or channels are not divisible into groups.
    """
    return Pyramid(levels, (8, 16, 32), channels, norm, LastLevelP6P7(channels, channels), (64, 128))


@register.neck
class SimplePyramid(Neck):
    """Feature pyramid from the single feature map of a plain vision transformer (Li et al. 2022, ViTDet, section 3):
    finer levels by transposed convolutions, coarser ones by max pooling, with layer norm after all convolutions.

    Args:
        levels: the backbone's levels; the last has stride 16.
        channels: number of channels of each level; the default is the paper's.
        strides: strides of the output, each twice the one before, from 4, 8 or 16 to at least 32. The paper has 4 to
            32, and 64 for the region proposals; detectors made for ``fpn_p3_p7`` need ``[8, 16, 32, 64, 128]``.

    Raises:
        ValueError: the backbone's last level has another stride, or the strides are not as above.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        /,
        *,
        channels: Count = 256,
        strides: tuple[Literal[4, 8, 16, 32, 64, 128], ...] = (4, 8, 16, 32, 64),
    ) -> None:
        if levels[-1].stride != 16:
            raise ValueError(
                "simple_pyramid needs a last feature map of stride 16, and the backbone gives "
                f"{_join([level.stride for level in levels])}; for strides 4 to 32 use the neck fpn, and for a vision "
                "transformer patches of 16 (options: {patch_size: 16})"
            )
        if strides[:1] not in ((4,), (8,), (16,)) or strides[-1] < 32 or any(2 * a != b for a, b in pairwise(strides)):
            raise ValueError(
                f"strides: each is twice the one before, from 4, 8 or 16 to at least 32, not {_join(strides)}"
            )
        super().__init__()
        staged = [stride for stride in strides if stride <= 32]
        self.stages = nn.ModuleList(_stage(levels[-1].channels, channels, stride) for stride in staged)
        self._num_pooled = len(strides) - len(staged)
        self.out_levels = tuple(Level(channels, stride) for stride in strides)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Feature maps of the backbone, of which the last is used, to those of the pyramid."""
        pyramid = [stage(maps[-1]) for stage in self.stages]
        for _ in range(self._num_pooled):
            pyramid.append(F.max_pool2d(pyramid[-1], kernel_size=1, stride=2))
        return pyramid


def _stage(in_channels: int, channels: int, stride: int) -> nn.Sequential:
    """Map a feature map of stride 16 to one of another stride, up to 32."""
    width = in_channels
    scale: list[nn.Module] = [nn.MaxPool2d(2)] if stride == 32 else []
    while stride < 16:
        if scale:
            scale += [LayerNorm2d(width), nn.GELU()]
        scale.append(nn.ConvTranspose2d(width, width // 2, 2, stride=2))
        width, stride = width // 2, stride * 2
    lateral = nn.Sequential(nn.Conv2d(width, channels, 1, bias=False), LayerNorm2d(channels))
    output = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), LayerNorm2d(channels))
    return nn.Sequential(*scale, lateral, output)
