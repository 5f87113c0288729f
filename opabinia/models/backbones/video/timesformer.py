"""TimeSformer: a vision transformer of images with attention over time in each block (Bertasius et al. 2021)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Count, DataMismatch, Fraction
from opabinia.models.backbones.module import format_size
from opabinia.models.backbones.multi_scale import allow_any_size
from opabinia.models.backbones.timm import TimmBackbone, timm
from opabinia.models.backbones.video.base import ClipBackbone


class DividedAttention(nn.Module):
    """A block of a vision transformer behind an attention over time (Bertasius et al. 2021, section 3, divided
    space-time attention). Its weights have the names of the authors' code.

    Args:
        block: transformer block of timm; the attention over time begins as a copy of its attention.
        channels: number of channels of a token.
        identity: the projection of the attention over time begins with 0, so that the block is as before.
    """

    def __init__(self, block: Any, channels: int, *, identity: bool) -> None:
        super().__init__()
        self.norm1, self.attn, self.drop_path1 = block.norm1, block.attn, block.drop_path1
        self.temporal_norm1, self.temporal_attn = deepcopy(block.norm1), deepcopy(block.attn)
        self.temporal_fc = nn.Linear(channels, channels)
        self.norm2, self.mlp, self.drop_path2 = block.norm2, block.mlp, block.drop_path2
        nn.init.zeros_(self.temporal_fc.bias)
        if identity:
            nn.init.zeros_(self.temporal_fc.weight)
        else:
            nn.init.trunc_normal_(self.temporal_fc.weight, std=0.02)

    def forward(self, token: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Map the class token (B x 1 x D) and the patches (B x T x N x D) to the same."""
        frames, count = patches.shape[1:3]
        over_time = patches.transpose(1, 2).flatten(0, 1)
        attended = self.temporal_fc(self.drop_path1(self.temporal_attn(self.temporal_norm1(over_time))))
        patches = patches + attended.unflatten(0, (-1, count)).transpose(1, 2)
        # Each frame has the class token in its attention over space; afterwards it is their mean.
        images = torch.cat([token.expand(-1, frames, -1)[:, :, None], patches], 2).flatten(0, 1)
        changes = self.drop_path1(self.attn(self.norm1(images))).unflatten(0, (-1, frames))
        token, patches = token + changes[:, :, 0].mean(1, keepdim=True), patches + changes[:, :, 1:]
        tokens = torch.cat([token, patches.flatten(1, 2)], 1)
        tokens = tokens + self.drop_path2(self.mlp(self.norm2(tokens)))
        return tokens[:, :1], tokens[:, 1:].unflatten(1, (frames, count))


@register.backbone(name="timesformer")
class TimeSformer(ClipBackbone):
    """TimeSformer with divided space-time attention (Bertasius et al. 2021) on any of timm's plain vision transformers
    with a class token, for clips of any length, and any size that its patches divide: positions are interpolated. With
    ViT-B/16 and 400 classes it has 121.57 million weights.

    Args:
        channels: channels of the frames.
        model: timm's name of the vision transformer of images, such as ``vit_base_patch16_224``.
        pretrained: download its weights; attention over time begins with those of the attention over space.
        frames: number of positions over time; clips of another length take the nearest ones.
        drop_path: stochastic depth of the last block (Huang et al. 2016).
        options: further options of the model in timm, such as ``{img_size: 256}``.

    Raises:
        ValueError: the model is not a plain vision transformer with a class token.
    """

    def __init__(
        self,
        channels: int,
        /,
        *,
        model: str,
        pretrained: bool = False,
        frames: Count = 8,
        drop_path: Fraction = 0.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        net = timm(channels, model=model, pretrained=pretrained, drop_path=drop_path, options=options)
        vit: Any = net.model if isinstance(net, TimmBackbone) else None
        is_plain = isinstance(vit, VisionTransformer) and vit.num_prefix_tokens == 1 and vit.cls_token is not None
        if not is_plain:
            raise ValueError(
                f"model: {model} is no plain vision transformer with a class token, such as vit_base_patch16_224"
            )
        super().__init__(net.out_channels)
        allow_any_size(vit)
        width = vit.embed_dim
        vit.blocks = nn.ModuleList(
            DividedAttention(block, width, identity=index > 0) for index, block in enumerate(vit.blocks)
        )
        vit.register_parameter("time_embed", nn.Parameter(torch.zeros(1, frames, width)))
        self.model: Any = vit
        self.preprocessing = net.preprocessing
        stem = ("model.cls_token", "model.pos_embed", "model.time_embed", "model.patch_embed", "model.norm_pre")
        self.layers = [stem, *((f"model.blocks.{index}",) for index in range(len(vit.blocks)))]
        self.layers[-1] += ("model.norm", "model.fc_norm")

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x D.

        Raises:
            DataMismatch: the patches do not divide the frames.
        """
        vit, frames = self.model, clips.shape[2]
        patch = vit.patch_embed.patch_size
        if any(side % length for side, length in zip(clips.shape[3:], patch, strict=True)):
            sides = format_size(clips.shape[3:])
            raise DataMismatch(f"TimeSformer: frames of {sides} do not divide into patches of {format_size(patch)}")
        tokens = vit.norm_pre(vit._pos_embed(vit.patch_embed(clips.transpose(1, 2).flatten(0, 1))))
        tokens = tokens.unflatten(0, (-1, frames))
        times = vit.time_embed.transpose(1, 2)
        if times.shape[2] != frames:
            times = F.interpolate(times, frames, mode="nearest")
        token, patches = tokens[:, 0, :1], tokens[:, :, 1:] + times.transpose(1, 2)[:, :, None]
        for block in vit.blocks:
            token, patches = self.run_block(block, token, patches)
        vectors: Tensor = vit.fc_norm(vit.norm(token))[:, 0]
        return vectors
