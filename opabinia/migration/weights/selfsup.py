"""Weights of self-supervised learning systems.

Backbones of VISSL, MoCo, SwAV, DINO, iBOT, DINOv2 and lightly become ``backbone.model.``, their EMA copies
``teacher.backbone.model.``, as in Opabinia's tasks; so ``init.source_prefix: teacher.backbone`` with ``target_prefix:
backbone`` takes the copy. MAE's and plain DINO backbones have timm's names already. Projectors keep their own names.

No files of these systems were available for testing: the names are those of their public sources.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from opabinia.migration.weights.names import Rules, rename_weights
from opabinia.models.weights.translation import BACKBONE, WeightFormat, Weights, register_weight_format

TEACHER = f"teacher.{BACKBONE}"

VISSL: Rules = ((r"^trunk\.(base_model\.)?(_feature_blocks\.)?", BACKBONE),)
"""VISSL's ResNets have torchvision's names below ``_feature_blocks``, its transformers timm's."""

MOCO: Rules = (
    (r"^(encoder_q|base_encoder)\.", BACKBONE),
    (r"^(encoder_k|momentum_encoder)\.", TEACHER),
)
"""MoCo versions 1 and 2 (``encoder_q``), and 3 (``base_encoder``)."""

SWAV: Rules = (
    (r"^projection_head\.", "projector."),
    (r"^(conv1|bn1|layer\d)\.", rf"{BACKBONE}\1."),
)

DINO: Rules = (
    (r"^student\.(module\.)?backbone\.", BACKBONE),
    (r"^teacher\.(module\.)?backbone\.", TEACHER),
)
"""Whole checkpoints of DINO, iBOT and DINOv2; files of a backbone alone have timm's names."""

LIGHTLY: Rules = (
    (r"^(student_)?backbone\.(vit\.)?", BACKBONE),
    (r"^(teacher_backbone|backbone_momentum)\.(vit\.)?", TEACHER),
    (r"(?<=backbone\.model\.)0\.", "conv1."),
    (r"(?<=backbone\.model\.)1\.", "bn1."),
    (r"(?<=backbone\.model\.)([4-7])\.", lambda match: f"layer{int(match[1]) - 3}."),
)
"""Modules of its examples. ResNets are sequences of their children, which the examples make of torchvision's."""


def translate_dinov2(weights: Weights) -> dict[str, Tensor]:
    """Convert a transformer of DINOv2 to timm's, where with registers only patches have position embeddings."""
    rules = ((r"\.mlp\.w12\.", ".mlp.fc1."), (r"\.mlp\.w3\.", ".mlp.fc2."), (r"^register_tokens$", "reg_token"))
    renamed = rename_weights({name: tensor for name, tensor in weights.items() if name != "mask_token"}, rules)
    if "reg_token" in renamed:
        positions = renamed["pos_embed"]
        renamed |= {"cls_token": renamed["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}
    return {f"{BACKBONE}{name}": tensor for name, tensor in renamed.items()}


register_weight_format(
    WeightFormat("trunk.", "VISSL's names", "rgb", partial(rename_weights, rules=VISSL)),
    WeightFormat("encoder_q.", "MoCo's names", "rgb", partial(rename_weights, rules=MOCO)),
    WeightFormat("base_encoder.", "MoCo's names", "rgb", partial(rename_weights, rules=MOCO)),
    # Before SwAV's, which has a projection head, too.
    *(
        WeightFormat(prefix, "lightly's names", "rgb", partial(rename_weights, rules=LIGHTLY))
        for prefix in ("backbone.4.0.conv1.", "backbone.vit.", "backbone_momentum.", "student_backbone.")
    ),
    WeightFormat("projection_head.", "SwAV's names", "rgb", partial(rename_weights, rules=SWAV)),
    WeightFormat("student.module.backbone.", "DINO's names", "rgb", partial(rename_weights, rules=DINO)),
    WeightFormat("register_tokens", "DINOv2's names", "rgb", translate_dinov2),
    WeightFormat("blocks.0.mlp.w12.", "DINOv2's names", "rgb", translate_dinov2),
)
