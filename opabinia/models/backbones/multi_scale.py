"""Feature maps of several sizes from timm's models, whatever the size of the images, and stages that learn nothing."""

from __future__ import annotations

from itertools import chain
from typing import Any

from timm.layers.format import Format
from timm.layers.patch_embed import PatchEmbed
from timm.models._manipulate import group_with_matcher
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from opabinia.contracts import Level
from opabinia.models import norms

FINEST, COARSEST = 4, 32
"""Strides: finer maps are too large for a detector, coarser ones its neck makes."""


class Levels(nn.Module):
    """Feature maps of a timm model, one for each of its strides from 4 to 32: the last one of this size.

    Where there are several they are taken as they come; the only one of a plain transformer is taken behind its last
    norm. A module of its own, so that it can be compiled; it holds no weights.

    Args:
        net: the model; what comes behind the last of these maps is taken off it. The names of its weights stay.

    Attributes:
        given: what :meth:`forward` gives.

    Raises:
        ValueError: timm does not tell these maps of it.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        told = getattr(net, "feature_info", None) or []
        last = {info["reduction"]: index for index, info in enumerate(told)}
        self._indices = [index for stride, index in last.items() if FINEST <= stride <= COARSEST]
        if not self._indices or not hasattr(net, "prune_intermediate_layers"):
            raise ValueError(
                f"timm's {type(net).__name__} gives no feature maps of strides {FINEST} to {COARSEST}; "
                "ResNet, ConvNeXt, Swin, ViT, EfficientNet, MobileNetV3 and RegNet do"
            )
        self.given = [Level(told[index]["num_chs"], told[index]["reduction"]) for index in self._indices]
        self._norm = len(self._indices) == 1
        net.prune_intermediate_layers(self._indices, prune_norm=not self._norm)

    def forward(self, net: Any, images: Tensor) -> list[Tensor]:
        """Of this model and of images B x C x H x W, maps (B x M x h x w) from fine to coarse."""
        maps: list[Tensor] = net.forward_intermediates(
            images, indices=self._indices, norm=self._norm, output_fmt="NCHW", intermediates_only=True
        )
        return maps


def take_any_size(net: nn.Module) -> None:
    """Let a vision transformer or a Swin transformer take images of any size whose sides its patches divide.

    What timm makes of ``dynamic_img_size`` and ``always_partition``: the position embedding of the one is resampled to
    the patches there are. Windows of the other keep their size and are shifted in every second block, its maps being
    padded to them, as its authors have it in detection (Liu et al. 2021).
    """
    if type(getattr(net, "patch_embed", None)) is not PatchEmbed:
        return
    if isinstance(net, VisionTransformer):
        _resample_positions(net)
    elif isinstance(net, SwinTransformer | SwinTransformerV2):
        _keep_windows(net)


def _resample_positions(net: Any) -> None:
    net.dynamic_img_size, net.patch_embed.strict_img_size = True, False
    net.patch_embed.flatten, net.patch_embed.output_fmt = False, Format.NHWC


def _keep_windows(net: Any) -> None:
    net.set_input_size(always_partition=True)
    net.dynamic_img_size, net.patch_embed.strict_img_size = True, False
    for block in chain.from_iterable(stage.blocks for stage in net.layers):
        block.dynamic_mask, block.attn_mask = True, None


def freeze_stages(net: Any, count: int) -> None:
    """Stop the first stages of a timm model from learning, the statistics of their batch norms too.

    Args:
        count: 1 is the stem, 2 the stem and the first stage or, of a plain transformer, block, and so on, as timm
            groups layers.

    Raises:
        ValueError: timm does not tell the stages, or there are fewer.
    """
    if not hasattr(net, "group_matcher"):
        raise ValueError(f"timm does not tell the stages of {type(net).__name__}")
    stage_of: dict[str, int] = group_with_matcher(net.named_parameters(), net.group_matcher(coarse=True), reverse=True)
    stages = 1 + max(stage_of.values())
    if not 0 <= count <= stages:
        raise ValueError(
            f"{type(net).__name__} has {stages} stages, its stem being the first; {count} cannot be frozen"
        )
    still = {name for name, stage in stage_of.items() if stage < count}
    for name, parameter in net.named_parameters():
        if name in still:
            parameter.requires_grad_(False)
    for name, module in list(net.named_modules()):
        if isinstance(module, _BatchNorm) and f"{name}.weight" in still:
            holder = nn.Sequential(module)
            norms.freeze(holder)
            net.set_submodule(name, holder[0])
