"""Instance masks of queries: the dot product of each query's kernel with the features of pixels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_align

from opabinia.config import register
from opabinia.contracts import Count, Detections, Level, NonNegative, Target
from opabinia.models.detectors.query_heads import MatchedObjects, Queries, QueryHead
from opabinia.models.losses.masks import point_mask_losses


@register.section(name="query_masks")
@dataclass(frozen=True, kw_only=True)
class QueryMaskOptions:
    """Options of the mask head of detectors with queries. Defaults are those of RF-DETR's segmentation models and of
    MaskDINO.

    Args:
        stride: masks are predicted in cells of this many pixels.
        num_blocks: convolutional blocks on the features of the cells; RF-DETR has one for each layer of the decoder.
        ffn_dim: width of the network that makes a kernel of a query.
        num_points: points at which each mask is compared with the ground truth.
        mask_weight: weight of the cross entropy.
        dice_weight: weight of the dice loss.
        resolution: side of the squares, stretched to the boxes, in which masks of detections are given.
    """

    stride: Count = 4
    num_blocks: Count = 3
    ffn_dim: Count = 1024
    num_points: Count = 12544
    mask_weight: NonNegative = 5.0
    dice_weight: NonNegative = 5.0
    resolution: Count = 56


class QueryMaskHead(QueryHead):
    """RF-DETR's mask head: convolutional blocks on the encoder's features, resized to the cells of the masks, and a
    kernel for each query (Robinson et al. 2025; weights have the names of the transformers library). If the backbone
    has a finer feature map than the encoder, a projection of it is added to the features, as in MaskDINO (Li et al.
    2023, section 3.2).

    ``loss_mask`` and ``loss_dice`` at drawn points: :func:`opabinia.models.losses.masks.point_mask_losses`. Images
    whose masks are unknown have no part.

    Args:
        levels: levels of the feature maps, the encoder's last.
        width: C, channels of a query.
        options: see :class:`QueryMaskOptions`.
    """

    label_keys = ("masks",)

    def __init__(self, levels: Sequence[Level], width: int, options: QueryMaskOptions) -> None:
        super().__init__()
        self.options = options
        *finer, encoder = levels
        channels = encoder.channels
        self.laterals = nn.ModuleList(nn.Conv2d(level.channels, channels, 1) for level in finer)
        self.blocks = nn.ModuleList(PixelBlock(channels) for _ in range(options.num_blocks))
        self.spatial_features_proj = nn.Conv2d(channels, channels, 1)
        self.query_features_block = QueryBlock(width, options.ffn_dim)
        self.query_features_proj = nn.Linear(width, channels)
        self.segmentation_bias = nn.Parameter(torch.zeros(1))
        for layer in (self.spatial_features_proj, self.query_features_proj):
            nn.init.normal_(layer.weight, std=0.02)  # the library's rule, for small dot products
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)

    def _pixels(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> Tensor:
        """Return the features of the cells (B x C x h x w)."""
        *finer, encoded = maps
        size = [max(1, side // self.options.stride) for side in shape]
        inputs = [encoded, *(lateral(level) for lateral, level in zip(self.laterals, finer, strict=True))]
        resized = [F.interpolate(level, size, mode="bilinear", align_corners=False) for level in inputs]
        features = torch.stack(resized).sum(0) if finer else resized[0]
        for block in self.blocks:
            features = block(features)
        projected: Tensor = self.spatial_features_proj(features)
        return projected

    def _kernels(self, embeddings: Tensor) -> Tensor:
        kernels: Tensor = self.query_features_proj(self.query_features_block(embeddings))
        return kernels

    def losses(
        self,
        queries: Queries,
        objects: MatchedObjects,
        maps: Sequence[Tensor],
        shape: tuple[int, int],
        targets: Sequence[Target],
        count: Tensor,
    ) -> dict[str, Tensor]:
        """See :meth:`QueryHead.losses`."""
        known = [target.masks for target in targets if target.masks is not None]
        if len(known) < len(targets):
            raise ValueError("an image without masks came to a detector that learns them: masks: true in the source")
        pixels = self._pixels(maps, shape)
        kernels = torch.split(self._kernels(queries.embeddings), list(objects.counts))
        indices = torch.split(objects.indices, list(objects.counts))
        first_objects = accumulate((len(target.labels) for target in targets), initial=0)
        first_masks = accumulate(map(len, known), initial=0)
        logits, rows = [], []
        for image, masks in enumerate(known):
            shift, used = next(first_masks) - next(first_objects), slice(None) if len(masks) else slice(0)
            logits.append(kernels[image][used] @ pixels[image].flatten(1))
            rows.append(indices[image][used] + shift)
        predicted = torch.cat(logits).float().view(-1, *pixels.shape[2:]) + self.segmentation_bias
        true = torch.cat([masks.dense() for masks in known])
        mask, dice = point_mask_losses(predicted, true, torch.cat(rows), self.options.num_points)
        return {
            "loss_mask": self.options.mask_weight * mask / count,
            "loss_dice": self.options.dice_weight * dice / count,
        }

    def describe(
        self, queries: Queries, maps: Sequence[Tensor], shape: tuple[int, int], detections: Detections
    ) -> Detections:
        """Add masks (B x D x S x S), see :meth:`QueryHead.describe`."""
        kernels, pixels = self._kernels(queries.embeddings), self._pixels(maps, shape)
        logits = (kernels @ pixels.flatten(2)).float() + self.segmentation_bias
        masks = logits.view(-1, 1, *pixels.shape[2:])
        numbers = torch.arange(masks.shape[0], device=masks.device).to(masks.dtype)
        left, top, right, bottom = detections.boxes.flatten(0, 1).unbind(1)
        across, down = pixels.shape[3] / shape[1], pixels.shape[2] / shape[0]
        rois = torch.stack([numbers, left * across, top * down, right * across, bottom * down], 1)
        squares = roi_align(masks, rois, self.options.resolution, sampling_ratio=2, aligned=True)
        return detections._replace(masks=squares.view(*detections.labels.shape, *squares.shape[2:]).sigmoid())


class PixelBlock(nn.Module):
    """A residual block: depthwise convolution, layer norm and linear layer over the channels (RF-DETR).

    Args:
        channels: number of channels of input and output.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise_conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.layernorm = nn.LayerNorm(channels, eps=1e-6)
        self.pointwise_conv = nn.Linear(channels, channels)

    def forward(self, features: Tensor) -> Tensor:
        """Map features (B x C x h x w) to others of the same shape."""
        by_pixel = self.depthwise_conv(features).permute(0, 2, 3, 1)
        return features + F.gelu(self.pointwise_conv(self.layernorm(by_pixel))).permute(0, 3, 1, 2)


class QueryBlock(nn.Module):
    """A residual block: layer norm and a network of two layers (RF-DETR).

    Args:
        width: channels of input and output.
        hidden: channels between the layers.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        layers = OrderedDict(fc1=nn.Linear(width, hidden), gelu=nn.GELU(), fc2=nn.Linear(hidden, width))
        self.mlp = nn.Sequential(layers)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map embeddings (... x C) to others of the same shape."""
        changes: Tensor = self.mlp(self.norm(embeddings))
        return embeddings + changes
