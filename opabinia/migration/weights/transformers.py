"""Weights of the transformers library: RT-DETR, D-FINE, DETR, Deformable DETR, RF-DETR, Mask2Former.

Settings that no weights contain (also in the recipes of ``detection/coco``):

* RT-DETR's R50 and R101 (v1 and v2): backbones ``resnet50d`` and ``resnet101d``; R18 and R34: ``resnet18d`` and
  ``resnet34d`` of the backbone ``resnet`` with ``first_projection: true``. D-FINE's S, M, L, X: ``hgnetv2_b0``, ``b2``,
  ``b4``, ``b5``. ``task.mean: [0]``, ``task.std: [1]``, images resized to 640 x 640 whatever their aspect ratio.
* DETR and Deformable DETR: ``resnet50``; the mean and deviation of ImageNet.
* RF-DETR: ``windowed_dinov2`` with the numbers in the model's config.json; the mean and deviation of ImageNet. With
  masks (``RfDetrForInstanceSegmentation``): ``mask`` of the detector, with ``num_blocks`` as it has decoder layers.
* Mask2Former: ``swin_tiny_patch4_window7_224`` and others of timm, ``input_norms: true`` of the decoder; the mean and
  deviation of ImageNet. timm pads maps that are no whole number of windows after shifting them, the library before.

Tested with models of the library with random weights, which give the same outputs here; no file of the hub was
available.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from opabinia.migration.weights.names import Rules, rename_weights
from opabinia.models.weights.translation import BACKBONE, WeightFormat, Weights, register_weight_format

# As the library itself renames weights that were saved before its version 5.
_BEFORE_5: Rules = (
    (r"(?<=attn\.)out_proj\.", "o_proj."),
    (r"^model\.encoder\.encoder\.", "model.encoder.aifi."),
    (r"^model\.backbone\.conv_encoder\.", "model.backbone."),
)
_PERCEPTRON: Rules = ((r"(layers\.\d+)\.(fc[12])\.", r"\1.mlp.\2."),)
_D_FINE_PERCEPTRON: Rules = (
    (r"(layers\.\d+)\.(?:mlp\.)?fc1\.", r"\1.mlp.layers.0."),
    (r"(layers\.\d+)\.(?:mlp\.)?fc2\.", r"\1.mlp.layers.1."),
)


# ResNet-D, which has three convolutions in its stem and pools in its shortcuts.
_RESNET_D: Rules = (
    (r"^model\.backbone\.model\.embedder\.embedder\.2\.normalization\.", f"{BACKBONE}bn1."),
    (
        r"^model\.backbone\.model\.embedder\.embedder\.(\d)\.convolution\.",
        lambda match: f"{BACKBONE}conv1.{3 * int(match[1])}.",
    ),
    (
        r"^model\.backbone\.model\.embedder\.embedder\.(\d)\.normalization\.",
        lambda match: f"{BACKBONE}conv1.{3 * int(match[1]) + 1}.",
    ),
    (
        r"^model\.backbone\.model\.encoder\.stages\.(\d)\.layers\.",
        lambda match: f"{BACKBONE}layer{int(match[1]) + 1}.",
    ),
    (r"(?<=\.)layer\.(\d)\.convolution\.", lambda match: f"conv{int(match[1]) + 1}."),
    (r"(?<=\.)layer\.(\d)\.normalization\.", lambda match: f"bn{int(match[1]) + 1}."),
    (r"\.shortcut\.(1\.)?convolution\.", ".downsample.1."),
    (r"\.shortcut\.(1\.)?normalization\.", ".downsample.2."),
)
_HGNET: Rules = (
    (r"^model\.backbone\.model\.embedder\.", f"{BACKBONE}stem."),
    (r"^model\.backbone\.model\.encoder\.stages\.", f"{BACKBONE}stages."),
    (r"^(backbone\..*\.)convolution\.", r"\1conv."),
    (r"^(backbone\..*\.)normalization\.", r"\1bn."),
)
_HEADS: Rules = (
    (r"^(class|bbox)_embed\.", r"model.decoder.\1_embed."),  # the same layers under a second name
    (r"^model\.", "detector."),
)
_WHOLE: Rules = (
    (r"^model\.backbone\.backbone\.", BACKBONE),
    (r"^model\.backbone\.model\.(?:_backbone\.)?", BACKBONE),
    (rf"^(?!{re.escape(BACKBONE)})", "detector.model."),
)


def translate_hybrid(weights: Weights) -> dict[str, Tensor]:
    """Translate RT-DETR or D-FINE."""
    is_d_fine = any(name.startswith("model.decoder.pre_bbox_head.") for name in weights)
    has_hgnet = any(".embedder.stem1." in name for name in weights)
    perceptron = _D_FINE_PERCEPTRON if is_d_fine else _PERCEPTRON
    return rename_weights(weights, (*_BEFORE_5, *perceptron, *(_HGNET if has_hgnet else _RESNET_D), *_HEADS))


def translate_whole(weights: Weights) -> dict[str, Tensor]:
    """Translate DETR, Deformable DETR or RF-DETR."""
    return rename_weights(weights, (*_BEFORE_5, *_PERCEPTRON, *_WHOLE))


_RF_DETR_MASKS: Rules = (
    (r"^model\.(?=model\.|class_embed\.|bbox_embed\.)", ""),
    (r"^(?=blocks\.|spatial_features_proj\.|query_features_|segmentation_bias$)", "detector.heads.mask."),
)


def translate_rf_detr_masks(weights: Weights) -> dict[str, Tensor]:
    """Translate RF-DETR with masks: the model of boxes, and the mask head."""
    renamed = rename_weights(weights, _RF_DETR_MASKS)
    head = {name: renamed.pop(name) for name in list(renamed) if name.startswith("detector.heads.mask.")}
    return translate_whole(renamed) | head


_SWIN = r"^model\.pixel_level_module\.encoder\.(?:swin\.|model\.)?"
_MASK2FORMER: Rules = (
    (r"^model\.pixel_level_module\.encoder\._backbone\.", BACKBONE),
    (
        r"^model\.pixel_level_module\.encoder\.hidden_states_norms\.stage(\d)\.",
        lambda match: f"decoder.norms.{int(match[1]) - 1}.",
    ),
    (_SWIN + r"layernorm\.", f"{BACKBONE}norm."),
    (_SWIN + r"embeddings\.norm\.", f"{BACKBONE}patch_embed.norm."),
    (_SWIN + r"embeddings\.patch_embeddings\.projection\.", f"{BACKBONE}patch_embed.proj."),
    (_SWIN + r"encoder\.layers\.(\d)\.down", lambda match: f"{BACKBONE}layers.{int(match[1]) + 1}.down"),
    (_SWIN + r"encoder\.layers\.", f"{BACKBONE}layers."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.attention\.(?:output\.dense|o_proj)\.", ".attn.proj."),
    (r"(?<=\d)\.output\.dense\.", ".mlp.fc2."),
    (r"\.attention\.(?:self\.)?(query|key|value|[qkv]_proj)\.", lambda match: f".attn.{match[1][0]}."),
    (r"\.attention\.(?:self|relative_position_bias)\.", ".attn."),
    (r"^(?=model\.|class_predictor\.)", "decoder.model."),
)


def translate_mask2former(weights: Weights) -> dict[str, Tensor]:
    """Translate Mask2Former on a Swin transformer or a timm model.

    Raises:
        ValueError: it has another backbone.
    """
    renamed = rename_weights(weights, _MASK2FORMER)
    if other := next((name for name in renamed if ".pixel_level_module.encoder." in name), None):
        name = other.removeprefix("decoder.model.")
        raise ValueError(f"Mask2Former's weights are read with a Swin or timm backbone; this one has {name}")
    for name in [name for name in renamed if ".attn.q." in name]:
        columns = [renamed.pop(name.replace(".attn.q.", f".attn.{column}.")) for column in "qkv"]
        renamed[name.replace(".q.", ".qkv.")] = torch.cat(columns)
    return {name: tensor for name, tensor in renamed.items() if not name.startswith("criterion.")}


register_weight_format(
    WeightFormat("model.pixel_level_module.", "the transformers library's names", "rgb", translate_mask2former),
    WeightFormat("model.encoder_input_proj.", "the transformers library's names", "rgb", translate_hybrid),
    WeightFormat("class_labels_classifier.", "the transformers library's names", "rgb", translate_whole),
    WeightFormat("model.input_proj.", "the transformers library's names", "rgb", translate_whole),
    WeightFormat("model.backbone.projector.", "the transformers library's names", "rgb", translate_whole),
    WeightFormat("model.model.backbone.projector.", "the transformers library's names", "rgb", translate_rf_detr_masks),
)
