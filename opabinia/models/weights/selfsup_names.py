"""Names of weights in systems of self-supervised learning, and ours in their place.

Backbones of VISSL, MoCo, SwAV, DINO, iBOT, DINOv2 and lightly become ``backbone.model.``, their slowly following copies
``teacher.backbone.model.``, as in our own tasks; so ``init.take: teacher.backbone`` with ``into: backbone`` takes the
copy. MAE's and plain DINO backbones have timm's names already. Projectors stay under names of their own.

There were no files of these systems to be tried: the names are those of their public sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

Weights = Mapping[str, Tensor]
Rules = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]
"""What is looked for in a name (a regular expression), and what takes its place; one rule after the other."""

BACKBONE = "backbone.model."
"""What stands before the names of timm's models in our tasks."""

FOLLOWING = f"teacher.{BACKBONE}"


def renamed(weights: Weights, rules: Rules) -> dict[str, Tensor]:
    """Weights under other names."""
    found = {}
    for name, tensor in weights.items():
        for pattern, ours in rules:
            name = re.sub(pattern, ours, name)
        found[name] = tensor
    return found


VISSL: Rules = ((r"^trunk\.(base_model\.)?(_feature_blocks\.)?", BACKBONE),)
"""Its ResNets have torchvision's names below ``_feature_blocks``, its transformers timm's."""

MOCO: Rules = (
    (r"^(encoder_q|base_encoder)\.", BACKBONE),
    (r"^(encoder_k|momentum_encoder)\.", FOLLOWING),
)
"""Versions 1 and 2, and 3."""

SWAV: Rules = (
    (r"^projection_head\.", "projector."),
    (r"^(conv1|bn1|layer\d)\.", rf"{BACKBONE}\1."),
)

DINO: Rules = (
    (r"^student\.(module\.)?backbone\.", BACKBONE),
    (r"^teacher\.(module\.)?backbone\.", FOLLOWING),
)
"""Whole checkpoints of DINO, iBOT and DINOv2; files of a backbone alone have timm's names."""

LIGHTLY: Rules = (
    (r"^backbone\.0\.", f"{BACKBONE}conv1."),
    (r"^backbone\.1\.", f"{BACKBONE}bn1."),
    (r"^backbone\.([4-7])\.", lambda found: f"{BACKBONE}layer{int(found[1]) - 3}."),
)
"""ResNets as rows of their children, which its examples make of torchvision's."""


def of_dinov2(weights: Weights) -> dict[str, Tensor]:
    """A transformer of DINOv2 as timm has it, where only patches have places if there are registers."""
    rules = ((r"\.mlp\.w12\.", ".mlp.fc1."), (r"\.mlp\.w3\.", ".mlp.fc2."), (r"^register_tokens$", "reg_token"))
    found = renamed({name: one for name, one in weights.items() if name != "mask_token"}, rules)
    if "reg_token" in found:
        places = found["pos_embed"]
        found |= {"cls_token": found["cls_token"] + places[:, :1], "pos_embed": places[:, 1:]}
    return {f"{BACKBONE}{name}": tensor for name, tensor in found.items()}
