"""Conversion of basecls' configs, which are Python files. They are parsed, not executed.

For keys that a config does not set, the recipe gets the values of its base class (:data:`FAMILIES`) or basecls'
defaults (:data:`DEFAULTS`), not Opabinia's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import Node
from opabinia.migration import python_literals, yacs
from opabinia.migration.foreign_config import ForeignConfig, as_node, leaves, set_value
from opabinia.migration.recipe import Recipe, Reference, convert_pixel_stats, duration, duration_in, lookup
from opabinia.migration.tables.basecls import DEFAULTS, FAMILIES, MODELS, OPTIMIZERS, PARAMETERS, PER, REASONS


def convert(file: Path, gpus: int, overrides: Sequence[str] = ()) -> Recipe:
    """Convert a config of basecls; batch size and learning rate per GPU become the totals.

    Args:
        file: the Python file with a class ``Cfg``.
        gpus: number of GPUs of the original training.
        overrides: changes such as ``solver.basic_lr=0.1``.

    Raises:
        ConfigError: the config cannot be read, is not one of basecls, or has a value that is not supported.
    """
    parsed = python_literals.read(file)
    if parsed.base not in FAMILIES:
        supported = f"supported: {', '.join(FAMILIES)}"
        raise ConfigError(
            Problem(str(file), "", f"the base class {show(parsed.base)} is not supported", allowed=supported)
        )
    tree = _apply_overrides(parsed.tree, overrides)
    defaults = {**DEFAULTS, **FAMILIES[parsed.base]}
    recipe = Recipe(ForeignConfig("basecls", str(file), dict(leaves(tree)), defaults, REASONS))
    recipe.foreign.check_code((*defaults, "model.name"))
    if gpus > 1:
        recipe.note(
            f"batch size and learning rate are per GPU in basecls: the recipe has the totals of {gpus} GPUs (--gpus)"
        )
    _model(recipe)
    _data(recipe, gpus)
    _training(recipe, gpus)
    recipe.finish()
    return recipe


def _apply_overrides(tree: Node, overrides: Sequence[str]) -> Node:
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(Problem(f"command line: {text[:80]}", "", "a change is written as solver.basic_lr=0.1"))
        tree = set_value(tree, key.split("."), as_node(yacs.literal(value), f"command line: {text[:80]}"))
    return tree


# --- model ------------------------------------------------------------------------------------------------------------


def _model(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.put("task.name", "classification")
    name = str(foreign("model.name"))
    models = [re.sub(pattern, timm_name, name) for pattern, timm_name in MODELS if re.fullmatch(pattern, name)]
    model = models[0] if models else recipe.variable("model", name, "model.name")
    if not models:
        recipe.note(f"model.name: timm has no {name}: set vars.model to one of its models")
    backbone: dict[str, Any] = {"name": "timm", "model": model}
    if groups := re.fullmatch(r"(?:se_)?resnext152_(\d+)x(\d+)d", name):
        backbone["options"] = {"cardinality": int(groups[1]), "base_width": int(groups[2])}
    recipe.put("task.backbone", backbone, "model.name")
    size = foreign("preprocess.img_size")
    if name.startswith(("vit", "swin")) and not name.endswith(f"_{size}"):
        recipe.put("task.backbone.options", {"img_size": size}, "preprocess.img_size")
    _loss(recipe)
    convert_pixel_stats(
        recipe,
        *("preprocess.img_color_space", "preprocess.img_mean", "preprocess.img_std"),
        weights="weights of basecls expect BGR (init.channel_order)",
    )
    if weights := foreign("weights"):
        recipe.put("init.weights", recipe.variable("weights", weights, "weights"))


def _loss(recipe: Recipe) -> None:
    losses = {"CrossEntropy": "cross_entropy", "BinaryCrossEntropy": "binary_cross_entropy"}
    recipe.convert("loss.name", "task.loss.name", lookup(losses))
    if recipe.foreign("loss.name") == "BinaryCrossEntropy" and recipe.foreign("loss.label_smooth"):
        recipe.skip("loss.label_smooth", "basecls ignores it with this loss")
    else:
        recipe.convert("loss.label_smooth", "task.loss.label_smoothing")


# --- data -------------------------------------------------------------------------------------------------------------


def _data(recipe: Recipe, gpus: int) -> None:
    foreign = recipe.foreign
    if foreign("data.name") != "FolderLoader":
        recipe.skip("data.name", "see opabinia config list source")
    for split in ("train", "val"):
        path = foreign(f"data.{split}_path")
        root = (
            recipe.variable(split, path, f"data.{split}_path")
            if path
            else Reference(f"{recipe.variable('root', 'path/to/imagenet')}/{split}")
        )
        recipe.put(f"data.{split}.source", {"name": "image_folder", "root": root}, f"data.{split}_path")
    recipe.put("data.train.transforms", _augmentations(recipe), "augments.name")
    interpolation = foreign("augments.resize.interpolation")
    crop = {"name": "resize_and_crop", "size": foreign("test.img_size"), "crop": foreign("test.crop_pct")}
    recipe.put("data.val.transforms", [{**crop, "interpolation": interpolation}], "test.img_size", "test.crop_pct")
    gpu_batch, steps = foreign("batch_size"), foreign("solver.accumulation_steps")
    recipe.put("data.batch_size", gpu_batch * gpus * steps, "batch_size", "solver.accumulation_steps")
    if steps > 1:
        recipe.put("train.micro_batch_size", gpu_batch, "batch_size", "solver.accumulation_steps")
    recipe.convert("data.num_workers", "data.num_workers")
    if mixes := _mixes(recipe):
        recipe.put("data.mix", mixes, "augments.mixup.mixup_alpha", "augments.mixup.cutmix_alpha")


def _augmentations(recipe: Recipe) -> list[dict[str, Any]]:
    foreign = recipe.foreign
    resize = "augments.resize"
    keys = {"scale": "scale_range", "ratio": "ratio_range", "interpolation": "interpolation"}
    crop = {"name": "RandomResizedCrop", "size": foreign("preprocess.img_size")}
    steps = [{**crop, **{key: foreign(f"{resize}.{source_key}") for key, source_key in keys.items()}}]
    return [*steps, {"name": "RandomHorizontalFlip"}, *_color_augmentations(recipe), *_erasing(recipe)]


def _color_augmentations(recipe: Recipe) -> list[dict[str, Any]]:
    foreign = recipe.foreign
    name = foreign("augments.name")
    if name == "SimpleAugment":
        return []
    if name == "ColorAugment":
        keys = ("brightness", "contrast", "saturation")
        steps: list[dict[str, Any]] = [
            {"name": "ColorJitter", **{key: foreign(f"augments.color_aug.{key}") for key in keys}}
        ]
        strength = foreign("augments.color_aug.lighting")
        return steps + ([{"name": "pca_lighting", "std": strength}] if strength else [])
    if name == "AutoAugment":
        return [{"name": "timm_policy", "policy": "v0"}]
    if name == "RandAugment":
        return [{"name": "timm_policy", "policy": _rand_augment(recipe)}]
    supported = "supported: SimpleAugment, ColorAugment, AutoAugment, RandAugment"
    raise foreign.problem("augments.name", f"{show(name)} is not supported", supported)


def _rand_augment(recipe: Recipe) -> str:
    """Return timm's policy string, with operations that get stronger with the magnitude (``inc1``)."""
    section = "augments.rand_aug"
    magnitude, std, probability, num_ops = (
        recipe.foreign(f"{section}.{key}") for key in ("magnitude", "magnitude_std", "prob", "n_ops")
    )
    std_text = "101" if std == math.inf else f"{std:g}"
    return f"rand-m{magnitude:g}-n{num_ops}-p{probability:g}-mstd{std_text}-inc1"


def _erasing(recipe: Recipe) -> list[dict[str, Any]]:
    foreign, section = recipe.foreign, "augments.rand_erase"
    if not (probability := foreign(f"{section}.prob")):
        return []
    ratio = foreign(f"{section}.ratio")
    if not 0 < ratio <= 1:
        raise foreign.problem(f"{section}.ratio", f"{show(ratio)}: expected more than 0 and at most 1")
    if foreign(f"{section}.mode") != "const":
        recipe.note("erased rectangles are filled with gray; basecls fills them with noise")
    if foreign(f"{section}.count") != 1:
        recipe.skip(f"{section}.count", "always one rectangle is erased")
    scale = foreign(f"{section}.scale_range")
    return [
        {"name": "RandomErasing", "p": probability, "scale": scale, "ratio": [ratio, round(1 / ratio, 6)], "value": 116}
    ]


def _mixes(recipe: Recipe) -> list[dict[str, Any]]:
    foreign, section = recipe.foreign, "augments.mixup"
    alphas = {name: foreign(f"{section}.{name}_alpha") for name in ("mixup", "cutmix")}
    per = lookup(PER)(foreign(f"{section}.mode"))
    mixes = [{"name": name, "alpha": alpha, "per": per} for name, alpha in alphas.items() if alpha > 0]
    if not mixes:
        return []
    if foreign(f"{section}.cutmix_minmax") is not None:
        recipe.skip(f"{section}.cutmix_minmax", "sizes follow from alpha")
    probability, switch = foreign(f"{section}.prob"), foreign(f"{section}.switch_prob")
    if len(mixes) == 1 and probability == 1:
        return mixes
    weights = {"weights": [round(1 - switch, 6), switch]} if len(mixes) == 2 else {}
    return [{"name": "one_of", "mixes": mixes, **weights, "probability": probability}]


# --- training ---------------------------------------------------------------------------------------------------------


def _training(recipe: Recipe, gpus: int) -> None:
    foreign = recipe.foreign
    recipe.convert("solver.optimizer", "optimizer.name", lookup(OPTIMIZERS))
    recipe.put("optimizer.lr", float(f"{foreign('solver.basic_lr') * gpus:.9g}"), "solver.basic_lr")
    _optimizer(recipe)
    _decay(recipe)
    _schedule(recipe)
    recipe.convert("solver.max_epoch", "train.length", duration_in("ep"))
    recipe.convert("log_every_n_iter", "train.log_every")
    recipe.convert("seed", "seed")
    recipe.convert("save_every_n_epoch", "checkpoint.every", lambda value: _period(value, foreign("solver.max_epoch")))
    recipe.convert(
        "save_every_n_epoch", "checkpoint.keep", lambda value: _checkpoints(foreign("solver.max_epoch"), value)
    )
    recipe.convert("eval_every_n_epoch", "evaluate.every", lambda value: _period(value, 0))
    if foreign("amp.enabled"):
        recipe.put("train.precision", "fp16", "amp.enabled")
    if step := _clipping(recipe):
        recipe.put("train.step", step, "solver.grad_clip.name")
    if foreign("model_ema.enabled"):
        _ema(recipe, gpus)
    _precise_bn(recipe, gpus)


def _optimizer(recipe: Recipe) -> None:
    name = recipe.foreign("solver.optimizer")
    if name in ("sgd", "lars"):
        recipe.convert("solver.momentum", "optimizer.momentum")
        recipe.convert("solver.nesterov", "optimizer.nesterov")
    else:
        recipe.convert("solver.betas", "optimizer.betas")
    if name in ("lamb", "lars"):
        recipe.convert("solver.always_adapt", "optimizer.always_adapt")
    if name == "lars":
        recipe.put("optimizer.trust_coefficient", 1.0)
        recipe.put("optimizer.adapt", "direction")
        recipe.put("optimizer.exclude_1d", False)


def _checkpoints(epochs: float, period: float) -> int:
    """Return the number of checkpoints of a training, all of which basecls keeps."""
    if period <= 0:
        raise ValueError(f"{show(period)} is not a number of epochs; expected more than 0")
    return max(1, math.ceil(epochs / period))


def _period(value: float, never: float) -> str:
    """Return a number of epochs as a duration; ``never`` replaces an infinite one."""
    return duration(never if value == math.inf else value, "ep")


def _decay(recipe: Recipe) -> None:
    """Convert the weight decay: a number, or pairs of a number and a kind of parameters, then the default.

    The first matching pair applies. ResMLPs have affine layers in place of norms, so pairs for norms match nothing.
    """
    foreign = recipe.foreign
    without_norms = str(foreign("model.name")).startswith("resmlp")
    value = foreign.untyped("solver.weight_decay")
    *pairs, default = value if isinstance(value, list) and value else [value]
    if isinstance(default, bool) or not isinstance(default, int | float):
        raise foreign.problem("solver.weight_decay", f"{show(value)}: expected a number, or pairs and a number")
    recipe.put("optimizer.weight_decay", default, "solver.weight_decay")
    rules: list[dict[str, Any]] = []
    for pair in reversed(pairs):
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], int | float):
            raise foreign.problem("solver.weight_decay", f"{show(pair)}: expected a number and a kind of parameters")
        parameters = PARAMETERS.get(str(pair[1]))
        if parameters is None:
            recipe.skip_part("solver.weight_decay", [pair[0], str(pair[1])], "see param_groups.rules: pattern")
        elif without_norms and parameters == {"kind": "norm"}:
            continue
        elif parameters | {"weight_decay": pair[0]} not in rules:
            rules.append(parameters | {"weight_decay": pair[0]})
    if rules:
        recipe.put("param_groups.rules", rules, "solver.weight_decay")


def _schedule(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name, min_factor = foreign("solver.lr_schedule"), foreign("solver.lr_min_factor")
    factor = foreign("solver.lr_decay_factor")
    schedules: Mapping[str, dict[str, Any]] = {
        "cosine": {"name": "cosine", "end": min_factor},
        "linear": {"name": "linear", "end": min_factor},
        "exp": {"name": "exponential", "gamma": factor},
        "rel_exp": {"name": "exponential", "end": min_factor},
    }
    if name == "step":
        steps = [duration(step, "ep") for step in foreign("solver.lr_decay_steps")]
        schedule = {"name": "multi_step", "milestones": steps, "gamma": factor}
    elif name in schedules:
        schedule = schedules[name]
    else:
        raise foreign.problem(
            "solver.lr_schedule", f"{show(name)} is not supported", f"supported: {', '.join(schedules)}, step"
        )
    recipe.put("schedule", schedule, "solver.lr_schedule", "solver.lr_min_factor")
    recipe.convert("solver.warmup_epochs", "schedule.warmup", duration_in("ep"))
    recipe.convert("solver.warmup_factor", "schedule.warmup_factor")
    recipe.put("schedule.interval", "epoch")
    recipe.put("schedule.warmup_rule", "whole")


def _clipping(recipe: Recipe) -> dict[str, Any]:
    foreign, section = recipe.foreign, "solver.grad_clip"
    name = foreign(f"{section}.name")
    if name is None:
        return {}
    if name == "norm":
        return {"name": "standard", "clip_norm": foreign(f"{section}.max_norm")}
    if name == "value":
        lower, upper = foreign(f"{section}.lower"), foreign(f"{section}.upper")
        if lower != -upper:
            raise foreign.problem(f"{section}.lower", f"{lower} to {upper} is not supported", "supported: -x to x")
        return {"name": "standard", "clip_value": upper}
    raise foreign.problem(f"{section}.name", f"{show(name)} is not supported", "supported: norm, value")


def pycls_decay(alpha: float, batch_size: int, epochs: float, every: int) -> float:
    """Return the decay of pycls' EMA of weights, whose average is about the same for any batch size and period.

    Example: ``pycls_decay(1e-5, 1024, 100, 32)`` is 0.9967232.
    """
    return max(0.0, 1 - alpha * batch_size / epochs * every)


def _ema(recipe: Recipe, gpus: int) -> None:
    foreign, section = recipe.foreign, "model_ema"
    recipe.convert(f"{section}.momentum", "ema.decay")
    recipe.convert(f"{section}.update_period", "ema.every")
    begin = foreign(f"{section}.start_epoch") or foreign("solver.warmup_epochs")
    recipe.put("ema.start", duration(begin, "ep"), f"{section}.start_epoch", "solver.warmup_epochs")
    if (alpha := foreign(f"{section}.alpha")) is not None:
        batch_size = foreign("batch_size") * gpus * foreign("solver.accumulation_steps")
        decay = pycls_decay(alpha, batch_size, foreign("solver.max_epoch"), foreign(f"{section}.update_period"))
        recipe.put("ema.decay", decay, f"{section}.alpha")
    recipe.put("ema.warmup", False)


def _precise_bn(recipe: Recipe, gpus: int) -> None:
    """Convert the recomputation of batch norm statistics; the number of samples becomes a number of batches."""
    foreign = recipe.foreign
    every, samples = foreign("bn.precise_every_n_epoch"), foreign("bn.num_samples_precise")
    if every == math.inf:
        return
    batches = max(1, int(samples / (foreign("batch_size") * gpus * foreign("solver.accumulation_steps"))))
    period = foreign("solver.max_epoch") if every == -1 else every
    hook = {"name": "precise_bn", "every": duration(period, "ep"), "batches": batches}
    recipe.put("hooks.precise_bn", hook, "bn.precise_every_n_epoch", "bn.num_samples_precise")
