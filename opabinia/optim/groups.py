"""Parameter groups: learning rates and weight decays by parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Le
from timm.layers import norm as timm_norms
from torch import nn

from opabinia.config import register
from opabinia.contracts import Backbone, NonNegative

Kind = Literal["norm", "bias", "1d", "embedding"]


@register.section(name="rule")
@dataclass(frozen=True, kw_only=True)
class Rule:
    """Options for some parameters. Without ``pattern`` and ``kind`` the rule applies to all.

    Args:
        pattern: regular expression that matches a part of the parameter's name, such as ``^head`` (names are in the
            log of a run).
        kind: ``norm``: weights and biases of normalization layers; ``bias``: all biases, including theirs; ``1d``: all
            vectors and scalars; ``embedding``: of tokens, positions and classes.
        lr_factor: multiplies the learning rate. Factors of several rules, and of ``layer_decay``, multiply.
        weight_decay: replaces the optimizer's; the last matching rule with a value counts.
        constant_lr: the learning rate ignores the schedule (Chen and He 2021, section 4.2, for the predictor).
    """

    pattern: str | None = None
    kind: Kind | None = None
    lr_factor: NonNegative = 1.0
    weight_decay: NonNegative | None = None
    constant_lr: bool = False


@register.section
@dataclass(frozen=True, kw_only=True)
class ParamGroups:
    """Learning rates and weight decays by parameter. Parameters with the same options form one group.

    Args:
        rules: options for some parameters.
        layer_decay: layer-wise learning rate decay: the learning rate of each layer of the backbone is that of the next
            layer times this factor; after the backbone the factor is 1 (Clark et al. 2020; Bao et al. 2022, BEiT).
    """

    rules: Sequence[Rule] = ()
    layer_decay: Annotated[float, Gt(0), Le(1)] | None = None


def parameter_groups(task: nn.Module, groups: ParamGroups | None = None) -> list[dict[str, Any]]:
    """Return the parameter groups for an optimizer: ``params``, ``lr_factor``, and ``weight_decay`` and ``constant_lr``
    if a rule sets them.

    They contain every parameter that requires gradients, once.

    Raises:
        ValueError: a rule matches no parameter, its pattern is not a regular expression, or the depths of the
            backbone's layers are not known.

    Example::

        optimizer = torch.optim.SGD(parameter_groups(task, groups), lr=0.1)
        apply_factors(optimizer)
    """
    groups = groups or ParamGroups()
    parameters = {name: parameter for name, parameter in task.named_parameters() if parameter.requires_grad}
    kinds = _kinds(task)
    factors = layer_factors(task, groups.layer_decay) if groups.layer_decay is not None else {}
    matches = [_matching(rule, number, parameters, kinds) for number, rule in enumerate(groups.rules)]
    merged: dict[tuple[tuple[str, float], ...], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        options: dict[str, float] = {"lr_factor": factors.get(name, 1.0)}
        for rule, names in zip(groups.rules, matches, strict=True):
            if name in names:
                options["lr_factor"] *= rule.lr_factor
                if rule.weight_decay is not None:
                    options["weight_decay"] = rule.weight_decay
                if rule.constant_lr:
                    options["constant_lr"] = True
        merged.setdefault(tuple(sorted(options.items())), []).append(parameter)
    return [{"params": group, **dict(options)} for options, group in merged.items()]


def apply_factors(optimizer: torch.optim.Optimizer, scale: float = 1.0) -> None:
    """Multiply the learning rate of every group by its ``lr_factor`` and by ``scale``."""
    for group in optimizer.param_groups:
        group["lr"] *= group.get("lr_factor", 1.0) * scale


def layer_factors(task: nn.Module, decay: float) -> dict[str, float]:
    """Return learning rate factors by parameter: ``decay ** (layers + 1 - depth)`` for those of the backbone.

    Raises:
        ValueError: there is no backbone, or the depths of its layers are not known.

    Example: in a ViT with 12 blocks and decay 0.75 the patch embedding gets 0.75**13, the last block 0.75.
    """
    backbones = {name: module for name, module in task.named_modules() if isinstance(module, Backbone)}
    if not backbones:
        raise ValueError("layer_decay: the task has no backbone")
    factors: dict[str, float] = {}
    for prefix, backbone in backbones.items():
        depths = backbone.depths()
        num_layers = max(depths.values()) + 1
        factors |= {f"{prefix}.{name}".lstrip("."): decay ** (num_layers - depth) for name, depth in depths.items()}
    return factors


_NORMS = (
    *(nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm),
    *(value for value in vars(timm_norms).values() if isinstance(value, type) and issubclass(value, nn.Module)),
)


def _kinds(task: nn.Module) -> dict[str, set[Kind]]:
    """The kinds of each parameter, by name."""
    kinds: dict[str, set[Kind]] = {}
    for prefix, module in task.named_modules():
        # By name: FrozenBatchNorm2d and norms that a model defines itself.
        is_norm = isinstance(module, _NORMS) or "norm" in type(module).__name__.lower()
        if callable(no_weight_decay := getattr(module, "no_weight_decay", None)):  # timm: position and token embeddings
            for name in no_weight_decay():
                kinds.setdefault(f"{prefix}.{name}".lstrip("."), set()).add("embedding")
        for name, parameter in module.named_parameters(recurse=False):
            own = kinds.setdefault(f"{prefix}.{name}".lstrip("."), set())
            if is_norm:
                own.add("norm")
            if name.endswith("bias"):
                own.add("bias")
            if parameter.ndim <= 1:
                own.add("1d")
            if isinstance(module, nn.Embedding):
                own.add("embedding")
    return kinds


def _matching(
    rule: Rule, number: int, parameters: Mapping[str, nn.Parameter], kinds: Mapping[str, set[Kind]]
) -> set[str]:
    try:
        pattern = re.compile(rule.pattern or "")
    except re.error as error:
        raise ValueError(f"rules.{number}.pattern: {rule.pattern!r} is not a regular expression: {error}") from error
    matches = {
        name
        for name in parameters
        if pattern.search(name) and (rule.kind is None or rule.kind in kinds.get(name, set()))
    }
    if not matches:
        what = f"{rule.kind} parameter" if rule.kind else "parameter"
        where = f" whose name matches {rule.pattern!r}" if rule.pattern else ""
        names = list(parameters)
        raise ValueError(
            f"rules.{number}: there is no {what}{where}; names: {', '.join([*names[:3], '...', *names[-2:]])}"
        )
    return matches
