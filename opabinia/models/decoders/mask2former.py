"""Mask2Former."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import ClassRows, Count, Fraction, Level, MaskTargets, NonNegative, SegmentationDecoder
from opabinia.models.decoders.layers import check_strides
from opabinia.models.detectors.queries import add_losses, import_transformers
from opabinia.models.losses.masks import MaskCriterion, QueryMasks
from opabinia.models.panoptic import classify_pixels


@register.decoder(name="mask2former")
class Mask2Former(SegmentationDecoder):
    """Mask2Former of the transformers library (the extra ``opabinia[detr]``; Cheng et al. 2022) on our backbones, with
    our losses: queries that each predict a class and a mask.

    Losses: see :class:`opabinia.models.losses.masks.MaskCriterion`; ``loss_auxiliary`` is their sum
    over the earlier layers.

    Args:
        levels: feature levels of the backbone, ending with strides 4, 8, 16, 32.
        classes: K.
        num_queries: number of queries.
        channels: number of channels of the pixel decoder and the transformer; a multiple of ``attention_heads``.
        encoder_layers: transformer layers of the pixel decoder.
        decoder_layers: transformer layers of the queries.
        attention_heads: number of heads of every attention layer.
        encoder_ffn_dim: width of the feed-forward networks of the pixel decoder.
        decoder_ffn_dim: width of those of the queries.
        dropout: dropout probability of both.
        class_weight: weight of the cross entropy of classes, and of its cost in matching.
        mask_weight: weight of the binary cross entropy of masks, likewise.
        dice_weight: weight of the dice loss, likewise.
        no_object_weight: weight of queries without a segment in the cross entropy of classes.
        num_points: at which masks are compared.
        input_norms: a layer norm of each feature map, as the authors' Swin transformers have them.

    Raises:
        ValueError: the transformers library is not installed, or the backbone has no such levels.
    """

    own_losses = True
    class_layers: Mapping[str, ClassRows] = {"model.class_predictor": ClassRows(others=1)}
    # The pixel decoder would not be one graph: in training the library checks values.
    compiled_modules = (
        r"model\.model\.(transformer_module|pixel_level_module\.decoder\.encoder\.layers\.\d+\.self_attn)"
    )

    def __init__(
        self,
        levels: Sequence[Level],
        classes: int,
        /,
        *,
        num_queries: Count = 100,
        channels: Count = 256,
        encoder_layers: Count = 6,
        decoder_layers: Count = 9,
        attention_heads: Count = 8,
        encoder_ffn_dim: Count = 1024,
        decoder_ffn_dim: Count = 2048,
        dropout: Fraction = 0.0,
        class_weight: NonNegative = 2.0,
        mask_weight: NonNegative = 5.0,
        dice_weight: NonNegative = 5.0,
        no_object_weight: NonNegative = 0.1,
        num_points: Count = 12544,
        input_norms: bool = False,
    ) -> None:
        super().__init__()
        check_strides(levels, "mask2former")
        library = import_transformers("mask2former", "mask2former")
        from opabinia.models.detectors import library_maps

        config = library.Mask2FormerConfig(
            backbone_config=library_maps.GivenMapsConfig(channels=[level.channels for level in levels[-4:]]),
            num_labels=classes,
            num_queries=num_queries,
            feature_size=channels,
            mask_feature_size=channels,
            hidden_dim=channels,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers + 1,  # the library counts the predictions before the first layer
            num_attention_heads=attention_heads,
            encoder_feedforward_dim=encoder_ffn_dim,
            dim_feedforward=decoder_ffn_dim,
            dropout=dropout,
        )
        self.model: Any = library.Mask2FormerForUniversalSegmentation(config)
        del self.model.criterion
        norms = [LayerNorm2d(level.channels, eps=1e-5) for level in levels[-4:]]
        self.norms = nn.ModuleList(norms if input_norms else [])
        self.criterion = MaskCriterion(class_weight, mask_weight, dice_weight, no_object_weight, num_points)

    def query_masks(self, maps: Sequence[Tensor]) -> list[QueryMasks]:
        """Return the predictions of all layers, the last one first."""
        encoder = self.model.model.pixel_level_module.encoder
        maps = [norm(level) for norm, level in zip(self.norms, maps[-4:], strict=True)] if self.norms else maps[-4:]
        encoder.maps = maps
        try:
            finest = maps[0]
            pixels = finest.new_zeros(()).expand(finest.shape[0], 3, *(4 * side for side in finest.shape[-2:]))
            output = self.model(pixels, output_auxiliary_logits=True)
        finally:
            encoder.maps = ()
        earlier = [
            QueryMasks(layer["class_queries_logits"], layer["masks_queries_logits"])
            for layer in output.auxiliary_logits
        ]
        return [QueryMasks(output.class_queries_logits, output.masks_queries_logits), *earlier]

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Return the log of each pixel's class scores: probabilities of classes times those of masks, summed over the
        queries (B x K x h x w)."""
        logits, masks = self.query_masks(maps)[0]
        scores = classify_pixels(logits.float(), masks.float())
        return scores.clamp(min=torch.finfo(scores.dtype).tiny).log()

    def losses(self, layers: Sequence[tuple[Tensor, Tensor]], segments: Sequence[MaskTargets]) -> dict[str, Tensor]:
        last, *earlier = self.criterion.losses([QueryMasks(*layer) for layer in layers], segments)
        return {**last, "loss_auxiliary": add_losses(earlier, last["loss_ce"])}
