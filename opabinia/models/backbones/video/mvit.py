"""Multiscale vision transformers of any size, of torchvision's blocks (Fan et al. 2021; Li et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from annotated_types import MinLen
from torch import Tensor
from torchvision.models.video.mvit import MSBlockConfig, MViT

from opabinia.config import register
from opabinia.contracts import Count, DataMismatch, Fraction
from opabinia.models.backbones.module import format_size
from opabinia.models.backbones.video.base import ClipBackbone
from opabinia.models.backbones.video.torchvision_video import adapt_channels, layer_prefixes, remove_classifier

Size = tuple[Count, Count, Count]


@register.backbone
class Mvit(ClipBackbone):
    """MViT (Fan et al. 2021) and MViTv2 (Li et al. 2022) of any size; a single stage without pooling is a ViT with
    patches of space and time and separate positions, as in PySlowFast.

    MViTv2-S is ``blocks: [1, 2, 11, 2]``, B ``[2, 3, 16, 3]``, L ``[2, 6, 36, 4]`` with ``width: 144, heads: 2``;
    ViT-B is ``version: 1, width: 768, heads: 12, blocks: [12], patch: [2, 16, 16], patch_stride: [2, 16, 16],
    kv_stride: 1, pool_kernel: null``. Version 2 takes clips of any size, version 1 those of ``clip`` only.

    Args:
        channels: channels of the frames.
        blocks: number of blocks of each stage; stages after the first one halve height and width.
        clip: frames, height and width of the clips that the tables of positions are made for.
        version: 1: absolute positions; 2: relative positions, and queries are pooled in every block and added to the
            output of the attention.
        width: channels of the first stage; each stage has twice as many channels and heads as that before.
        heads: number of heads of the first stage.
        expansion: layer that doubles the channels between stages: the ``attention`` of the first block of a stage
            (MViTv2), or the ``mlp`` of the last block before it (MViT).
        kv_stride: spatial stride of keys and values in the first stage, half of it in each following one.
        pool_kernel: size of the pooling convolutions; null: one more than the stride, without pooling where that is 1.
        patch: kernel of the first convolution.
        patch_stride: its stride; kernels larger than that are padded.
        pool: vectors are the class ``token``, or the ``mean`` of the others.
        drop_path: stochastic depth of the last block (Huang et al. 2016).
    """

    def __init__(
        self,
        channels: int,
        /,
        *,
        blocks: Annotated[Sequence[Count], MinLen(1)],
        clip: Size = (16, 224, 224),
        version: Literal[1, 2] = 2,
        width: Count = 96,
        heads: Count = 1,
        expansion: Literal["attention", "mlp"] = "attention",
        kv_stride: Count = 8,
        pool_kernel: Size | None = (3, 3, 3),
        patch: Size = (3, 7, 7),
        patch_stride: Size = (2, 4, 4),
        pool: Literal["token", "mean"] = "token",
        drop_path: Fraction = 0.0,
    ) -> None:
        stages = [stage for stage, count in enumerate(blocks) for _ in range(count)]
        settings = []
        for index, stage in enumerate(stages):
            before, after = stages[max(0, index - 1)], stages[min(index + 1, len(stages) - 1)]
            ends = (before, stage) if expansion == "attention" else (stage, after)
            stride_q = [1, 2, 2] if stage > before else [1, 1, 1]
            stride_kv = [1, *[max(1, kv_stride // 2**stage)] * 2]
            kernels = [list(pool_kernel or [side + (side > 1) for side in stride]) for stride in (stride_q, stride_kv)]
            pools_queries = version == 2 or stage > before
            settings.append(
                MSBlockConfig(
                    num_heads=heads * 2**stage,
                    input_channels=width * 2 ** ends[0],
                    output_channels=width * 2 ** ends[1],
                    kernel_q=kernels[0] if pools_queries else [],
                    kernel_kv=kernels[1],
                    stride_q=stride_q if pools_queries else [],
                    stride_kv=stride_kv,
                )
            )
        net = MViT(
            clip[1:],
            clip[0],
            settings,
            residual_pool=version == 2,
            residual_with_cls_embed=False,
            rel_pos_embed=version == 2,
            proj_after_attn=expansion == "attention",
            stochastic_depth_prob=drop_path if len(stages) > 1 else 0.0,
            patch_embed_kernel=patch,
            patch_embed_stride=patch_stride,
            patch_embed_padding=tuple(k // 2 if k > s else 0 for k, s in zip(patch, patch_stride, strict=True)),
        )
        if channels != 3:
            adapt_channels(net, channels)
        super().__init__(remove_classifier(net).in_features)
        self.model, self._clip, self._averages = net, clip, pool == "mean"
        self._any_size = version == 2
        self.layers = [tuple(f"model.{prefix}" for prefix in prefixes) for prefixes in layer_prefixes(net)]

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x D.

        Raises:
            DataMismatch: a network with absolute positions gets clips of another size.
        """
        net, size = self.model, tuple(clips.shape[2:])
        if not self._any_size and size != self._clip:
            raise DataMismatch(
                f"this MViT takes clips of {format_size(self._clip)} only, frames x height x width, not of "
                f"{format_size(size)}; set its key clip"
            )
        maps: Tensor = net.conv_proj(clips)
        grid = tuple(maps.shape[2:])
        tokens: Tensor = net.pos_encoding(maps.flatten(2).transpose(1, 2))
        for block in net.blocks:
            tokens, grid = self.run_block(block, tokens, grid)
        vectors: Tensor = net.norm(tokens[:, 1:].mean(1) if self._averages else tokens[:, 0])
        return vectors
