"""Weights of FastReID: its ResNets, ResNeXts and ResNeSts with IBN, SE and non-local blocks, OSNets, ShuffleNets and
IResNets, its heads, and MGN.

A ResNet must be ``resnet`` with ``convention: fastreid``, as ``opabinia config import fastreid`` writes it. The
features are then those of FastReID's own networks, to 1e-5: ``python -m scripts.fastreid_features CHECKOUT``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor

from opabinia.migration.weights.names import Rules, rename_weights
from opabinia.models.weights.translation import BACKBONE, WeightFormat, Weights, register_weight_format

_PARTS = ("b1", "b2", "b3", "b21", "b22", "b31", "b32", "b33")
"""Heads of the multiple granularity network, in the order of its features."""

_MGN: Rules = (
    (r"^backbone\.0\.", f"backbone.{BACKBONE}conv1."),
    (r"^backbone\.1\.", f"backbone.{BACKBONE}bn1."),
    (r"^backbone\.([45])\.", lambda match: f"backbone.{BACKBONE}layer{int(match[1]) - 3}."),
    (r"^backbone\.6\.", f"backbone.{BACKBONE}layer3.0."),
    (r"^(b\d)\.0\.(\d+)\.", lambda match: f"{match[1]}.layer3.{int(match[2]) + 1}."),
    (r"^(b\d)\.1\.", r"\1.layer4."),
    (r"^b1\.", f"backbone.{BACKBONE}"),
    (r"^b2\.", "backbone.halves."),
    (r"^b3\.", "backbone.thirds."),
    (r"^(b\d+)_head\.", lambda match: f"branches.{_PARTS.index(match[1])}."),
)
"""The backbone is a sequence that ends with the first block of the third stage; branches are sequences of the rest."""

_BASELINE: Rules = (
    (r"^backbone\.(?!module\.)", BACKBONE),
    (r"\.non_local\.W\.0\.", ".non_local.out."),
    (r"\.non_local\.W\.1\.", ".non_local.norm."),
    (r"^heads\.", ""),
)

_LAYERS: Rules = (
    (r"\.se\.fc\.0\.", ".se.fc1."),
    (r"\.se\.fc\.2\.", ".se.fc2."),
    (r"(?<![^.])bottleneck\.embedding\.", "embedding."),
    (r"(?<![^.])(bottleneck\.\d|bnneck)\.", "neck."),
    (r"(?<![^.])pool_layer\.(\d\.)?p$", "pooling.p"),
    (r"^((?:branches\.\d\.)?)(?:classifier\.)?weight$", r"\1head.weight"),
)
"""Names from the beginning or after a dot."""


def translate_fastreid(weights: Weights) -> dict[str, Tensor]:
    """Translate a model of FastReID."""
    renamed = dict(_located_attention({name: one for name, one in weights.items() if not name.startswith("pixel_")}))
    # A convolution reduces the features before the norm, or there is the norm alone.
    renamed = {
        name.replace("bottleneck.0.", "bottleneck.embedding.") if tensor.ndim == 4 else name: tensor
        for name, tensor in renamed.items()
    }
    is_mgn = any(name.startswith("b1_head.") for name in renamed)
    if any(re.search(r"^backbone\..*(\.gate\.|first_conv|prelu)", name) for name in renamed):
        renamed = {name.replace("backbone.", "backbone.module.", 1): tensor for name, tensor in renamed.items()}
    renamed = rename_weights(renamed, (*(_MGN if is_mgn else _BASELINE), *_LAYERS))
    for name, tensor in renamed.items():
        if re.search(r"(^|\.)embedding\.weight$", name):
            renamed[name] = tensor.flatten(1)
        elif re.search(r"\.se\.fc\d\.weight$", name):
            renamed[name] = tensor[:, :, None, None]
    return renamed


def _located_attention(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """Yield weights, those of non-local blocks (``NL_2.0``, after the last blocks of a stage) under their block."""
    places = {place for name in weights for place in re.findall(r"^backbone\.(layer\d|NL_\d)\.(\d+)\.", name)}
    for name, tensor in weights.items():
        if match := re.match(r"backbone\.NL_(\d)\.(\d+)\.", name):
            counts = [sum(group == kind for group, _ in places) for kind in (f"layer{match[1]}", f"NL_{match[1]}")]
            block = counts[0] - counts[1] + int(match[2])
            name = f"backbone.layer{match[1]}.{block}.act3.non_local.{name[match.end() :]}"
        yield name, tensor


register_weight_format(
    *(
        WeightFormat(prefix, "FastReID's names", "rgb", translate_fastreid)
        for prefix in ("heads.bottleneck.", "heads.bnneck.", "heads.weight", "heads.classifier.", "b1_head.")
    )
)
