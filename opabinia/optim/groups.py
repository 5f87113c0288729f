"""Rules to parameter groups: which parameters learn at which rate and decay how much."""

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
    """What is different for some parameters. Without ``pattern`` and ``kind`` it is for all.

    Args:
        pattern: a regular expression that the parameter's name must contain, such as ``^head`` (see the log of a run
            for names).
        kind: ``norm``: weights and biases of normalisation layers; ``bias``: every bias, theirs too; ``1d``: vectors
            and single numbers, whatever they are; ``embedding``: of tokens, positions and classes.
        lr_factor: multiplies the learning rate. Factors of several rules, and of ``layer_decay``, multiply.
        weight_decay: in place of the optimizer's; the last rule that fits and says one counts.
        constant_lr: the learning rate does not follow the schedule (Chen and He 2021, section 4.2, of the predictor).
    """

    pattern: str | None = None
    kind: Kind | None = None
    lr_factor: NonNegative = 1.0
    weight_decay: NonNegative | None = None
    constant_lr: bool = False


@register.section
@dataclass(frozen=True, kw_only=True)
class Groups:
    """Learning rates and weight decays by parameter. Parameters with the same options end up in one group.

    Args:
        rules: what is different for which parameters.
        layer_decay: the learning rate of each layer of the backbone is so many times that of the next one; what comes
            behind the backbone has factor 1 (Clark et al. 2020; Bao et al. 2022, BEiT).
    """

    rules: Sequence[Rule] = ()
    layer_decay: Annotated[float, Gt(0), Le(1)] | None = None


def parameter_groups(task: nn.Module, groups: Groups | None = None) -> list[dict[str, Any]]:
    """Groups for an optimizer: ``params``, their ``lr_factor``, and ``weight_decay`` and ``constant_lr`` where a rule
    says so.

    Only parameters that require gradients, each once.

    Raises:
        ValueError: a rule fits no parameter, its pattern is no regular expression, or the backbone does not tell the
            depth of its layers.

    Example::

        optimizer = torch.optim.SGD(parameter_groups(task, groups), lr=0.1)
        apply_factors(optimizer)
    """
    groups = groups or Groups()
    parameters = {name: parameter for name, parameter in task.named_parameters() if parameter.requires_grad}
    kinds = _kinds(task)
    factors = layer_factors(task, groups.layer_decay) if groups.layer_decay is not None else {}
    fitting = {number: _fitting(rule, number, parameters, kinds) for number, rule in enumerate(groups.rules)}
    merged: dict[tuple[tuple[str, float], ...], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        options: dict[str, float] = {"lr_factor": factors.get(name, 1.0)}
        for number, rule in enumerate(groups.rules):
            if name in fitting[number]:
                options["lr_factor"] *= rule.lr_factor
                if rule.weight_decay is not None:
                    options["weight_decay"] = rule.weight_decay
                if rule.constant_lr:
                    options["constant_lr"] = True
        merged.setdefault(tuple(sorted(options.items())), []).append(parameter)
    return [{"params": found, **dict(options)} for options, found in merged.items()]


def apply_factors(optimizer: torch.optim.Optimizer, rate_factor: float = 1.0) -> None:
    """Multiply the learning rate of every group by its ``lr_factor``, and by ``rate_factor``."""
    for group in optimizer.param_groups:
        group["lr"] *= group.get("lr_factor", 1.0) * rate_factor


def layer_factors(task: nn.Module, decay: float) -> dict[str, float]:
    """Factors of the learning rate by parameter: ``decay ** (layers + 1 - depth)`` in the backbone, 1 elsewhere.

    Raises:
        ValueError: there is no backbone, or it does not tell the depth of its layers.

    Example: of a ViT with 12 blocks and decay 0.75 the patch embedding gets 0.75**13, the last block 0.75.
    """
    backbones = {name: module for name, module in task.named_modules() if isinstance(module, Backbone)}
    if not backbones:
        raise ValueError("layer_decay: the task has no backbone")
    factors: dict[str, float] = {}
    for prefix, backbone in backbones.items():
        depths = backbone.depths()
        above = max(depths.values()) + 1
        factors |= {f"{prefix}.{name}".lstrip("."): decay ** (above - depth) for name, depth in depths.items()}
    return factors


_NORMS = (
    *(nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm),
    *(found for found in vars(timm_norms).values() if isinstance(found, type) and issubclass(found, nn.Module)),
)


def _kinds(task: nn.Module) -> dict[str, set[Kind]]:
    """The kinds of each parameter by its name."""
    kinds: dict[str, set[Kind]] = {}
    for prefix, module in task.named_modules():
        # Layers that are not norms by class, but are called so: FrozenBatchNorm2d, a model's own.
        norm = isinstance(module, _NORMS) or "norm" in type(module).__name__.lower()
        told = getattr(module, "no_weight_decay", None)  # timm: embeddings of positions and tokens
        embeddings = {f"{prefix}.{name}".lstrip(".") for name in told()} if callable(told) else set()
        for name in embeddings:
            kinds.setdefault(name, set()).add("embedding")
        for own, parameter in module.named_parameters(recurse=False):
            found = kinds.setdefault(f"{prefix}.{own}".lstrip("."), set())
            if norm:
                found.add("norm")
            if own.endswith("bias"):
                found.add("bias")
            if parameter.ndim <= 1:
                found.add("1d")
            if isinstance(module, nn.Embedding):
                found.add("embedding")
    return kinds


def _fitting(
    rule: Rule, number: int, parameters: Mapping[str, nn.Parameter], kinds: Mapping[str, set[Kind]]
) -> set[str]:
    try:
        pattern = re.compile(rule.pattern or "")
    except re.error as error:
        raise ValueError(f"rules.{number}.pattern: {rule.pattern!r} is no regular expression: {error}") from error
    found = {
        name
        for name in parameters
        if pattern.search(name) and (rule.kind is None or rule.kind in kinds.get(name, set()))
    }
    if not found:
        what = f"{rule.kind} parameter" if rule.kind else "parameter"
        where = f" whose name has {rule.pattern!r} in it" if rule.pattern else ""
        names = list(parameters)
        raise ValueError(
            f"rules.{number}: there is no {what}{where}; names: {', '.join([*names[:3], '...', *names[-2:]])}"
        )
    return found
