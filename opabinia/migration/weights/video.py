"""Weights of action recognition systems: PySlowFast and mmaction2.

=============================  ====================================================================================
network                        backbone
=============================  ====================================================================================
SlowFast                       ``slowfast``, with the file's ``depth``, ``alpha`` and ``fusion_kernel``; mmaction2's
                               also with ``fusion_norm: false`` and ``slow_frames: strided``
Slow, SlowOnly                 ``slow``
C2D, I3D (PySlowFast's)        ``c2d``, ``i3d``; with ``non_local`` and ``non_local_type``, as ``slow``, ``slowfast``
X3D                            ``x3d``
TSN, TSM                       ``{name: tsn, backbone: {name: timm, model: resnet50}}``, with ``shift: tsm``
MViT v1 B 16x4, v2 S 16x4      ``{name: torchvision_video, model: mvit_v1_b}`` and ``mvit_v2_s``
MViT of other sizes            ``mvit``
TimeSformer (its authors')     ``timesformer``
Video Swin                     ``{name: torchvision_video, model: swin3d_t}`` ...
=============================  ====================================================================================

Not in the files, so to be set in the config: ``task.mean`` and ``task.std``: 0.45 and 0.225 for PySlowFast, for
mmaction2 those of its config, divided by 255; the frames of ``clip``.

No files of these systems were available for testing: the names and shapes are those of their public sources.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from opabinia.migration.weights.names import Rules, rename_weights
from opabinia.models.weights.translation import WeightFormat, Weights, register_weight_format

NET, HEAD = "backbone.", "head.1."
MVIT = f"{NET}model."

# --- PySlowFast -------------------------------------------------------------------------------------------------------


def _pyslowfast_rules(pathways: tuple[str, ...], first: int) -> Rules:
    """Return rules for networks whose stages are ``layer1`` to ``layer4`` (``first`` is 1), or ``stages.0`` ..."""
    stage = "layer" if first else "stages."

    def block(match: re.Match[str]) -> str:
        return f"{NET}{pathways[int(match[2])]}{stage}{int(match[1]) - 2 + first}.{match[3]}."

    return (
        (r"^s1\.pathway(\d)_stem\.", lambda match: f"{NET}{pathways[int(match[1])]}"),
        (r"(_nonlocal\d+)\.(?:conv_)?", r"\1.non_local."),
        (r"\.non_local\.bn\.", ".non_local.norm."),
        (r"^s(\d)\.pathway(\d)_(?:res|nonlocal)(\d+)\.", block),
        (r"^s(\d)_fuse\.conv_f2s\.", lambda match: f"{NET}fusions.{int(match[1]) - 1}.conv."),
        (r"^s(\d)_fuse\.bn\.", lambda match: f"{NET}fusions.{int(match[1]) - 1}.bn."),
        (r"\.branch1\.", ".downsample.0."),
        (r"\.branch1_bn\.", ".downsample.1."),
        (r"\.branch2\.([abc])\.", lambda match: f".conv{'abc'.index(match[1]) + 1}."),
        (r"\.branch2\.([abc])_bn\.", lambda match: f".bn{'abc'.index(match[1]) + 1}."),
        (r"\.branch2\.se\.", ".se."),
        (r"^head\.projection\.", HEAD),
    )


_STEM: Rules = ((rf"^({NET}(?:\w+\.)?)conv\.", r"\1conv1."), (rf"^({NET}(?:\w+\.)?)bn\.", r"\1bn1."))
_X3D_ENDS: Rules = (
    (rf"^{NET}conv_xy\.", f"{NET}stem.0."),
    (rf"^{NET}conv\.", f"{NET}stem.1."),
    (rf"^{NET}bn\.", f"{NET}stem.2."),
    (r"^head\.conv_5\.", f"{NET}conv5.0."),
    (r"^head\.conv_5_bn\.", f"{NET}conv5.1."),
    (r"^head\.lin_5\.", f"{NET}fc1."),
)


def translate_pyslowfast(weights: Weights) -> dict[str, Tensor]:
    """Translate convolutional networks of PySlowFast: SlowFast, its ResNets (Slow, C2D, I3D) and X3D."""
    if any("pathway1" in name for name in weights):
        rules = (*_pyslowfast_rules(("slow.", "fast."), 1), *_STEM)
    elif any(".conv_xy." in name for name in weights):
        rules = (*_pyslowfast_rules(("",), 0), *_X3D_ENDS)
    else:
        rules = (*_pyslowfast_rules(("",), 1), *_STEM)
    return _without_positions(rename_weights(weights, rules))


def _without_positions(weights: Weights) -> dict[str, Tensor]:
    """Convert linear layers that are stored as convolutions of one position (M x N x 1 x 1 x 1)."""
    linear = (f"{NET}fc1.weight", f"{HEAD}weight")
    return {name: tensor.flatten(1) if name in linear else tensor for name, tensor in weights.items()}


# --- MViT -------------------------------------------------------------------------------------------------------------

_MVIT: Rules = (
    (r"^backbone\.", ""),
    (r"^patch_embed\.proj(ection)?\.", f"{MVIT}conv_proj."),
    (r"^cls_token$", f"{MVIT}pos_encoding.class_token"),
    (r"^pos_embed_(spatial|temporal|class)$", rf"{MVIT}pos_encoding.\1_pos"),
    (r"^blocks\.", f"{MVIT}blocks."),
    (r"\.attn\.proj\.", ".attn.project.0."),
    (r"\.attn\.pool_([qkv])\.", r".attn.pool_\1.pool."),
    (r"\.attn\.norm_([qkv])\.", r".attn.pool_\1.norm_act.0."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.3."),
    (rf"^({MVIT}blocks\.\d+)\.proj\.", r"\1.project."),
    (r"^norm\d?\.", f"{MVIT}norm."),
    (r"^(head\.projection|cls_head\.fc_cls)\.", HEAD),
)


def translate_mvit(weights: Weights) -> dict[str, Tensor]:
    """Translate MViTs of PySlowFast and mmaction2 to torchvision's, whose positions have no batch dimension."""
    renamed = rename_weights(weights, _MVIT)
    return {name: tensor.squeeze() if ".pos_encoding." in name else tensor for name, tensor in renamed.items()}


# --- mmaction2 --------------------------------------------------------------------------------------------------------

_MMACTION: Rules = (
    (r"\.(conv\d|layer\d)_lateral\.", r".lateral.\1."),
    (r"^backbone\.slow_path\.lateral\.conv1\.", f"{NET}fusions.0."),
    (r"^backbone\.slow_path\.lateral\.layer(\d)\.", rf"{NET}fusions.\1."),
    (r"^backbone\.(slow|fast)_path\.", rf"{NET}\1."),
    (r"\.conv(\d)\.conv\.(net\.)?", r".conv\1."),  # net: the convolution behind a temporal shift
    (r"\.conv(\d)\.bn\.", r".bn\1."),
    (r"\.downsample\.conv\.", ".downsample.0."),
    (r"\.downsample\.bn\.", ".downsample.1."),
    (r"^cls_head\.(fc_cls|new_fc)\.", HEAD),
)

_MMACTION_X3D: Rules = (
    (r"^backbone\.conv1_s\.conv\.", f"{NET}stem.0."),
    (r"^backbone\.conv1_t\.conv\.", f"{NET}stem.1."),
    (r"^backbone\.conv1_t\.bn\.", f"{NET}stem.2."),
    (r"^backbone\.conv5\.conv\.", f"{NET}conv5.0."),
    (r"^backbone\.conv5\.bn\.", f"{NET}conv5.1."),
    (r"^backbone\.layer(\d)\.", lambda match: f"{NET}stages.{int(match[1]) - 1}."),
    (r"\.se_module\.", ".se."),
    (r"^cls_head\.fc1\.", f"{NET}fc1."),
    (r"^cls_head\.fc2\.", HEAD),
)


def translate_mmaction(weights: Weights) -> dict[str, Tensor]:
    """Translate convolutional networks of mmaction2: SlowFast, SlowOnly, X3D, TSN and TSM with ResNets."""
    is_x3d = any(".conv1_s." in name for name in weights)
    renamed = rename_weights(weights, (*(_MMACTION_X3D if is_x3d else ()), *_MMACTION))
    classifier = f"{HEAD}weight"
    if f"{NET}fast.conv1.weight" in renamed and classifier in renamed:  # its vectors begin with the fast pathway
        fast = 32 * len(renamed[f"{NET}fast.conv1.weight"])
        renamed[classifier] = renamed[classifier].roll(-fast, 1)
    if renamed.get(f"{NET}conv1.weight", torch.empty(0)).ndim == 4:
        rules = ((rf"^{NET}", f"{NET}frames.model."), (rf"^{re.escape(HEAD)}", f"{HEAD}fc."))
        renamed = rename_weights(renamed, rules)
    return _without_positions(renamed)


_SWIN: Rules = (
    (r"^backbone\.layers\.(\d)\.blocks\.", lambda match: f"{NET}model.features.{2 * int(match[1])}."),
    (r"^backbone\.layers\.(\d)\.downsample\.", lambda match: f"{NET}model.features.{2 * int(match[1]) + 1}."),
    (r"^backbone\.patch_embed\.", f"{NET}model.patch_embed."),
    (r"^backbone\.norm\d?\.", f"{NET}model.norm."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.3."),
    (r"^cls_head\.fc_cls\.", HEAD),
)


def translate_video_swin(weights: Weights) -> dict[str, Tensor]:
    """Translate Video Swin transformers of mmaction2 and of their authors to torchvision's."""
    return rename_weights(weights, _SWIN)


_TIMESFORMER: Rules = ((r"^model\.", ""), (r"^(?!head\.)", f"{NET}model."), (r"^head\.", HEAD))


def translate_timesformer(weights: Weights) -> dict[str, Tensor]:
    """Translate TimeSformers of their authors."""
    return rename_weights(weights, _TIMESFORMER)


register_weight_format(
    WeightFormat("time_embed", "TimeSformer's names", "rgb", translate_timesformer),
    WeightFormat("model.time_embed", "TimeSformer's names", "rgb", translate_timesformer),
    WeightFormat("s1.pathway0_stem.", "PySlowFast's names", "rgb", translate_pyslowfast),
    WeightFormat("blocks.0.attn.norm_k.", "PySlowFast's names", "rgb", translate_mvit),
    WeightFormat("pos_embed_spatial", "PySlowFast's names", "rgb", translate_mvit),
    WeightFormat("backbone.blocks.0.attn.norm_k.", "mmaction2's names", "rgb", translate_mvit),
    WeightFormat("backbone.layers.0.blocks.0.attn.relative_", "mmaction2's names", "rgb", translate_video_swin),
    *(
        WeightFormat(prefix, "mmaction2's names", "rgb", translate_mmaction)
        for prefix in ("backbone.conv1.conv.", "backbone.slow_path.", "backbone.conv1_s.")
    ),
)
