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
from opabinia.config.importing import literals, yacs
from opabinia.config.importing.foreign import Foreign, leaves, planted, put
from opabinia.config.importing.literals import Name
from opabinia.config.importing.recipe import Recipe, Reference, Rule, duration, lasting, of_one, one_of
from opabinia.config.tree import Node

NORM = Name("NORM_TYPES")

DEFAULTS: dict[str, Any] = {
    "batch_size": 32,
    "weights": None,
    "preprocess.img_size": 224,
    "preprocess.img_color_space": "BGR",
    "preprocess.img_mean": [103.53, 116.28, 123.675],
    "preprocess.img_std": [57.375, 57.12, 58.395],
    "test.img_size": 224,
    "test.crop_pct": 0.875,
    "bn.precise_every_n_epoch": math.inf,
    "bn.num_samples_precise": 8192,
    "loss.name": "CrossEntropy",
    "loss.label_smooth": 0.0,
    "augments.name": "ColorAugment",
    "augments.resize.scale_range": [0.08, 1.0],
    "augments.resize.ratio_range": [3 / 4, 4 / 3],
    "augments.resize.interpolation": "bilinear",
    "augments.color_aug.brightness": 0.4,
    "augments.color_aug.contrast": 0.4,
    "augments.color_aug.saturation": 0.4,
    "augments.color_aug.lighting": 0.1,
    "augments.rand_aug.magnitude": 9,
    "augments.rand_aug.magnitude_std": 0.5,
    "augments.rand_aug.prob": 0.5,
    "augments.rand_aug.n_ops": 2,
    "augments.rand_erase.prob": 0.0,
    "augments.rand_erase.scale_range": [0.02, 1 / 3],
    "augments.rand_erase.ratio": 0.3,
    "augments.rand_erase.mode": "const",
    "augments.rand_erase.count": 1,
    "augments.mixup.mixup_alpha": 0.0,
    "augments.mixup.cutmix_alpha": 0.0,
    "augments.mixup.cutmix_minmax": None,
    "augments.mixup.prob": 1.0,
    "augments.mixup.switch_prob": 0.5,
    "augments.mixup.mode": "batch",
    "data.name": "FolderLoader",
    "data.train_path": None,
    "data.val_path": None,
    "data.num_workers": 6,
    "solver.optimizer": "sgd",
    "solver.basic_lr": 0.0125,
    "solver.lr_min_factor": 0.0,
    "solver.momentum": 0.9,
    "solver.weight_decay": None,
    "solver.nesterov": False,
    "solver.betas": [0.9, 0.999],
    "solver.always_adapt": False,
    "solver.max_epoch": 100,
    "solver.warmup_epochs": 5,
    "solver.warmup_factor": 0.1,
    "solver.lr_schedule": "step",
    "solver.lr_decay_factor": 0.1,
    "solver.lr_decay_steps": [30, 60, 90],
    "solver.grad_clip.name": None,
    "solver.grad_clip.max_norm": math.inf,
    "solver.grad_clip.lower": -math.inf,
    "solver.grad_clip.upper": math.inf,
    "solver.accumulation_steps": 1,
    "model_ema.enabled": False,
    "model_ema.momentum": 0.9999,
    "model_ema.update_period": 1,
    "model_ema.start_epoch": None,
    "model_ema.alpha": None,
    "amp.enabled": False,
    "log_every_n_iter": 20,
    "save_every_n_epoch": 10,
    "eval_every_n_epoch": 1,
    "seed": 42,
}
"""Those of ``BaseConfig``, of the keys that are read here."""

PLAIN_DECAY = 1e-4
"""``solver.weight_decay`` of ``BaseConfig``."""

_EVERY = {"bn.precise_every_n_epoch": 1}
_STRONG = {
    "loss.label_smooth": 0.1,
    "augments.name": "RandAugment",
    "augments.resize.interpolation": "bicubic",
    "augments.rand_erase.mode": "pixel",
}
_COSINE = {"solver.nesterov": True, "solver.lr_schedule": "cosine"}
_LIGHT = {"batch_size": 128, "loss.label_smooth": 0.1, "augments.color_aug.lighting": 0.0}
_TRANSFORMER = {
    **_STRONG,
    "batch_size": 64,
    "augments.rand_erase.prob": 0.25,
    "augments.mixup.mixup_alpha": 0.8,
    "augments.mixup.cutmix_alpha": 1.0,
    "solver.lr_min_factor": 0.01,
    "solver.warmup_factor": 0.001,
    "solver.lr_schedule": "cosine",
}
_AVERAGED = {"model_ema.enabled": True}
_ADAM = {**_TRANSFORMER, "solver.optimizer": "adamw", "solver.max_epoch": 300, "solver.warmup_epochs": 20}
_EFFNET = {
    **_EVERY,
    **_STRONG,
    **_COSINE,
    **_AVERAGED,
    "augments.rand_erase.prob": 0.25,
    "solver.basic_lr": 0.05,
    "solver.weight_decay": [[0, "bias"], [0, NORM], 1e-5],
    "solver.max_epoch": 350,
    "model_ema.momentum": 0.99998,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "BaseConfig": {},
    "ResNetConfig": {**_EVERY, **_COSINE, "solver.basic_lr": 0.025, "solver.weight_decay": 5e-5},
    "HRNetConfig": {**_EVERY, **_COSINE, "solver.basic_lr": 0.025, "solver.weight_decay": 5e-5},
    "VGGConfig": {
        **_EVERY,
        **_COSINE,
        "solver.basic_lr": 0.025,
        "solver.weight_decay": [[0, "bias"], [0, NORM], 5e-5],
    },
    "RegNetConfig": {
        **_EVERY,
        **_STRONG,
        **_COSINE,
        **_AVERAGED,
        "test.crop_pct": 224 / 232,
        "augments.rand_aug.magnitude": 7,
        "augments.rand_erase.prob": 0.1,
        "augments.mixup.mixup_alpha": 0.2,
        "augments.mixup.cutmix_alpha": 1.0,
        "solver.basic_lr": 0.025,
        "solver.weight_decay": [[0, "bias"], [0, NORM], 2e-5],
        "solver.max_epoch": 300,
        "model_ema.momentum": 0.99998,
    },
    "EffNetConfig": _EFFNET,
    "EffNetLiteConfig": {
        **_EFFNET,
        "augments.name": "ColorAugment",
        "augments.resize.interpolation": "bilinear",
        "augments.rand_erase.prob": 0.0,
    },
    "MBConfig": {
        **_EVERY,
        **_LIGHT,
        **_COSINE,
        "solver.basic_lr": 0.05,
        "solver.weight_decay": [[0, "bias"], [0, NORM], 4e-5],
        "solver.max_epoch": 150,
    },
    "SNetConfig": {
        **_EVERY,
        **_LIGHT,
        "solver.basic_lr": 0.0625,
        "solver.weight_decay": [[0, "bias"], [0, NORM], 4e-5],
        "solver.max_epoch": 240,
        "solver.warmup_epochs": 0,
        "solver.lr_schedule": "linear",
    },
    "RepVGGConfig": {
        **_EVERY,
        "batch_size": 64,
        "augments.name": "SimpleAugment",
        "solver.max_epoch": 120,
        "solver.lr_schedule": "cosine",
        "solver.basic_lr": 0.025,
        "solver.weight_decay": [[0, "bn"], [0, "bias"], 1e-4],
    },
    "ResMLPConfig": {
        **_TRANSFORMER,
        **_AVERAGED,
        "test.crop_pct": 0.9,
        "solver.optimizer": "lamb",
        "solver.basic_lr": 6.25e-4,
        "solver.weight_decay": [[0, "bias"], [0, "gamma"], [0, NORM], [0, Name("Affine")], 0.2],
        "solver.max_epoch": 400,
        "model_ema.momentum": 0.99996,
    },
    "ViTConfig": {
        **_ADAM,
        **_AVERAGED,
        "solver.basic_lr": 6.25e-5,
        "solver.weight_decay": [[0, "pos_embed"], [0, "cls_token"], [0, "bias"], [0, NORM], 0.05],
        "model_ema.momentum": 0.99996,
    },
    "SwinConfig": {
        **_ADAM,
        "solver.basic_lr": 1.25e-4,
        "solver.weight_decay": [[0, "abs_pos_embed"], [0, "rel_pos_bias_table"], [0, "bias"], [0, NORM], 0.05],
        "solver.grad_clip.name": "norm",
        "solver.grad_clip.max_norm": 5.0,
        "solver.accumulation_steps": 2,
    },
}
"""What the classes of ``basecls.configs`` change."""

REASONS = {
    "trainer_name": "there is one trainer",
    "hooks_name": "see opabinia config list hook",
    "output_dir": "--out",
    "num_classes": "follows from the data",
    "solver.name": "the optimizer is told by its name",
    "amp.dynamic_scale": "the scale is always found",
    "fastrun": "train.cudnn_benchmark",
    "dtr": "train.checkpoint_activations",
    "trace": "train.compile",
    "tb_every_n_iter": "with every line of the log",
    "augments.mixup.permute": "partners are drawn from all of the batch",
    "augments.mixup.calibrate_cutmix_lambda": "cutmix always does so",
    "augments.mixup.calibrate_mixup_lambda": "mixup has nothing to be calibrated",
}

MODELS: tuple[tuple[str, str], ...] = (
    (r"(resnet\d+d?|wide_resnet\d+_2|resnext50_32x4d|resnext101_(32x4d|32x8d|64x4d))", r"\1"),
    (r"se_(resnet\d+|resnext50_32x4d|resnext101_(32x4d|32x8d|64x4d))", r"se\1"),
    (r"(regnet[xy]_\d{3})", r"\1"),
    (r"effnet_b(\d)_lite", r"efficientnet_lite\1"),
    (r"effnet_(b\d|l2)", r"efficientnet_\1"),
    (r"effnetv2_([sml])", r"efficientnetv2_\1"),
    (r"effnetv2_(b\d)", r"tf_efficientnetv2_\1"),
    (r"hrnet_(w\d+|w18_small_v2)", r"hrnet_\1"),
    (r"hrnet_w18_small_v1", "hrnet_w18_small"),
    (r"mbnetv1_x100", "mobilenetv1_100"),
    (r"mbnetv2_x(035|050|075|100|140)", r"mobilenetv2_\1"),
    (r"mbnetv3_(large|small)_x(075|100)", r"mobilenetv3_\1_\2"),
    (r"resmlp_s(\d+)", r"resmlp_\1_224"),
    (r"resmlp_b24", "resmlp_big_24_224"),
    (r"(repvgg_[ab]\d(g4)?)", r"\1"),
    (r"vgg(\d+)_bn", r"vgg\1_bn"),
    (r"((vit|swin)_\w+)", r"\1"),
)
"""Names of networks, and timm's."""

OPTIMIZERS = {name: name for name in ("sgd", "adam", "adamw", "lamb", "lars")}
PER = {"batch": "batch", "pair": "pair", "elem": "sample"}


def convert(file: Path, cards: int, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a config of basecls, with batch and learning rate of all cards in the place of those of each.

    Args:
        file: Python's text, with a class ``Cfg``.
        cards: on how many it was trained.
        overrides: ``solver.basic_lr=0.1``.

    Raises:
        ConfigError: it cannot be read, is not of basecls, or has values that cannot be taken over.
    """
    found = literals.read(file)
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
    if (order := foreign("preprocess.img_color_space")) not in ("BGR", "RGB"):
        raise foreign.problem("preprocess.img_color_space", f"{show(order)} is not here", "BGR and RGB are")
    turn = -1 if order == "BGR" else 1
    recipe.take(Rule("preprocess.img_mean", "task.mean", lambda values: of_one(values)[::turn]))
    recipe.take(Rule("preprocess.img_std", "task.std", lambda values: of_one(values)[::turn]))
    if order == "BGR":
        recipe.note(
            "pictures are RGB here, so task.mean and task.std are turned; weights of basecls want BGR (init.colours)"
        )
    if weights := foreign("weights"):
        recipe.put("init.weights", recipe.variable("weights", weights, "weights"))


def _loss(recipe: Recipe) -> None:
    losses = {"CrossEntropy": "cross_entropy", "BinaryCrossEntropy": "binary_cross_entropy"}
    recipe.take(Rule("loss.name", "task.loss.name", one_of(losses)))
    if recipe.foreign("loss.name") == "BinaryCrossEntropy" and recipe.foreign("loss.label_smooth"):
        recipe.leave("loss.label_smooth", "basecls forgets it with this loss")
    else:
        recipe.take(Rule("loss.label_smooth", "task.loss.label_smoothing"))


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
    recipe.take(Rule("data.num_workers", "data.workers"))
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
    recipe.take(Rule("solver.optimizer", "optimizer.name", one_of(OPTIMIZERS)))
    rate = float(f"{foreign('solver.basic_lr') * cards:.9g}")
    recipe.put("optimizer.lr", rate, "solver.basic_lr")
    _optimizer(recipe)
    _decay(recipe)
    _schedule(recipe)
    recipe.take_all(
        [
            Rule("solver.max_epoch", "train.length", lasting("ep")),
            Rule("log_every_n_iter", "train.log_every"),
            Rule("seed", "seed"),
            Rule("save_every_n_epoch", "checkpoint.every", lambda value: _period(value, foreign("solver.max_epoch"))),
            Rule("eval_every_n_epoch", "evaluate.every", lambda value: _period(value, 0)),
        ]
    )
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
        recipe.take(Rule("solver.momentum", "optimizer.momentum"))
        recipe.take(Rule("solver.nesterov", "optimizer.nesterov"))
    else:
        recipe.take(Rule("solver.betas", "optimizer.betas"))
    if name in ("lamb", "lars"):
        recipe.take(Rule("solver.always_adapt", "optimizer.always_adapt"))
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


KINDS = {
    "bias": "bias",
    "bn": "norm",
    "NORM_TYPES": "norm",
    "pos_embed": "embedding",
    "cls_token": "embedding",
    "abs_pos_embed": "embedding",
}
"""What a weight decay is for, and the kind of parameters here."""


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
    recipe.take(Rule("solver.warmup_epochs", "schedule.warmup", lasting("ep")))
    recipe.take(Rule("solver.warmup_factor", "schedule.warmup_factor"))
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
    recipe.take(Rule(f"{section}.momentum", "ema.momentum"))
    recipe.take(Rule(f"{section}.update_period", "ema.every"))
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
