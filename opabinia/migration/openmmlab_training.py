"""Conversion of the sections that all OpenMMLab configs share: schedule, optimizer, hooks, batch size.

Configs of the 2.x generation (``data``, ``optimizer``, ``lr_config``) are brought to the layout of the 3.x generation
(``train_dataloader``, ``optim_wrapper``, ``param_scheduler``) first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import Node
from opabinia.migration.foreign_config import ForeignConfig, as_node, leaves, set_value
from opabinia.migration.openmmlab import merge, only
from opabinia.migration.recipe import Recipe, duration
from opabinia.migration.tables.openmmlab import (
    CUSTOM_KEYS,
    MOVED,
    OPTIMIZERS,
    REASONS,
    SCHEDULES,
    SECTIONS,
    WARMUPS,
)

# --- layout -----------------------------------------------------------------------------------------------------------


def at(tree: Node, path: str) -> Node | None:
    """Return the node at a dotted path, or None."""
    node: Node | None = tree
    for key in path.split("."):
        node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
    return node


def modernize(tree: Node) -> Node:
    """Return a config in the layout of the 3.x generation, with the sections that trainings read."""
    for old, new in MOVED.items():
        if (node := at(tree, old)) is not None:
            tree = set_value(tree, new.split("."), node)
    if (optimizer := at(tree, "optim_wrapper.optimizer")) is not None and isinstance(optimizer.value, dict):
        options = dict(optimizer.value)
        for key in {"constructor", "paramwise_cfg"} & set(options):
            tree = set_value(tree, ["optim_wrapper", key], options.pop(key))
        tree = set_value(tree, ["optim_wrapper", "optimizer"], Node(options, optimizer.where))
    if (node := at(tree, "fp16")) is not None and node.value is not None:
        tree = set_value(tree, ["optim_wrapper", "type"], Node("AmpOptimWrapper", node.where))
    if (node := at(tree, "lr_config")) is not None and isinstance(node.value, dict):
        tree = set_value(tree, ["param_scheduler"], as_node(_schedulers(node.plain()), node.where))
    constructor, rules = at(tree, "optim_wrapper.constructor"), at(tree, "optim_wrapper.paramwise_cfg")
    if constructor is not None and rules is not None and constructor.value == "SwinOptimWrapperConstructor":
        tree = set_value(tree, ["optim_wrapper", "paramwise_cfg"], Node({"custom_keys": rules}, rules.where))
    if (node := at(tree, "optim_wrapper.paramwise_cfg.custom_keys")) is not None:  # its keys contain dots
        keys = Node(
            [Node([Node(key, value.where), value], value.where) for key, value in node.value.items()], node.where
        )
        tree = set_value(tree, ["optim_wrapper", "paramwise_cfg", "custom_keys"], keys)
    return only(tree, SECTIONS)


def _schedulers(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the ``param_scheduler`` of an ``lr_config``."""
    by_epoch, items = config.get("by_epoch", True), []
    if mode := config.get("warmup"):
        names = {"linear": "LinearLR", "constant": "ConstantLR"}
        factor = {"start_factor" if mode == "linear" else "factor": config.get("warmup_ratio", 0.1)}
        warmup_by_epoch = config.get("warmup_by_epoch", False)
        end = config.get("warmup_iters", 0)
        items.append({"type": names.get(mode, mode), "by_epoch": warmup_by_epoch, "begin": 0, "end": end, **factor})
        items[-1]["convert_to_iter_based"] = warmup_by_epoch
    policy = config.get("policy", "fixed")
    steps = config.get("step", [])
    curves: dict[str, dict[str, Any]] = {
        "step": {"type": "MultiStepLR", "milestones": steps, "gamma": config.get("gamma", 0.1)}
        if isinstance(steps, list)
        else {"type": "StepLR", "step_size": steps, "gamma": config.get("gamma", 0.1)},
        "CosineAnnealing": {"type": "CosineAnnealingLR"},
        "poly": {"type": "PolyLR", "power": config.get("power", 1.0)},
    }
    if policy not in ("fixed", "Fixed"):
        curve = {**curves.get(policy, {"type": policy}), "by_epoch": by_epoch}
        for old, new in {"min_lr": "eta_min", "min_lr_ratio": "eta_min_ratio"}.items():
            curve |= {new: config[old]} if old in config else {}
        items.append(curve)
    return items


def with_pixel_stats(tree: Node) -> Node:
    """Return a config whose pixel statistics are in ``data_preprocessor``, not in the model or a pipeline."""
    if (node := at(tree, "model.data_preprocessor")) is not None:
        model = tree.value["model"]
        rest = Node({key: child for key, child in model.value.items() if key != "data_preprocessor"}, model.where)
        tree = set_value(tree, ["model"], rest)
        tree = set_value(tree, ["data_preprocessor"], merge(at(tree, "data_preprocessor") or node, node))
    dataset = at(tree, "train_dataloader.dataset")
    while dataset is not None and (inner := at(dataset, "dataset")) is not None:
        dataset = inner
    pipeline = at(dataset, "pipeline") if dataset is not None else None
    for step in pipeline.value if pipeline is not None and isinstance(pipeline.value, list) else []:
        kind = at(step, "type")
        if kind is not None and kind.value == "Normalize":
            tree = merge(tree, Node({"data_preprocessor": Node({**step.value, "type": kind}, step.where)}, ""))
    return tree


def build_recipe(system: str, file: Path, tree: Node, defaults: dict[str, Any], reasons: dict[str, str]) -> Recipe:
    """Return an empty recipe for a config in the layout of the 3.x generation."""
    return Recipe(ForeignConfig(system, str(file), dict(leaves(tree)), defaults, {**REASONS, **reasons}))


@contextmanager
def report_malformed(file: Path) -> Iterator[None]:
    """Turn the errors of values of other types, and of steps without their keys, into one of the file.

    Raises:
        ConfigError: the block raised such an error.
    """
    try:
        yield
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        message = f"has a value of an unexpected type, or lacks a key: {type(error).__name__}: {error}"
        raise ConfigError(Problem(str(file), "", message)) from error


def refuse_unread(recipe: Recipe, section: str, allowed: Mapping[str, Sequence[Any]]) -> None:
    """Refuse the values below a section that nothing has read; the allowed ones count as read.

    Args:
        recipe: the recipe under construction.
        section: such as ``model``.
        allowed: values by the last part of a key that need no counterpart; an empty list allows all, and all below it.
    """
    for key in recipe.foreign.unread():
        *sections, name = key.path.split(".")
        if not key.path.startswith(f"{section}."):
            continue
        recipe.foreign.untyped(key.path)
        inside_allowed = any(part in allowed and not allowed[part] for part in sections)
        if not inside_allowed and not _is_allowed(key.value, allowed.get(name, (None,))):
            expected = f"supported: {show(list(allowed[name]))}" if name in allowed else ""
            recipe.refuse(key.path, f"{show(key.value)} is not supported", expected)


def _is_allowed(value: Any, allowed: Sequence[Any]) -> bool:
    return not allowed or value is None or value in allowed


# --- batch size -------------------------------------------------------------------------------------------------------


def convert_batch_size(recipe: Recipe, gpus: int | None) -> None:
    """Convert the batch size per GPU to the total.

    The number of GPUs is that which makes the total the ``base_batch_size`` of the learning rate, or else 8.
    """
    foreign = recipe.foreign
    key, base_key = "train_dataloader.batch_size", "auto_scale_lr.base_batch_size"
    per_gpu = foreign.number(key) * foreign("optim_wrapper.accumulative_counts", 1)
    base = foreign(base_key)
    if gpus is None:
        gpus = base // per_gpu if base and base % per_gpu == 0 else 8
        recipe.note(f"the batch size is that of {gpus} GPUs; --gpus sets another number")
    total = per_gpu * gpus
    recipe.put("data.batch_size", total, key, base_key)
    if foreign("optim_wrapper.accumulative_counts", 1) > 1:
        recipe.put("train.micro_batch_size", foreign(key) * gpus, key, "optim_wrapper.accumulative_counts")
    recipe.convert("train_dataloader.num_workers", "data.num_workers")
    if base and total != base:
        if foreign("auto_scale_lr.enable", False):
            recipe.config["optimizer"]["lr"] *= total / base
        else:
            recipe.note(
                f"the learning rate is for a batch of {base}, and the batch has {total}: scale it, or set --gpus"
            )


# --- schedule ---------------------------------------------------------------------------------------------------------


def convert_training(recipe: Recipe, gpus: int | None, passes: int = 1) -> None:
    """Convert optimizer, batch size, schedule, length, hooks and seed.

    Args:
        recipe: the recipe under construction.
        gpus: see :func:`convert_batch_size`.
        passes: passes over the data in an epoch of the config (``RepeatDataset``).
    """
    _optimizer(recipe)
    convert_batch_size(recipe, gpus)
    _rules(recipe)
    unit, length = _length(recipe, passes)
    _schedule(recipe, passes, unit, length)
    foreign = recipe.foreign
    interval = foreign("train_cfg.val_interval", 1)
    recipe.put("evaluate.every", duration(min(interval * passes, length), unit), "train_cfg.val_interval")
    _checkpoints(recipe, passes, length)
    _step(recipe)
    _hooks(recipe, passes)
    if (seed := foreign("randomness.seed")) is not None:
        recipe.put("seed", seed, "randomness.seed")
    if foreign("env_cfg.cudnn_benchmark", False):
        recipe.put("train.cudnn_benchmark", True, "env_cfg.cudnn_benchmark")
    key = "default_hooks.logger.interval"
    recipe.put("train.log_every", foreign(key, 10), key)


def _length(recipe: Recipe, passes: int) -> tuple[str, float]:
    """Convert the length of the training; return its unit and number."""
    foreign = recipe.foreign
    if (epochs := foreign("train_cfg.max_epochs")) is not None:
        length, unit, key = epochs * passes, "ep", "train_cfg.max_epochs"
    elif foreign("train_cfg.max_iters") is not None:
        length, unit, key = foreign.number("train_cfg.max_iters"), "it", "train_cfg.max_iters"
    else:
        raise foreign.problem("train_cfg", "the config has no length of a training (max_epochs or max_iters)")
    recipe.put("train.length", duration(length, unit), key)
    return unit, length


def _optimizer(recipe: Recipe) -> None:
    foreign, section = recipe.foreign, "optim_wrapper.optimizer"
    name = foreign(f"{section}.type")
    if name not in OPTIMIZERS:
        raise foreign.problem(
            f"{section}.type", f"{show(name)} is not supported", f"supported: {', '.join(OPTIMIZERS)}"
        )
    own_name, defaults = OPTIMIZERS[name]
    recipe.put("optimizer.name", own_name, f"{section}.type")
    recipe.put("optimizer.lr", foreign.number(f"{section}.lr"), f"{section}.lr")
    for key, (own_key, default) in defaults.items():
        recipe.put(f"optimizer.{own_key}", foreign(f"{section}.{key}", default), f"{section}.{key}")
    for path in foreign.keys(section):
        if path.rpartition(".")[2] not in ("type", "lr", *defaults):
            recipe.skip(path, f"{name} has no such option here")


def _rules(recipe: Recipe) -> None:
    """Convert learning rates and weight decays of kinds of parameters and of parameters by name."""
    foreign, section = recipe.foreign, "optim_wrapper.paramwise_cfg"
    if (layer_decay := foreign(f"{section}.layer_decay_rate")) is not None:
        recipe.put("param_groups.layer_decay", layer_decay, f"{section}.layer_decay_rate")
    decay = foreign("optim_wrapper.optimizer.weight_decay", 0.0)
    rules: list[dict[str, Any]] = []
    for key, kind in {"flat_decay_mult": "1d", "bias_decay_mult": "bias", "norm_decay_mult": "norm"}.items():
        if (factor := foreign(f"{section}.{key}")) is not None:
            rules.append({"kind": kind, "weight_decay": decay * factor})
    if (factor := foreign(f"{section}.bias_lr_mult", 1.0)) != 1:
        rules.append({"kind": "bias", "lr_factor": factor})
        rules.append({"kind": "norm", "pattern": "bias$", "lr_factor": 1 / factor})  # not of norms
    custom = dict(foreign(f"{section}.custom_keys") or [])
    if any(norm in custom and custom[norm] == custom.get("bias") for norm in ("bn", "ln")):  # of all vectors
        vectors = custom["bias"]
        rules.append({"kind": "1d", "weight_decay": decay * vectors.get("decay_mult", 1.0)})
        if "lr_mult" in vectors:
            rules[-1]["lr_factor"] = vectors["lr_mult"]
        custom = {name: options for name, options in custom.items() if name not in ("bn", "ln", "bias", "downsample.1")}
    if foreign("optim_wrapper.optimizer.type") == "LARS":
        excluded = any("lars_exclude" in options for _, options in foreign(f"{section}.custom_keys") or [])
        recipe.put("optimizer.exclude_1d", excluded, f"{section}.custom_keys")
    for name, options in custom.items():
        if name.strip(".") not in CUSTOM_KEYS:
            recipe.skip_part(f"{section}.custom_keys", name, "see param_groups.rules: pattern")
            continue
        pattern, networks = CUSTOM_KEYS[name.strip(".")]
        if not str(recipe.config["task"]["backbone"].get("model", "")).startswith(tuple(networks)):
            continue  # the shared schedules of transformers name parameters that other networks lack
        rule: dict[str, Any] = {"pattern": pattern}
        if "decay_mult" in options:
            rule["weight_decay"] = decay * options["decay_mult"]
        if options.get("lr_mult", 1) != 1:
            rule["lr_factor"] = options["lr_mult"]
        if options.get("fix_lr"):
            rule["constant_lr"] = True
        rules.append(rule)
    if rules:
        keys = foreign.keys(section)
        recipe.put("param_groups.rules", rules, *keys)


def _schedule(recipe: Recipe, passes: int, unit: str, length: float) -> None:
    foreign, key = recipe.foreign, "param_scheduler"
    value = foreign.untyped(key)
    items = _schedulers_of(recipe) if value is None or isinstance(value, dict) else value
    warmups = [item for item in items[:1] if item.get("type") in WARMUPS and "end" in item and len(items) > 1]
    warmups = warmups or [item for item in items if item.get("type") in WARMUPS and item.get("end", length) < length]
    curves = [item for item in items if item not in warmups]
    if len(curves) > 1 or len(warmups) > 1:
        names = ", ".join(str(item.get("type")) for item in items)
        raise foreign.problem(key, f"{names}: expected a warm-up and one more schedule")
    curve: dict[str, Any] = curves[0] if curves else {"type": "ConstantLR", "factor": 1.0}
    warmup = warmups[0] if warmups else {}
    recipe.put("schedule", _curve(recipe, curve, passes, length), key)
    changing = [warmup] if SCHEDULES[curve["type"]] in ("multi_step", "step", "constant") else [warmup, curve]
    by_epoch = [item for item in changing if item and _changes_by_epoch(item)]
    if by_epoch and unit == "ep" and len(by_epoch) == sum(map(bool, changing)):
        recipe.put("schedule.interval", "epoch")
    elif by_epoch:
        recipe.skip_part(key, by_epoch[0]["type"], "changes with every step here, with every epoch there")
    if warmup:
        _warmup(recipe, warmup, curve, passes)


def _changes_by_epoch(item: dict[str, Any]) -> bool:
    return bool(item.get("by_epoch", True)) and not item.get("convert_to_iter_based", False)


def _schedulers_of(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the scheduler that is a dictionary instead of a list."""
    section = "param_scheduler"
    keys = [path for path in recipe.foreign.keys(section) if path.count(".") == 1]
    return [{path.rpartition(".")[2]: recipe.foreign.untyped(path) for path in keys}] if keys else []


def _curve(recipe: Recipe, curve: dict[str, Any], passes: int, length: float) -> dict[str, Any]:
    """Return the schedule after the warm-up."""
    name, by_epoch = curve.get("type"), curve.get("by_epoch", True)
    unit, factor = ("ep", passes) if by_epoch else ("it", 1)
    if name not in SCHEDULES:
        supported = f"supported: {', '.join(SCHEDULES)}"
        raise recipe.foreign.problem("param_scheduler", f"{show(name)} is not supported", supported)
    end = curve.get("eta_min_ratio") or (curve.get("eta_min") or 0.0) / (recipe.config["optimizer"]["lr"] or 1)
    span = curve.get("T_max", curve.get("total_iters"))
    rest = 0 if span is None else (span + curve.get("begin", 0)) * factor - length
    if span is not None and rest > 1e-6 and name == "CosineAnnealingLR":  # the training ends before the curve
        return {"name": "cosine_restarts", "cycle": duration(span * factor, unit), "end": float(f"{end:.6g}")}
    if abs(rest) > 1e-6:
        raise recipe.foreign.problem("param_scheduler", f"{name} ends at {show(span)}, the training does not")
    match name:
        case "MultiStepLR":
            milestones = [duration(step * factor, unit) for step in curve["milestones"] if step * factor < length]
            return {"name": "multi_step", "milestones": milestones, "gamma": curve.get("gamma", 0.1)}
        case "StepLR":
            every = duration(curve["step_size"] * factor, unit)
            return {"name": "step", "every": every, "gamma": curve.get("gamma", 0.1)}
        case "CosineAnnealingLR":
            return {"name": "cosine", "end": float(f"{end:.6g}")}
        case "PolyLR":
            return {"name": "polynomial", "power": curve.get("power", 1), "end": float(f"{end:.6g}")}
        case "LinearLR":
            return {"name": "linear", "start": curve.get("start_factor", 1 / 3), "end": curve.get("end_factor", 1.0)}
    return {"name": "constant", "value": curve.get("factor", 1.0)}


def _warmup(recipe: Recipe, warmup: dict[str, Any], curve: dict[str, Any], passes: int) -> None:
    by_epoch = warmup.get("by_epoch", True)
    unit, factor = ("ep", passes) if by_epoch else ("it", 1)
    own_curve = SCHEDULES[curve["type"]] not in ("multi_step", "step", "constant")
    end, begin = warmup["end"], curve.get("begin", 0)
    if recipe.config["schedule"].get("interval") == "epoch" and end > 1:
        end -= 1  # there the last of these epochs has the full learning rate
        if own_curve and begin:
            recipe.put("schedule.delay", duration(begin * factor, unit))
    recipe.put("schedule.warmup", duration(end * factor, unit), "param_scheduler")
    mode, key, default = WARMUPS[warmup["type"]]
    recipe.put("schedule.warmup_mode", mode)
    recipe.put("schedule.warmup_factor", float(f"{warmup.get(key, default):.6g}"))
    if own_curve and begin != warmup["end"]:
        if begin:
            raise recipe.foreign.problem("param_scheduler", "the schedule must begin at 0 or at the end of the warm-up")
        recipe.put("schedule.warmup_rule", "whole")


# --- steps and hooks --------------------------------------------------------------------------------------------------


def _checkpoints(recipe: Recipe, passes: int, length: float) -> None:
    foreign, section = recipe.foreign, "default_hooks.checkpoint"
    interval = foreign(f"{section}.interval", -1 if section in foreign else 1)
    by_epoch = foreign(f"{section}.by_epoch", True)
    if interval <= 0:  # the last one only
        return recipe.put("checkpoint", {"every": recipe.config["train"]["length"], "keep": 1}, f"{section}.interval")
    every = interval * passes if by_epoch else interval
    recipe.put("checkpoint.every", duration(every, "ep" if by_epoch else "it"), f"{section}.interval")
    keep = foreign(f"{section}.max_keep_ckpts", -1)
    same_unit = by_epoch == recipe.config["train"]["length"].endswith("ep")
    count = max(1, math.ceil(length / every)) if same_unit else 10
    recipe.put("checkpoint.keep", keep if keep > 0 else count, f"{section}.max_keep_ckpts")


def _step(recipe: Recipe) -> None:
    """Convert mixed precision and gradient clipping."""
    foreign = recipe.foreign
    if foreign("optim_wrapper.type", "OptimWrapper") == "AmpOptimWrapper":
        precision = "bf16" if foreign("optim_wrapper.dtype") == "bfloat16" else "fp16"
        recipe.put("train.precision", precision, "optim_wrapper.type")
    section = "optim_wrapper.clip_grad"
    if (limit := foreign(f"{section}.max_norm")) is not None:
        clipping = {"name": "standard", "clip_norm": limit, "clip_norm_type": float(foreign(f"{section}.norm_type", 2))}
        recipe.put("train.step", clipping, f"{section}.max_norm")
    elif (limit := foreign(f"{section}.clip_value")) is not None:
        recipe.put("train.step", {"name": "standard", "clip_value": limit}, f"{section}.clip_value")


def _hooks(recipe: Recipe, passes: int) -> None:
    key = "custom_hooks"
    hooks: Iterable[Any] = recipe.foreign.untyped(key) or []
    for hook in hooks:
        match hook:
            case {"type": "EMAHook", "ema_type": str(kind)} if kind not in ("ExponentialMovingAverage",):
                recipe.skip_part(key, hook, f"the average {kind} is not supported")
            case {"type": "EMAHook"}:
                recipe.put("ema", {"decay": round(1 - hook.get("momentum", 0.0002), 9), "warmup": False}, key)
                if begin := hook.get("begin_epoch"):
                    recipe.put("ema.start", duration(begin * passes, "ep"), key)
            case {"type": "PreciseBNHook"}:
                batches = max(1, hook.get("num_samples", 8192) // recipe.config["data"]["batch_size"])
                every = duration(hook.get("interval", 1) * passes, "ep")
                recipe.put("hooks.precise_bn", {"every": every, "batches": batches}, key)
            case {"type": "NumClassCheckHook" | "CheckInvalidLossHook" | "SwAVHook" | "SimSiamHook"}:
                pass  # checked always, or converted with the model
            case _:
                recipe.skip_part(key, hook, "no equivalent")


def convert_weights(recipe: Recipe, key: str, rgb: bool) -> None:
    """Convert the name of a file of weights to a variable that the user fills in."""
    if not (weights := recipe.foreign(key)):
        return
    name = weights.rsplit("/", 1)[-1]
    remote = "://" in weights
    file = recipe.variable("weights", f"path/to/{name}" if remote else weights, key)
    recipe.put("init.weights", file)
    if remote:
        recipe.note(f"weights are not downloaded: fetch {weights}, and set vars.weights to the file")
    if not rgb:
        recipe.put("init.channel_order", "bgr")
