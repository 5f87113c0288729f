"""Necks: the maps of a backbone to a pyramid of maps that a detector looks at, all with the same channels."""

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
from opabinia.models.norms import GroupNorm

Norm = Literal["none", "batch", "group"]
_GROUPS = 32


class Pyramid(Neck):
    """torchvision's feature pyramid, whose weights keep the names they have there (``fpn.inner_blocks.0.0.weight``).

    A coarser map is brought to the size of the next finer one, so images of any size will do.

    Args:
        levels: what the backbone gives. Those that end it are taken, one for each stride.
        strides: of the maps that are taken.
        channels: of what it gives.
        norm: behind each of its convolutions, which have no bias then.
        extra: what makes the two coarser maps, or the one.
        extra_strides: of these.

    Raises:
        ValueError: the backbone has no such maps, or the channels cannot be divided into groups.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        strides: Sequence[int],
        channels: int,
        norm: Norm,
        extra: ExtraFPNBlock,
        extra_strides: Sequence[int],
    ) -> None:
        super().__init__()
        taken = levels[-len(strides) :]
        if [level.stride for level in taken] != list(strides):
            raise ValueError(
                f"a feature pyramid begins with maps of strides {_listed(strides)}, and the backbone gives "
                f"{_listed([level.stride for level in levels])}; {_remedy(levels)}"
            )
        self._taken = len(taken)
        self.fpn = FeaturePyramidNetwork([level.channels for level in taken], channels, extra, norm_of(norm, channels))
        self.out_levels = tuple(Level(channels, stride) for stride in (*strides, *extra_strides))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps of the backbone, from fine to coarse, to those of the pyramid."""
        named = OrderedDict((str(number), one) for number, one in enumerate(maps[-self._taken :]))
        return list(self.fpn(named).values())


def _listed(strides: Sequence[int]) -> str:
    return ", ".join(map(str, strides))


def _remedy(levels: Sequence[Level]) -> str:
    if levels[-1].stride != 16:
        return "take a backbone that has them (ResNet, ConvNeXt, Swin)"
    if len(levels) == 1:
        return "the neck simple_pyramid makes them from one map of stride 16"
    return "last_stride: 2 of a ResNet gives them; the neck simple_pyramid makes them from a last map of stride 16"


def norm_of(norm: Norm, channels: int) -> Callable[..., nn.Module] | None:
    """What makes a norm of so many channels; None for none.

    Raises:
        ValueError: the channels cannot be divided into 32 groups.
    """
    if norm == "group" and channels % _GROUPS:
        raise ValueError(f"channels: with norm: group a multiple of its {_GROUPS} groups, not {channels}")
    return {"none": None, "batch": nn.BatchNorm2d, "group": partial(GroupNorm, _GROUPS)}[norm]


@register.neck
def fpn(levels: Sequence[Level], /, *, channels: Count = 256, norm: Norm = "none") -> Neck:
    """The feature pyramid of R-CNNs: P2 to P5 of strides 4 to 32, and P6, which is every second place of P5 (Lin et al.
    2017, section 3; section 4.1, footnote, for P6).

    Args:
        levels: what the backbone gives; it ends with strides 4, 8, 16, 32.
        channels: of each map; the paper's.
        norm: behind each convolution; ``group`` has 32 groups. The paper has none.

    Raises:
        ValueError: the backbone has no such maps, or channels cannot be divided into groups.
    """
    return Pyramid(levels, (4, 8, 16, 32), channels, norm, LastLevelMaxPool(), (64,))


@register.neck
def fpn_p3_p7(levels: Sequence[Level], /, *, channels: Count = 256, norm: Norm = "none") -> Neck:
    """The feature pyramid of RetinaNet: P3 to P5 of strides 8 to 32, P6 and P7 by convolutions with stride 2, the first
    of them on the backbone's last map (Lin et al. 2017, Focal loss, section 4, footnote 2).

    Args:
        levels: what the backbone gives; it ends with strides 8, 16, 32.
        channels: of each map; the paper's.
        norm: behind each convolution but the last two; ``group`` has 32 groups. The paper has none.

    Raises:
        ValueError: the backbone has no such maps, or channels cannot be divided into groups.
    """
    extra = LastLevelP6P7(levels[-1].channels, channels)
    extra.use_P5 = False  # torchvision takes P5 where the numbers of channels happen to be equal
    return Pyramid(levels, (8, 16, 32), channels, norm, extra, (64, 128))


@register.neck
def fpn_p3_p7_from_p5(levels: Sequence[Level], /, *, channels: Count = 256, norm: Norm = "none") -> Neck:
    """:func:`fpn_p3_p7` with P6 made from P5, as FCOS has it (Tian et al. 2019, section 3.2), and torchvision's first
    RetinaNet.

    Args:
        levels: what the backbone gives; it ends with strides 8, 16, 32.
        channels: of each map; the paper's.
        norm: behind each convolution but the last two; ``group`` has 32 groups. The paper has none.

    Raises:
        ValueError: the backbone has no such maps, or channels cannot be divided into groups.
    """
    return Pyramid(levels, (8, 16, 32), channels, norm, LastLevelP6P7(channels, channels), (64, 128))


class SimplePyramid(Neck):
    """See :func:`simple_pyramid`.

    Args:
        channels_in: of the map of stride 16.
        channels: of what it gives.
        strides: of what it gives, each the double of the one before, from 4, 8 or 16 on.
    """

    def __init__(self, channels_in: int, channels: int, strides: Sequence[int]) -> None:
        super().__init__()
        made = [stride for stride in strides if stride <= 32]
        self.stages = nn.ModuleList(_stage(channels_in, channels, stride) for stride in made)
        self._halved = len(strides) - len(made)
        self.out_levels = tuple(Level(channels, stride) for stride in strides)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps of the backbone, of which the last is taken, to those of the pyramid."""
        pyramid = [stage(maps[-1]) for stage in self.stages]
        for _ in range(self._halved):
            pyramid.append(F.max_pool2d(pyramid[-1], kernel_size=1, stride=2))
        return pyramid


def _stage(channels_in: int, channels: int, stride: int) -> nn.Sequential:
    """From a map of stride 16 to one of another stride, up to 32."""
    width = channels_in
    scaled: list[nn.Module] = [nn.MaxPool2d(2)] if stride == 32 else []
    while stride < 16:
        if scaled:
            scaled += [LayerNorm2d(width), nn.GELU()]
        scaled.append(nn.ConvTranspose2d(width, width // 2, 2, stride=2))
        width, stride = width // 2, stride * 2
    lateral = nn.Sequential(nn.Conv2d(width, channels, 1, bias=False), LayerNorm2d(channels))
    output = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), LayerNorm2d(channels))
    return nn.Sequential(*scaled, lateral, output)


@register.neck
def simple_pyramid(
    levels: Sequence[Level],
    /,
    *,
    channels: Count = 256,
    strides: tuple[Literal[4, 8, 16, 32, 64, 128], ...] = (4, 8, 16, 32, 64),
) -> Neck:
    """A pyramid from the one map of a plain vision transformer (Li et al. 2022, ViTDet, section 3): finer ones by
    transposed convolutions, coarser ones by max pooling, layer norms behind all convolutions.

    Args:
        levels: what the backbone gives; the last of stride 16.
        channels: of each map; the paper's.
        strides: of what it gives, each the double of the one before, from 4, 8 or 16 to at least 32. The paper has 4 to
            32, and 64 for the region proposals; what is made for :func:`fpn_p3_p7` wants ``[8, 16, 32, 64, 128]``.

    Raises:
        ValueError: the last map of the backbone has another stride, or the strides do not go together.
    """
    if levels[-1].stride != 16:
        strides_there = _listed([level.stride for level in levels])
        raise ValueError(
            f"simple_pyramid begins with a last map of stride 16, and the backbone gives {strides_there}; for strides "
            "4 to 32 take the neck fpn, and for a vision transformer patches of 16 (options: {patch_size: 16})"
        )
    if strides[:1] not in ((4,), (8,), (16,)) or strides[-1] < 32 or any(2 * a != b for a, b in pairwise(strides)):
        raise ValueError(
            f"strides: each is the double of the one before, from 4, 8 or 16 to at least 32, not {_listed(strides)}"
        )
    return SimplePyramid(levels[-1].channels, channels, strides)
