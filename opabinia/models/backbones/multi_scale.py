"""Multi-scale feature maps of timm models for images of any size, and frozen stages."""

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
"""Strides: finer feature maps are too large for a detector, coarser ones are made by its neck."""


class MultiScaleFeatures(nn.Module):
    """Feature maps of a timm model, the last one for each of its strides from 4 to 32.

    Several feature maps are taken as they are; the only one of a plain transformer is taken after its last norm. This
    is a module so that it can be compiled; it holds no weights.

    Args:
        net: the model.

    Attributes:
        out_levels: the output of :meth:`forward`.

    Raises:
        ValueError: timm does not offer these feature maps.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        feature_info = getattr(net, "feature_info", None) or []
        last = {info["reduction"]: index for index, info in enumerate(feature_info)}
        self._indices = [index for stride, index in last.items() if FINEST <= stride <= COARSEST]
        if not self._indices or not hasattr(net, "prune_intermediate_layers"):
            raise ValueError(
                f"timm's {type(net).__name__} gives no feature maps of strides {FINEST} to {COARSEST}; "
                "ResNet, ConvNeXt, Swin, ViT, EfficientNet, MobileNetV3 and RegNet do"
            )
        infos = [feature_info[index] for index in self._indices]
        self.out_levels = [Level(info["num_chs"], info["reduction"]) for info in infos]
        self._norm = len(self._indices) == 1

    def prune(self, net: Any) -> None:
        """Remove the layers of the model after the last of these feature maps. Its weights keep their names."""
        net.prune_intermediate_layers(self._indices, prune_norm=not self._norm)

    def keep_dilated_stages(self, net: Any) -> list[Level]:
        """Add the feature maps before the last that have its stride, and return all levels; a plain transformer has
        none."""
        stride = self.out_levels[-1].stride
        infos = [
            (index, info)
            for index, info in enumerate(net.feature_info)
            if index in self._indices or (info["reduction"] == stride and not self._norm)
        ]
        self._indices = [index for index, _ in infos]
        self.out_levels = [Level(info["num_chs"], info["reduction"]) for _, info in infos]
        return self.out_levels

    def drop_last(self) -> None:
        """End with the level before the last; later stages are not computed."""
        self._indices.pop()
        self.out_levels.pop()

    def forward(self, net: Any, images: Tensor, *, with_output: bool = False) -> tuple[Tensor | None, list[Tensor]]:
        """Return the output of a model before its pooling, and the feature maps (B x M x h x w), from fine to coarse.

        Args:
            net: the model.
            images: B x C x H x W.
            with_output: return the output, too (of a model that was not pruned); otherwise the output is None, and
                later layers do not run.
        """
        if with_output:
            output, maps = net.forward_intermediates(images, indices=self._indices, norm=self._norm, output_fmt="NCHW")
            return output, maps
        maps = net.forward_intermediates(
            images, indices=self._indices, norm=self._norm, output_fmt="NCHW", stop_early=True, intermediates_only=True
        )
        return None, maps


def allow_any_size(net: nn.Module) -> None:
    """Let a vision transformer or a Swin transformer take images of any size that its patches divide.

    This does what timm's options ``dynamic_img_size`` and ``always_partition`` do: the position embedding of a vision
    transformer is resampled to the grid of patches. The windows of a Swin transformer keep their size and are shifted
    in every second block, with feature maps padded to them, as its authors do in detection (Liu et al. 2021).
    """
    if type(getattr(net, "patch_embed", None)) is not PatchEmbed:
        return
    model: Any = net
    if isinstance(net, VisionTransformer):
        model.dynamic_img_size, model.patch_embed.strict_img_size = True, False
        model.patch_embed.flatten, model.patch_embed.output_fmt = False, Format.NHWC
    elif isinstance(net, SwinTransformer | SwinTransformerV2):
        model.set_input_size(always_partition=True)
        model.dynamic_img_size, model.patch_embed.strict_img_size = True, False
        for block in chain.from_iterable(stage.blocks for stage in model.layers):
            block.dynamic_mask, block.attn_mask = True, None


def freeze_stages(net: Any, count: int) -> None:
    """Freeze the first stages of a timm model, including the statistics of their batch norms.

    Args:
        count: 1 is the stem, 2 the stem and the first stage (of a plain transformer: block), and so on, as timm groups
            layers.

    Raises:
        ValueError: timm does not define the stages, or there are fewer.
    """
    if not hasattr(net, "group_matcher"):
        raise ValueError(f"timm does not define the stages of {type(net).__name__}")
    stage_of: dict[str, int] = group_with_matcher(net.named_parameters(), net.group_matcher(coarse=True), reverse=True)
    stages = 1 + max(stage_of.values())
    if not 0 <= count <= stages:
        raise ValueError(f"{type(net).__name__} has {stages} stages including the stem; {count} cannot be frozen")
    frozen = {name for name, stage in stage_of.items() if stage < count}
    for name, param in net.named_parameters():
        if name in frozen:
            param.requires_grad_(False)
    for name, module in list(net.named_modules()):
        if isinstance(module, _BatchNorm) and f"{name}.weight" in frozen:
            holder = nn.Sequential(module)
            norms.freeze_batch_norms(holder)
            net.set_submodule(name, holder[0])
