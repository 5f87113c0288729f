"""Conversion of VISSL's configs of self-supervised learning and of classifiers on its features.

For keys that a config does not set, the recipe gets VISSL's defaults (:data:`DEFAULTS`), not Opabinia's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.migration import hydra, vissl_transforms
from opabinia.migration import vissl_schedules as schedules
from opabinia.migration import vissl_tasks as tasks
from opabinia.migration.foreign_config import ForeignConfig, leaves
from opabinia.migration.recipe import Recipe, Reference, duration, duration_in, lookup
from opabinia.migration.tables.vissl import DECAY, DEFAULTS, LR, OPTIMIZERS, REASONS, RESNETS, TRANSFORMERS


def convert(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Convert a config of VISSL.

    Args:
        file: the YAML file.
        overrides: changes as in Hydra, see :func:`opabinia.migration.hydra.read`.

    Raises:
        ConfigError: the config cannot be read, or its method, its model or a value is not supported.
    """
    tree = hydra.read(file, overrides)
    root = tree.value.get("config", tree)
    written = {re.sub(r"^MODEL\.TRUNK\.TRUNK_PARAMS\.", "MODEL.TRUNK.", path): value for path, value in leaves(root)}
    foreign = ForeignConfig("VISSL", str(file), written, DEFAULTS, REASONS)
    recipe = Recipe(foreign)
    if "LOSS.name" not in foreign:
        reason = ": this file has CRITERION, a key of an older VISSL" if "CRITERION" in foreign else ""
        raise ConfigError(Problem(str(file), "LOSS.name", f"is missing{reason}"))
    training = _transforms(recipe, "TRAIN")
    method = _method(recipe, training)
    method(recipe)
    _trunk(recipe, training)
    _pixel_stats(recipe, training)
    _data(recipe, training, method)
    _optimizer(recipe)
    _training(recipe)
    recipe.finish()
    return recipe


# --- method -----------------------------------------------------------------------------------------------------------


def _transforms(recipe: Recipe, split: str) -> vissl_transforms.Views:
    path = f"DATA.{split}.TRANSFORMS"
    try:
        views = vissl_transforms.read(recipe.foreign(path))
    except ValueError as error:
        raise recipe.foreign.problem(path, str(error)) from error
    for name in views.unsupported:
        recipe.skip_part(path, name, "no equivalent transform")
    return views


def _method(recipe: Recipe, training: vissl_transforms.Views) -> Callable[[Recipe], None]:
    """Return the function that converts the task."""
    foreign = recipe.foreign
    name = foreign("LOSS.name")
    if "ShuffleImgPatches" in training.unsupported:
        raise foreign.problem(
            "DATA.TRAIN.TRANSFORMS", "Jigsaw and PIRL are not supported", f"supported: {', '.join(tasks.METHODS)}"
        )
    if name not in tasks.METHODS:
        raise foreign.problem("LOSS.name", f"{show(name)} is not supported", f"supported: {', '.join(tasks.METHODS)}")
    if tasks.METHODS[name] is tasks.classification and training.rotated:
        return tasks.rotation
    return tasks.METHODS[name]


# --- model ------------------------------------------------------------------------------------------------------------


def _trunk(recipe: Recipe, training: vissl_transforms.Views) -> None:
    foreign = recipe.foreign
    name = foreign("MODEL.TRUNK.NAME")
    if name == "resnet":
        _resnet(recipe)
    elif name == "vision_transformer":
        _transformer(recipe, training)
    else:
        model: str | Reference | None = _timm_model(foreign, name)
        if model is None:
            model = recipe.variable("model", "resnet50", "MODEL.TRUNK.NAME")
            recipe.note(f"MODEL.TRUNK.NAME: {show(name)} is not supported: set vars.model to a model of timm")
        recipe.put("task.backbone", {"name": "timm", "model": model}, "MODEL.TRUNK.NAME")
    _weights(recipe)


def _timm_model(foreign: ForeignConfig, name: str) -> str | None:
    """Return timm's name of an EfficientNet or RegNet that the config gives by name; else None."""
    if name == "efficientnet" and (match := re.search(r"b\d$", _efficientnet_name(foreign).lower())):
        return f"efficientnet_{match[0]}"
    regnet = str(foreign("MODEL.TRUNK.REGNET.name"))
    if name == "regnet" and (match := re.fullmatch(r"regnet_([xy])_(\d+)(mf|gf)", regnet)):
        size = int(match[2]) // 100 if match[3] == "mf" else int(match[2]) * 10
        return f"regnet{match[1]}_{size:03}"
    return None


def _efficientnet_name(foreign: ForeignConfig) -> str:
    section = "MODEL.TRUNK.EFFICIENT_NETS"
    return str(foreign(f"{section}.model_version") or foreign(f"{section}.model_name"))


def _resnet(recipe: Recipe) -> None:
    foreign, section = recipe.foreign, "MODEL.TRUNK.RESNETS"
    size = tuple(foreign(f"{section}.{key}") for key in ("DEPTH", "GROUPS", "WIDTH_PER_GROUP"))
    if size not in RESNETS or foreign(f"{section}.WIDTH_MULTIPLIER") != 1:
        sizes = f"{show(list(size))} times {foreign(f'{section}.WIDTH_MULTIPLIER')}"
        raise foreign.problem(
            f"{section}.DEPTH", f"no supported ResNet has depth, groups and width {sizes}", ", ".join(RESNETS.values())
        )
    norm, stride = foreign(f"{section}.NORM"), foreign(f"{section}.LAYER4_STRIDE")
    model = RESNETS[size]
    backbone: dict[str, Any] = {"name": "timm", "model": model}
    if norm == "GroupNorm" or stride != 2:
        norms = {"norm": "group"} if norm == "GroupNorm" else {}
        backbone = {"name": "resnet", "model": model, "last_stride": stride, **norms}
    elif norm != "BatchNorm":
        recipe.skip(f"{section}.NORM", "ResNets have batch or group norms")
    recipe.put(
        "task.backbone", backbone, *(f"{section}.{key}" for key in ("DEPTH", "GROUPS", "WIDTH_PER_GROUP", "NORM"))
    )


def _transformer(recipe: Recipe, training: vissl_transforms.Views) -> None:
    foreign, section = recipe.foreign, "MODEL.TRUNK.VISION_TRANSFORMERS"
    keys = ("HIDDEN_DIM", "NUM_LAYERS", "NUM_HEADS")
    image_size, patch = foreign(f"{section}.IMAGE_SIZE"), foreign(f"{section}.PATCH_SIZE")
    match = re.fullmatch(r"vit_([bl])_?(\d+)", str(foreign(f"{section}.name")))
    size = tuple(foreign(f"{section}.{key}") for key in keys)
    if match:
        size, patch = {"b": (768, 12, 12), "l": (1024, 24, 16)}[match[1]], int(match[2])
    if size not in TRANSFORMERS:
        supported = ", ".join(f"{show(list(known))} {name}" for known, name in TRANSFORMERS.items())
        raise foreign.problem(
            f"{section}.HIDDEN_DIM",
            f"no supported transformer has width, depth and heads {show(list(size))}",
            supported,
        )
    options = {"img_size": image_size, **({"dynamic_img_size": True} if training.num_views > 2 else {})}
    backbone = {
        "name": "timm",
        "model": f"vit_{TRANSFORMERS[size]}_patch{patch}_224",
        "drop_path": foreign(f"{section}.DROP_PATH_RATE"),
        "options": options,
    }
    recipe.put("task.backbone", backbone, *(f"{section}.{key}" for key in (*keys, "PATCH_SIZE", "DROP_PATH_RATE")))


def _weights(recipe: Recipe) -> None:
    if file := recipe.foreign("MODEL.WEIGHTS_INIT.PARAMS_FILE"):
        weights = recipe.variable("weights", file, "MODEL.WEIGHTS_INIT.PARAMS_FILE")
        only_backbone = recipe.foreign("MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON")
        recipe.put("init", {"weights": weights, **({"target_prefix": "backbone"} if only_backbone else {})})


def _pixel_stats(recipe: Recipe, training: vissl_transforms.Views) -> None:
    for name, values in (("mean", training.mean), ("std", training.std)):
        if values is not None:
            recipe.put(f"task.{name}", values, "DATA.TRAIN.TRANSFORMS")


# --- data -------------------------------------------------------------------------------------------------------------


def _data(recipe: Recipe, training: vissl_transforms.Views, method: Callable[[Recipe], None]) -> None:
    foreign = recipe.foreign
    world = foreign("DISTRIBUTED.NUM_NODES") * foreign("DISTRIBUTED.NUM_PROC_PER_NODE")
    labeled = method is tasks.classification
    source = _source(recipe, "TRAIN", labeled)
    if method in (tasks.deepcluster, tasks.npid):
        source = {"name": "indexed", "source": source}
    recipe.put("data.train.source", source, "DATA.TRAIN.DATASET_NAMES", "DATA.TRAIN.DATA_PATHS")
    steps = training.steps
    if method is tasks.npid and not training.num_views:
        steps = [{"name": "views", "views": [{"transforms": steps}]}]
    recipe.put("data.train.transforms", steps)
    if "DATA.TEST" in foreign and foreign("TEST_MODEL"):
        val_transforms = _transforms(recipe, "TEST").steps
        recipe.put(
            "data.val",
            {"source": _source(recipe, "TEST", True), "transforms": val_transforms},
            "DATA.TEST.DATASET_NAMES",
        )
        batch = foreign("DATA.TEST.BATCHSIZE_PER_REPLICA") * world
        recipe.put("evaluate.batch_size", batch, "DATA.TEST.BATCHSIZE_PER_REPLICA", "DISTRIBUTED.NUM_NODES")
    batch = foreign("DATA.TRAIN.BATCHSIZE_PER_REPLICA") * world
    keys = ("DATA.TRAIN.BATCHSIZE_PER_REPLICA", "DISTRIBUTED.NUM_NODES", "DISTRIBUTED.NUM_PROC_PER_NODE")
    recipe.put("data.batch_size", batch, *keys)
    recipe.note(f"data.batch_size: {foreign(keys[0])} samples per GPU on {world} GPUs are {batch} in total")
    recipe.convert("DATA.NUM_DATALOADER_WORKERS", "data.num_workers")
    recipe.convert("DATA.TRAIN.DROP_LAST", "data.drop_last")
    if (limit := foreign("DATA.TRAIN.DATA_LIMIT")) > 0:
        section = "DATA.TRAIN.DATA_LIMIT_SAMPLING"
        options = {"stratified": foreign(f"{section}.IS_BALANCED"), "subset_seed": foreign(f"{section}.SEED")}
        recipe.put("data.sampler", {"name": "subset", "num_samples": limit, **options}, "DATA.TRAIN.DATA_LIMIT")


def _source(recipe: Recipe, split: str, labeled: bool) -> dict[str, Any]:
    """Return an image folder with classes if labels are needed or for ImageNet, else one without."""
    foreign = recipe.foreign
    kinds = [*foreign(f"DATA.{split}.DATA_SOURCES"), "disk_folder"]
    paths, names = foreign(f"DATA.{split}.DATA_PATHS"), foreign(f"DATA.{split}.DATASET_NAMES")
    folder = {"TRAIN": "train", "TEST": "val"}[split]
    root: Reference
    if paths:
        root = recipe.variable(folder, paths[0], f"DATA.{split}.DATA_PATHS")
    elif names == ["imagenet1k_folder"]:
        root = Reference(f"{recipe.variable('root', 'path/to/imagenet')}/{folder}")
        labeled = True
    else:
        root = recipe.variable(folder, f"path/to/{folder}", f"DATA.{split}.DATASET_NAMES")
        recipe.note(f"the path of {show(names)} is in VISSL's catalog: set vars.{folder}")
    if len(paths) > 1 or len(names) > 1:
        recipe.note(f"DATA.{split}: only the first of several datasets is used; see the source concat")
    if kinds[0] != "disk_folder":
        recipe.note(
            f"DATA.{split}.DATA_SOURCES: {show(kinds[0])} is replaced by a folder; see opabinia config list source"
        )
    return {"name": "image_folder" if labeled else "images", "root": root}


# --- training ---------------------------------------------------------------------------------------------------------


def _optimizer(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name = foreign("OPTIMIZER.name")
    recipe.convert("OPTIMIZER.name", "optimizer.name", lookup(OPTIMIZERS))
    scaled = foreign(f"{LR}.auto_lr_scaling.auto_scale")
    curve = schedules.learning_rate(recipe, scaled)
    if scaled:
        recipe.convert(f"{LR}.auto_lr_scaling.base_value", "optimizer.lr")
        recipe.convert(f"{LR}.auto_lr_scaling.base_lr_batch_size", "train.lr_batch_size")
        scaling = lookup({"linear": "linear", "sqrt": "sqrt"})
        recipe.convert(f"{LR}.auto_lr_scaling.scaling_type", "train.lr_scaling", scaling)
    else:
        recipe.put("optimizer.lr", curve.peak, *foreign.keys(LR))
    recipe.put("schedule", curve.schedule, *foreign.keys(LR))
    if name == "sgd" or name == "lars":
        recipe.convert("OPTIMIZER.momentum", "optimizer.momentum")
        recipe.convert("OPTIMIZER.nesterov", "optimizer.nesterov")
    elif name.startswith("adam"):
        recipe.convert("OPTIMIZER.betas", "optimizer.betas")
    if f"{DECAY}.name" in foreign:
        _decay(recipe)
    else:
        recipe.convert("OPTIMIZER.weight_decay", "optimizer.weight_decay")
    if foreign("OPTIMIZER.use_larc") and name == "sgd":
        recipe.put("optimizer.name", "lars", "OPTIMIZER.use_larc")
        recipe.put("optimizer.exclude_1d", False, "OPTIMIZER.use_larc")
        recipe.convert("OPTIMIZER.larc_config.trust_coefficient", "optimizer.trust_coefficient")
        if foreign("OPTIMIZER.larc_config.clip"):
            recipe.skip("OPTIMIZER.larc_config.clip", "learning rates are scaled, not clipped")
    _groups(recipe)


def _groups(recipe: Recipe) -> None:
    foreign = recipe.foreign
    kinds = {"norm": "OPTIMIZER.regularize_bn", "bias": "OPTIMIZER.regularize_bias"}
    rules: list[dict[str, Any]] = [
        {"kind": kind, "weight_decay": 0.0} for kind, key in kinds.items() if not foreign(key)
    ]
    names = foreign("OPTIMIZER.non_regularized_parameters")
    if any("pos_embed" in str(name) or "class_token" in str(name) or "cls_token" in str(name) for name in names):
        rules.append({"kind": "embedding", "weight_decay": 0.0})
    elif names:
        recipe.skip("OPTIMIZER.non_regularized_parameters", "see param_groups.rules: pattern")
    if rules:
        recipe.put("param_groups.rules", rules, *kinds.values(), "OPTIMIZER.non_regularized_parameters")


def _decay(recipe: Recipe) -> None:
    """Convert a weight decay schedule."""
    foreign = recipe.foreign
    start, end = foreign.number(f"{DECAY}.start_value"), foreign.number(f"{DECAY}.end_value")
    shapes = {"cosine": "cosine", "linear": "linear"}
    name = foreign(f"{DECAY}.name")
    if name not in shapes or not start:
        raise foreign.problem(
            f"{DECAY}.name", f"{show(name)} from {start} is not supported", "supported: cosine, linear"
        )
    interval = schedules.interval(foreign(f"{DECAY}.update_interval", "epoch"))
    recipe.put("optimizer.weight_decay", start, f"{DECAY}.start_value")
    schedule = {"name": name, "start": 1.0, "end": schedules.ratio(end, start), "interval": interval}
    recipe.put("schedules.weight_decay", schedule, *foreign.keys(DECAY))


def _training(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.convert("OPTIMIZER.num_epochs", "train.length", duration_in("ep"))
    recipe.convert("LOG_FREQUENCY", "train.log_every")
    recipe.convert("CHECKPOINT.CHECKPOINT_FREQUENCY", "checkpoint.every", duration_in("ep"))
    recipe.convert("TEST_EVERY_NUM_EPOCH", "evaluate.every", duration_in("ep"))
    recipe.convert("SEED_VALUE", "seed")
    if foreign("MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN"):
        recipe.put("train.sync_batch_norm", True, "MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN")
    if foreign("MODEL.AMP_PARAMS.USE_AMP"):
        recipe.put("train.precision", "fp16", "MODEL.AMP_PARAMS.USE_AMP")
    if foreign("MODEL.GRAD_CLIP.USE_GRAD_CLIP"):
        section = "MODEL.GRAD_CLIP"
        step = {
            "name": "standard",
            "clip_norm": foreign(f"{section}.MAX_NORM"),
            "clip_norm_type": foreign(f"{section}.NORM_TYPE"),
        }
        recipe.put("train.step", step, f"{section}.MAX_NORM", f"{section}.NORM_TYPE")
    if foreign("MODEL.CUDA_CACHE.CLEAR_CUDA_CACHE"):
        every = duration(foreign("MODEL.CUDA_CACHE.CLEAR_FREQ"), "it")
        recipe.put("hooks.empty_cache", {"name": "empty_cache", "every": every}, "MODEL.CUDA_CACHE.CLEAR_FREQ")
