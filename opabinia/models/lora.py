"""Low-rank adapters (LoRA) of the PEFT library: inserted into a backbone, merged into its weights, and their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, Count, Fraction, Positive
from opabinia.models.norms import freeze_batch_norms

_SCALE, _DOWN, _UP, _BASE = ".lora_scale", ".lora_A.default.weight", ".lora_B.default.weight", ".base_layer."


@register.section
@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adaptation (Hu et al. 2022, LoRA): linear layers W become W + alpha / rank * B A with W frozen. B begins
    with zeros, so that training starts from the function of the frozen weights.

    Args:
        rank: rows of A and columns of B.
        alpha: weight of the adapters, divided by ``rank``.
        dropout: dropout probability of the inputs of the adapters.
        targets: ends of the names of linear layers that get adapters, as PEFT's ``target_modules``; ``qkv`` is every
            ``attn.qkv``.
    """

    rank: Count = 8
    alpha: Positive = 16.0
    dropout: Fraction = 0.0
    targets: Sequence[str] = ("qkv", "proj")


def insert_adapters(backbone: Backbone, lora: Lora) -> None:
    """Freeze a backbone, its norms too, and insert trainable adapters beside its linear layers.

    Raises:
        ValueError: the PEFT library is not installed, a target matches no linear layer, or the network reads the
            weights of a target itself, so that an adapter would have no effect.
    """
    linear = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    ends = ", ".join(sorted({name.rpartition(".")[2] for name in linear})) or "none, since LoRA is for transformers"
    for target in lora.targets:
        if not any(f".{name}".endswith(f".{target}") for name in linear):
            raise ValueError(f"lora.targets: no linear layer has a name that ends with {target!r}; there are: {ends}")
    names = [name for name in linear if f".{name}".endswith(tuple(f".{target}" for target in lora.targets))]
    for path, _, last in (name.rpartition(".") for name in names):
        owner = backbone.get_submodule(path)
        # torch's attention, and that of timm's BEiT, EVA and Swin v2.
        if isinstance(owner, nn.MultiheadAttention) or (last == "qkv" and getattr(owner, "q_bias", None) is not None):
            raise ValueError(
                f"lora.targets: this network reads the weights of {path}.{last} itself, so an adapter would have no "
                f"effect; there are: {ends}"
            )
    if not lora.targets:
        raise ValueError(f"lora.targets: at least one, of: {ends}")
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ValueError("lora needs the PEFT library: pip install 'opabinia[lora]'") from error
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=names)
    freeze_batch_norms(backbone)
    inject_adapter_in_model(config, backbone)
    for name in names:  # in the file, so that it can be merged without a config
        backbone.get_submodule(name).register_buffer("lora_scale", torch.tensor(lora.alpha / lora.rank))
    if backbone.preprocessing is None:
        backbone.needs_weights = "lora would freeze random weights: load some with init.weights or backbone.pretrained"


def merge_adapters(model: nn.Module) -> None:
    """Add all adapters to the weights beside them, in place: the model is then one of ordinary layers."""
    adapted: list[tuple[str, Any]] = [item for item in model.named_modules() if hasattr(item[1], "lora_scale")]
    for name, layer in adapted:
        layer.merge()
        model.set_submodule(name, layer.get_base_layer())


def merge_tensors(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a file as those of a model without adapters, which computes the same.

    Raises:
        ValueError: an adapter is incomplete, or has another shape than the weights that it adapts.
    """
    merged = {plain: weights[name] for plain, name in plain_names(weights).items()}
    for layer in _adapted(weights):
        down, up, base = weights.get(layer + _DOWN), weights.get(layer + _UP), merged.get(f"{layer}.weight")
        if down is None or up is None or base is None:
            raise ValueError(f"{layer}: its adapter has no {_DOWN}, no {_UP} or no weight to adapt")
        scale = weights[layer + _SCALE]
        if not up.ndim == down.ndim == 2 or (len(up), *down.shape[1:]) != base.shape or up.shape[1] != len(down):
            shapes = " and ".join(str(list(tensor.shape)) for tensor in (up, down))
            raise ValueError(f"{layer}: its adapter of {shapes} does not fit its weight of {list(base.shape)}")
        if scale.numel() != 1:
            raise ValueError(f"{layer}: the scale of its adapter is no number but {list(scale.shape)}")
        merged[f"{layer}.weight"] = (base.float() + scale * (up.float() @ down.float())).to(base.dtype)
    return merged


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Map the names that tensors would have without adapters to their names; adapters are omitted."""
    names = list(names)
    moved = {f"{layer}{_BASE}": f"{layer}." for layer in _adapted(names)}
    plain = {}
    for name in names:
        if not is_adapter(name):
            path, _, last = name.rpartition(".")
            plain[moved.get(f"{path}.", f"{path}." if path else "") + last] = name
    return plain


def is_adapter(name: str) -> bool:
    """Return whether a tensor of this name belongs to an adapter."""
    return ".lora_" in name


def _adapted(names: Iterable[str]) -> list[str]:
    return [name.removesuffix(_SCALE) for name in names if name.endswith(_SCALE)]
