"""Vision transformers for images of any fixed size, with patches that may overlap."""

from __future__ import annotations

from typing import Any

from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, Count, Fraction
from opabinia.models.backbones.module import check_image_size, format_size
from opabinia.models.backbones.timm import TimmBackbone, timm
from opabinia.models.lora import Lora, insert_adapters


class OverlappingPatchEmbed(nn.Module):
    """Images of one size to patches (B x C x H x W to B x N x D), which overlap if the stride is below their size.

    Args:
        embed: timm's layer, whose weights it takes over under their names.
        image_size: height and width.
        stride: vertical and horizontal distance of patches.

    Attributes:
        grid_size: rows and columns of patches.

    Raises:
        ValueError: no patch fits into the image, or there are gaps between patches.
    """

    def __init__(self, embed: PatchEmbed, image_size: tuple[int, int], stride: tuple[int, int]) -> None:
        super().__init__()
        patch = embed.patch_size
        if image_size[0] < patch[0] or image_size[1] < patch[1]:
            raise ValueError(f"image_size: no patch of {patch[0]} x {patch[1]} fits into {format_size(image_size)}")
        if stride[0] > patch[0] or stride[1] > patch[1]:
            raise ValueError(
                f"stride: at most the size of the patches, {patch[0]} x {patch[1]}, not {format_size(stride)}"
            )
        self.proj, self.norm = embed.proj, embed.norm
        self.proj.stride = stride
        self.image_size = image_size
        self.grid_size = tuple((image_size[side] - patch[side]) // stride[side] + 1 for side in (0, 1))

    def forward(self, images: Tensor) -> Tensor:
        """B x C x H x W to B x N x D, row by row.

        Raises:
            DataMismatch: the images have another size.
        """
        check_image_size(images, self.image_size)
        patches: Tensor = self.norm(self.proj(images).flatten(2).transpose(1, 2))
        return patches

    def dynamic_feat_size(self, size: tuple[int, int]) -> tuple[int, ...]:
        """Return the grid, as timm's layer does."""
        return self.grid_size


@register.backbone
def vit(
    channels: int,
    /,
    *,
    model: str,
    image_size: tuple[Count, Count],
    pretrained: bool = False,
    stride: Count | tuple[Count, Count] | None = None,
    drop_path: Fraction = 0.1,
    dropout: Fraction = 0.0,
    attention_dropout: Fraction = 0.0,
    lora: Lora | None = None,
) -> Backbone:
    """Vision transformer of the timm library that gives its class token (He et al. 2021, TransReID, section 3.1).

    Args:
        channels: channels of the images.
        model: timm's name, such as ``vit_small_patch16_224``.
        image_size: height and width of the images; others are refused.
        pretrained: download timm's weights. Their position embedding is resized to the grid of patches.
        stride: distance of patches, vertical and horizontal or one for both; null: patches do not overlap. With 12 the
            patches of 16 overlap as in TransReID: 256 x 128 pixels have 21 x 10 patches instead of 16 x 8.
        drop_path: stochastic depth (Huang et al. 2016): probability to skip a branch of the last block, rising from 0
            at the first one; FastReID's default.
        dropout: dropout probability of the tokens, after the position embedding and after each layer.
        attention_dropout: dropout probability of the attention weights.
        lora: freezes the model and trains low-rank adapters instead; null trains the model.

    Raises:
        ValueError: the model is not such a transformer of timm, image, patch and stride do not fit together, or
            adapters do not fit (:func:`opabinia.models.lora.insert_adapters`).
    """
    rates = {"pos_drop_rate": dropout, "proj_drop_rate": dropout, "attn_drop_rate": attention_dropout}
    options = {name: rate for name, rate in rates.items() if rate}
    backbone = timm(channels, model=model, pretrained=pretrained, drop_path=drop_path, options=options)
    assert isinstance(backbone, TimmBackbone)
    net: Any = backbone.model
    plain = backbone.token_channels and type(net.patch_embed) is PatchEmbed and net.pos_embed is not None
    if not plain or net.global_pool != "token":
        raise ValueError(
            f"model: timm's {model!r} is no plain vision transformer with a class token; the backbone timm takes it"
        )
    _replace_patch_embed(net, image_size, stride or net.patch_embed.patch_size)
    if lora is not None:
        insert_adapters(backbone, lora)
    return backbone


def _replace_patch_embed(net: Any, image_size: tuple[int, int], stride: int | tuple[int, int]) -> None:
    """Embed patches of images of this size with this stride, and resize the position embedding."""
    old = net.patch_embed
    net.patch_embed = OverlappingPatchEmbed(old, image_size, (stride, stride) if isinstance(stride, int) else stride)
    net.dynamic_img_size = False
    rows, columns = net.patch_embed.proj.stride
    # A feature map has one stride for both sides.
    net.feature_info = [{**info, "reduction": rows} for info in net.feature_info] if rows == columns else []
    prefix = 0 if net.no_embed_class else net.num_prefix_tokens
    positions = resample_abs_pos_embed(
        net.pos_embed.detach(), net.patch_embed.grid_size, old.grid_size, num_prefix_tokens=prefix
    )
    net.pos_embed = nn.Parameter(positions)
