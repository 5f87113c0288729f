"""basecls' configs, which are Python files, as configs of ours. They are read, not run.

Where a config says nothing, the value of its family (``ResNetConfig`` ...) or of basecls itself is written into the
recipe, not ours: :data:`DEFAULTS` and :data:`FAMILIES`.
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
from opabinia.migration.foreign_config import Foreign, leaves, planted, put
from opabinia.migration.recipe import Recipe, Reference, duration, lasting, one_of, pixels
from opabinia.migration.tables.basecls import DEFAULTS, FAMILIES, KINDS, MODELS, OPTIMIZERS, PER, PLAIN_DECAY, REASONS


def convert(file: Path, cards: int, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a config of basecls, with batch and learning rate of all cards in the place of those of each.

    Args:
        file: Python's text, with a class ``Cfg``.
        cards: on how many it was trained.
        overrides: ``solver.basic_lr=0.1``.

    Raises:
        ConfigError: it cannot be read, is not of basecls, or has values that cannot be taken over.
    """
    found = python_literals.read(file)
    if found.base not in FAMILIES:
        known = f"known are: {', '.join(FAMILIES)}"
        raise ConfigError(
            Problem(str(file), "", f"the class {show(found.base)}, which has the rest, is not known", allowed=known)
        )
    tree = _changed(found.tree, overrides)
    defaults = {**DEFAULTS, **FAMILIES[found.base]}
    recipe = Recipe(Foreign("basecls", str(file), dict(leaves(tree)), defaults, REASONS))
    for code in found.code:
        recipe.note(f"{code} is code, which is not run: basecls' default is in its place")
    if cards > 1:
        recipe.note(
            f"batch and learning rate are those of a card there: here they are those of {cards} cards (--cards)"
        )
    _network(recipe)
    _data(recipe, cards)
    _training(recipe, cards)
    recipe.finish()
    return recipe


def _changed(tree: Node, overrides: Sequence[str]) -> Node:
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(Problem(f"command line: {text[:80]}", "", "a change is written solver.basic_lr=0.1"))
        tree = put(tree, key.split("."), planted(yacs.literal(value), f"command line: {text[:80]}"))
    return tree


# --- the network ------------------------------------------------------------------------------------------------------


def _network(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.put("task.name", "classification")
    name = str(foreign("model.name"))
    known = [re.sub(pattern, ours, name) for pattern, ours in MODELS if re.fullmatch(pattern, name)]
    model = known[0] if known else recipe.variable("model", name, "model.name")
    if not known:
        recipe.note(f"model.name: timm has no {name}: say one of its models in vars.model")
    recipe.put("task.backbone", {"name": "timm", "model": model}, "model.name")
    size = foreign("preprocess.img_size")
    if name.startswith(("vit", "swin")) and not name.endswith(f"_{size}"):
        recipe.put("task.backbone.options", {"img_size": size}, "preprocess.img_size")
    _loss(recipe)
    pixels(
        recipe,
        *("preprocess.img_color_space", "preprocess.img_mean", "preprocess.img_std"),
        weights="weights of basecls want BGR (init.colours)",
    )
    if weights := foreign("weights"):
        recipe.put("init.weights", recipe.variable("weights", weights, "weights"))


def _loss(recipe: Recipe) -> None:
    losses = {"CrossEntropy": "cross_entropy", "BinaryCrossEntropy": "binary_cross_entropy"}
    recipe.take("loss.name", "task.loss.name", one_of(losses))
    if recipe.foreign("loss.name") == "BinaryCrossEntropy" and recipe.foreign("loss.label_smooth"):
        recipe.leave("loss.label_smooth", "basecls forgets it with this loss")
    else:
        recipe.take("loss.label_smooth", "task.loss.label_smoothing")


# --- data -------------------------------------------------------------------------------------------------------------


def _data(recipe: Recipe, cards: int) -> None:
    foreign = recipe.foreign
    if foreign("data.name") != "FolderLoader":
        recipe.leave("data.name", "see opabinia config list source")
    for split, ours in (("train", "train"), ("val", "val")):
        path = foreign(f"data.{split}_path")
        root = (
            recipe.variable(ours, path, f"data.{split}_path")
            if path
            else Reference(f"{recipe.variable('root', 'path/to/imagenet')}/{ours}")
        )
        recipe.put(f"data.{ours}.source", {"name": "image_folder", "root": root}, f"data.{split}_path")
    recipe.put("data.train.transforms", _augmentations(recipe), "augments.name")
    interpolation = foreign("augments.resize.interpolation")
    looking = {"name": "resize_and_crop", "size": foreign("test.img_size"), "crop": foreign("test.crop_pct")}
    recipe.put("data.val.transforms", [{**looking, "interpolation": interpolation}], "test.img_size", "test.crop_pct")
    each, steps = foreign("batch_size"), foreign("solver.accumulation_steps")
    recipe.put("data.batch_size", each * cards * steps, "batch_size", "solver.accumulation_steps")
    if steps > 1:
        recipe.put("train.micro_batch", each, "batch_size", "solver.accumulation_steps")
    recipe.take("data.num_workers", "data.workers")
    if mixes := _mixes(recipe):
        recipe.put("data.mix", mixes, "augments.mixup.mixup_alpha", "augments.mixup.cutmix_alpha")


def _augmentations(recipe: Recipe) -> list[dict[str, Any]]:
    foreign = recipe.foreign
    resize = "augments.resize"
    keys = {"scale": "scale_range", "ratio": "ratio_range", "interpolation": "interpolation"}
    crop = {"name": "RandomResizedCrop", "size": foreign("preprocess.img_size")}
    steps = [{**crop, **{ours: foreign(f"{resize}.{theirs}") for ours, theirs in keys.items()}}]
    return [*steps, {"name": "RandomHorizontalFlip"}, *_colours(recipe), *_erased(recipe)]


def _colours(recipe: Recipe) -> list[dict[str, Any]]:
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
        return steps + ([{"name": "lighting", "strength": strength}] if strength else [])
    if name == "AutoAugment":
        return [{"name": "timm_policy", "policy": "v0"}]
    if name == "RandAugment":
        return [{"name": "timm_policy", "policy": _rand_augment(recipe)}]
    known = "SimpleAugment, ColorAugment, AutoAugment and RandAugment are"
    raise foreign.problem("augments.name", f"{show(name)} is not known here", known)


def _rand_augment(recipe: Recipe) -> str:
    """As timm writes it, with operations that grow with the magnitude."""
    section = "augments.rand_aug"
    magnitude, std, chance, count = (
        recipe.foreign(f"{section}.{key}") for key in ("magnitude", "magnitude_std", "prob", "n_ops")
    )
    spread = "101" if std == math.inf else f"{std:g}"
    return f"rand-m{magnitude:g}-n{count}-p{chance:g}-mstd{spread}-inc1"


def _erased(recipe: Recipe) -> list[dict[str, Any]]:
    foreign, section = recipe.foreign, "augments.rand_erase"
    if not (chance := foreign(f"{section}.prob")):
        return []
    ratio = foreign(f"{section}.ratio")
    if not 0 < ratio <= 1:
        raise foreign.problem(f"{section}.ratio", f"{show(ratio)}: more than 0 and at most 1 is needed")
    if foreign(f"{section}.mode") != "const":
        recipe.note("erased rectangles are filled with grey here, with noise there")
    if foreign(f"{section}.count") != 1:
        recipe.leave(f"{section}.count", "one rectangle is erased here")
    scale = foreign(f"{section}.scale_range")
    return [{"name": "RandomErasing", "p": chance, "scale": scale, "ratio": [ratio, round(1 / ratio, 6)], "value": 116}]


def _mixes(recipe: Recipe) -> list[dict[str, Any]]:
    foreign, section = recipe.foreign, "augments.mixup"
    alphas = {name: foreign(f"{section}.{name}_alpha") for name in ("mixup", "cutmix")}
    per = one_of(PER)(foreign(f"{section}.mode"))
    mixes = [{"name": name, "alpha": alpha, "per": per} for name, alpha in alphas.items() if alpha > 0]
    if not mixes:
        return []
    if foreign(f"{section}.cutmix_minmax") is not None:
        recipe.leave(f"{section}.cutmix_minmax", "sizes follow from alpha here")
    chance, switch = foreign(f"{section}.prob"), foreign(f"{section}.switch_prob")
    if len(mixes) == 1 and chance == 1:
        return mixes
    weights = {"weights": [round(1 - switch, 6), switch]} if len(mixes) == 2 else {}
    return [{"name": "one_of", "mixes": mixes, **weights, "probability": chance}]


# --- training ---------------------------------------------------------------------------------------------------------


def _training(recipe: Recipe, cards: int) -> None:
    foreign = recipe.foreign
    recipe.take("solver.optimizer", "optimizer.name", one_of(OPTIMIZERS))
    rate = float(f"{foreign('solver.basic_lr') * cards:.9g}")
    recipe.put("optimizer.lr", rate, "solver.basic_lr")
    _optimizer(recipe)
    _decay(recipe)
    _schedule(recipe)
    recipe.take("solver.max_epoch", "train.length", lasting("ep"))
    recipe.take("log_every_n_iter", "train.log_every")
    recipe.take("seed", "seed")
    recipe.take("save_every_n_epoch", "checkpoint.every", lambda value: _period(value, foreign("solver.max_epoch")))
    recipe.take("eval_every_n_epoch", "evaluate.every", lambda value: _period(value, 0))
    if foreign("amp.enabled"):
        recipe.put("train.precision", "fp16", "amp.enabled")
    if step := _clipping(recipe):
        recipe.put("train.step", step, "solver.grad_clip.name")
    if foreign("model_ema.enabled"):
        _average(recipe)
    _norms(recipe, cards)


def _optimizer(recipe: Recipe) -> None:
    name = recipe.foreign("solver.optimizer")
    if name in ("sgd", "lars"):
        recipe.take("solver.momentum", "optimizer.momentum")
        recipe.take("solver.nesterov", "optimizer.nesterov")
    else:
        recipe.take("solver.betas", "optimizer.betas")
    if name in ("lamb", "lars"):
        recipe.take("solver.always_adapt", "optimizer.always_adapt")
    if name == "lars":
        recipe.put("optimizer.trust", 1.0)
        recipe.put("optimizer.adapt", "direction")
        recipe.put("optimizer.exclude_1d", False)


def _period(value: float, never: float) -> str:
    """A number of epochs; an infinite one is never."""
    return duration(never if value == math.inf else value, "ep")


def _decay(recipe: Recipe) -> None:
    """A number; or pairs of a number and what it is for, then a number for all others: the first that fits counts."""
    foreign = recipe.foreign
    value = foreign("solver.weight_decay")
    value = PLAIN_DECAY if value is None else value
    *pairs, usual = value if isinstance(value, list) else [value]
    if isinstance(usual, bool) or not isinstance(usual, int | float):
        raise foreign.problem("solver.weight_decay", f"{show(value)}: a number, or pairs and a number, are needed")
    recipe.put("optimizer.weight_decay", usual, "solver.weight_decay")
    rules: list[dict[str, Any]] = []
    for pair in reversed(pairs):
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], int | float):
            raise foreign.problem("solver.weight_decay", f"{show(pair)}: a number and what it is for are needed")
        kind = KINDS.get(str(pair[1]))
        if kind is None:
            recipe.leave_part("solver.weight_decay", [pair[0], str(pair[1])], "see groups.rules: pattern")
        elif {"kind": kind, "weight_decay": pair[0]} not in rules:
            rules.append({"kind": kind, "weight_decay": pair[0]})
    if rules:
        recipe.put("groups.rules", rules, "solver.weight_decay")


def _schedule(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name, least = foreign("solver.lr_schedule"), foreign("solver.lr_min_factor")
    factor = foreign("solver.lr_decay_factor")
    schedules: Mapping[str, dict[str, Any]] = {
        "cosine": {"name": "cosine", "end": least},
        "linear": {"name": "linear", "end": least},
        "exp": {"name": "exponential", "gamma": factor},
        "rel_exp": {"name": "exponential", "end": least},
    }
    if name == "step":
        steps = [duration(step, "ep") for step in foreign("solver.lr_decay_steps")]
        schedule = {"name": "multi_step", "milestones": steps, "gamma": factor}
    elif name in schedules:
        schedule = schedules[name]
    else:
        raise foreign.problem("solver.lr_schedule", f"{show(name)} is not known here", f"{', '.join(schedules)}, step")
    recipe.put("schedule", schedule, "solver.lr_schedule", "solver.lr_min_factor")
    recipe.take("solver.warmup_epochs", "schedule.warmup", lasting("ep"))
    recipe.take("solver.warmup_factor", "schedule.warmup_factor")
    recipe.put("schedule.by", "epoch")
    recipe.put("schedule.rule", "whole")


def _clipping(recipe: Recipe) -> dict[str, Any]:
    foreign, section = recipe.foreign, "solver.grad_clip"
    name = foreign(f"{section}.name")
    if name is None:
        return {}
    if name == "norm":
        return {"name": "standard", "clip_norm": foreign(f"{section}.max_norm")}
    if name == "value":
        return {"name": "standard", "clip_min": foreign(f"{section}.lower"), "clip_max": foreign(f"{section}.upper")}
    raise foreign.problem(f"{section}.name", f"{show(name)} is not known here", "norm and value are")


def _average(recipe: Recipe) -> None:
    foreign, section = recipe.foreign, "model_ema"
    recipe.take(f"{section}.momentum", "ema.momentum")
    recipe.take(f"{section}.update_period", "ema.every")
    begin = foreign(f"{section}.start_epoch") or foreign("solver.warmup_epochs")
    recipe.put("ema.start", duration(begin, "ep"), f"{section}.start_epoch", "solver.warmup_epochs")
    if (alpha := foreign(f"{section}.alpha")) is not None:
        recipe.put("ema.alpha", alpha, f"{section}.alpha")


def _norms(recipe: Recipe, cards: int) -> None:
    """Exact norms: batches there are those of all cards."""
    foreign = recipe.foreign
    every, samples = foreign("bn.precise_every_n_epoch"), foreign("bn.num_samples_precise")
    if every == math.inf:
        return
    batches = max(1, int(samples / (foreign("batch_size") * cards * foreign("solver.accumulation_steps"))))
    period = foreign("solver.max_epoch") if every == -1 else every
    hook = {"name": "precise_norm", "every": duration(period, "ep"), "batches": batches}
    recipe.put("hooks.precise_norm", hook, "bn.precise_every_n_epoch", "bn.num_samples_precise")
