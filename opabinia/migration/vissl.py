"""VISSL's configs of self-supervised learning and of classifiers behind it as configs of ours.

Where a config says nothing, VISSL's default is written into the recipe, not ours: :data:`DEFAULTS`.
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
from opabinia.migration.foreign_config import Foreign, leaves
from opabinia.migration.recipe import Recipe, Reference, duration, lasting, one_of
from opabinia.migration.tables.vissl import DECAY, DEFAULTS, LR, OPTIMIZERS, REASONS, RESNETS, TRANSFORMERS


def convert(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a config of VISSL.

    Args:
        file: its YAML.
        overrides: as behind Hydra's command, see :func:`opabinia.migration.hydra.read`.

    Raises:
        ConfigError: it cannot be read, is of a method or network that is not here, or has values that cannot be taken
            over.
    """
    tree = hydra.read(file, overrides)
    root = tree.value.get("config", tree)
    written = {re.sub(r"^MODEL\.TRUNK\.TRUNK_PARAMS\.", "MODEL.TRUNK.", path): one for path, one in leaves(root)}
    foreign = Foreign("VISSL", str(file), written, DEFAULTS, REASONS)
    recipe = Recipe(foreign)
    if "LOSS.name" not in foreign:
        old = ": it is CRITERION in this file, which is of an older VISSL" if "CRITERION" in foreign else ""
        raise ConfigError(Problem(str(file), "LOSS.name", f"is missing{old}"))
    training = _transforms(recipe, "TRAIN")
    method = _method(recipe, training)
    method(recipe)
    _trunk(recipe, training)
    _pixels(recipe, training)
    _data(recipe, training, method)
    _optimizer(recipe)
    _training(recipe)
    recipe.finish()
    return recipe


# --- the method -------------------------------------------------------------------------------------------------------


def _transforms(recipe: Recipe, split: str) -> vissl_transforms.Views:
    path = f"DATA.{split}.TRANSFORMS"
    try:
        found = vissl_transforms.read(recipe.foreign(path))
    except ValueError as error:
        raise recipe.foreign.problem(path, str(error)) from error
    for name in found.left:
        recipe.leave_part(path, name, "no transform here answers to it")
    return found


def _method(recipe: Recipe, training: vissl_transforms.Views) -> Callable[[Recipe], None]:
    """What fills in the task."""
    foreign = recipe.foreign
    name = foreign("LOSS.name")
    if "ShuffleImgPatches" in training.left:
        raise foreign.problem(
            "DATA.TRAIN.TRANSFORMS", "Jigsaw and PIRL are not here", f"methods: {', '.join(tasks.METHODS)}"
        )
    if name not in tasks.METHODS:
        raise foreign.problem("LOSS.name", f"{show(name)} is not taken over", f"taken over: {', '.join(tasks.METHODS)}")
    if tasks.METHODS[name] is tasks.classification and training.turned:
        return tasks.rotation
    return tasks.METHODS[name]


# --- the network ------------------------------------------------------------------------------------------------------


def _trunk(recipe: Recipe, training: vissl_transforms.Views) -> None:
    foreign = recipe.foreign
    name = foreign("MODEL.TRUNK.NAME")
    if name == "resnet":
        _resnet(recipe)
    elif name == "vision_transformer":
        _transformer(recipe, training)
    else:
        model: str | Reference | None = _of_timm(foreign, name)
        if model is None:
            model = recipe.variable("model", "resnet50", "MODEL.TRUNK.NAME")
            recipe.note(f"MODEL.TRUNK.NAME: {show(name)} is not known here: say a model of timm in vars.model")
        recipe.put("task.backbone", {"name": "timm", "model": model}, "MODEL.TRUNK.NAME")
    _weights(recipe)


def _of_timm(foreign: Foreign, name: str) -> str | None:
    """The name in timm of an EfficientNet or a RegNet that is called by its name."""
    if name == "efficientnet" and (found := re.search(r"b\d$", str(_version(foreign)).lower())):
        return f"efficientnet_{found[0]}"
    told = str(foreign("MODEL.TRUNK.REGNET.name"))
    if name == "regnet" and (found := re.fullmatch(r"regnet_([xy])_(\d+)(mf|gf)", told)):
        size = int(found[2]) // 100 if found[3] == "mf" else int(found[2]) * 10
        return f"regnet{found[1]}_{size:03}"
    return None


def _version(foreign: Foreign) -> Any:
    return foreign("MODEL.TRUNK.EFFICIENT_NETS.model_version") or foreign("MODEL.TRUNK.EFFICIENT_NETS.model_name")


def _resnet(recipe: Recipe) -> None:
    foreign, section = recipe.foreign, "MODEL.TRUNK.RESNETS"
    kind = tuple(foreign(f"{section}.{key}") for key in ("DEPTH", "GROUPS", "WIDTH_PER_GROUP"))
    if kind not in RESNETS or foreign(f"{section}.WIDTH_MULTIPLIER") != 1:
        wide = f"{show(list(kind))} times {foreign(f'{section}.WIDTH_MULTIPLIER')}"
        raise foreign.problem(
            f"{section}.DEPTH", f"no ResNet here has depth, groups and width {wide}", ", ".join(RESNETS.values())
        )
    norm, stride = foreign(f"{section}.NORM"), foreign(f"{section}.LAYER4_STRIDE")
    model = RESNETS[kind]
    backbone: dict[str, Any] = {"name": "timm", "model": model}
    if norm == "GroupNorm" or stride != 2:
        norms = {"norm": "group"} if norm == "GroupNorm" else {}
        backbone = {"name": "resnet", "model": model, "last_stride": stride, **norms}
    elif norm != "BatchNorm":
        recipe.leave(f"{section}.NORM", "ResNets have batch or group norms here")
    recipe.put(
        "task.backbone", backbone, *(f"{section}.{key}" for key in ("DEPTH", "GROUPS", "WIDTH_PER_GROUP", "NORM"))
    )


def _transformer(recipe: Recipe, training: vissl_transforms.Views) -> None:
    foreign, section = recipe.foreign, "MODEL.TRUNK.VISION_TRANSFORMERS"
    keys = ("HIDDEN_DIM", "NUM_LAYERS", "NUM_HEADS")
    size, patch = foreign(f"{section}.IMAGE_SIZE"), foreign(f"{section}.PATCH_SIZE")
    found = re.fullmatch(r"vit_([bl])_?(\d+)", str(foreign(f"{section}.name")))
    kind = tuple(foreign(f"{section}.{key}") for key in keys)
    if found:
        kind, patch = {"b": (768, 12, 12), "l": (1024, 24, 16)}[found[1]], int(found[2])
    if kind not in TRANSFORMERS:
        known = ", ".join(f"{show(list(one))} {name}" for one, name in TRANSFORMERS.items())
        raise foreign.problem(
            f"{section}.HIDDEN_DIM", f"no transformer here has width, depth and heads {show(list(kind))}", known
        )
    options = {"img_size": size, **({"dynamic_img_size": True} if training.number > 2 else {})}
    backbone = {
        "name": "timm",
        "model": f"vit_{TRANSFORMERS[kind]}_patch{patch}_224",
        "drop_path": foreign(f"{section}.DROP_PATH_RATE"),
        "options": options,
    }
    recipe.put("task.backbone", backbone, *(f"{section}.{key}" for key in (*keys, "PATCH_SIZE", "DROP_PATH_RATE")))


def _weights(recipe: Recipe) -> None:
    if file := recipe.foreign("MODEL.WEIGHTS_INIT.PARAMS_FILE"):
        weights = recipe.variable("weights", file, "MODEL.WEIGHTS_INIT.PARAMS_FILE")
        whole = not recipe.foreign("MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON")
        recipe.put("init", {"weights": weights} if whole else {"weights": weights, "into": "backbone"})


def _pixels(recipe: Recipe, training: vissl_transforms.Views) -> None:
    for name, values in (("mean", training.mean), ("std", training.std)):
        if values is not None:
            recipe.put(f"task.{name}", values, "DATA.TRAIN.TRANSFORMS")


# --- data -------------------------------------------------------------------------------------------------------------


def _data(recipe: Recipe, training: vissl_transforms.Views, method: Callable[[Recipe], None]) -> None:
    foreign = recipe.foreign
    world = foreign("DISTRIBUTED.NUM_NODES") * foreign("DISTRIBUTED.NUM_PROC_PER_NODE")
    labelled = method is tasks.classification
    source = _source(recipe, "TRAIN", labelled)
    if method in (tasks.deepcluster, tasks.npid):
        source = {"name": "numbered", "source": source}
    recipe.put("data.train.source", source, "DATA.TRAIN.DATASET_NAMES", "DATA.TRAIN.DATA_PATHS")
    steps = training.steps
    if method is tasks.npid and not training.number:
        steps = [{"name": "views", "views": [{"transforms": steps}]}]
    recipe.put("data.train.transforms", steps)
    if "DATA.TEST" in foreign and foreign("TEST_MODEL"):
        looking = _transforms(recipe, "TEST").steps
        recipe.put(
            "data.val", {"source": _source(recipe, "TEST", True), "transforms": looking}, "DATA.TEST.DATASET_NAMES"
        )
        batch = foreign("DATA.TEST.BATCHSIZE_PER_REPLICA") * world
        recipe.put("evaluate.batch_size", batch, "DATA.TEST.BATCHSIZE_PER_REPLICA", "DISTRIBUTED.NUM_NODES")
    batch = foreign("DATA.TRAIN.BATCHSIZE_PER_REPLICA") * world
    keys = ("DATA.TRAIN.BATCHSIZE_PER_REPLICA", "DISTRIBUTED.NUM_NODES", "DISTRIBUTED.NUM_PROC_PER_NODE")
    recipe.put("data.batch_size", batch, *keys)
    recipe.note(f"data.batch_size: {foreign(keys[0])} a card on {world} cards are {batch} over all processes")
    recipe.take("DATA.NUM_DATALOADER_WORKERS", "data.workers")
    recipe.take("DATA.TRAIN.DROP_LAST", "data.drop_last")
    if (limit := foreign("DATA.TRAIN.DATA_LIMIT")) > 0:
        section = "DATA.TRAIN.DATA_LIMIT_SAMPLING"
        part = {"keep_classes": foreign(f"{section}.IS_BALANCED"), "subset_seed": foreign(f"{section}.SEED")}
        recipe.put("data.sampler", {"name": "subset", "count": limit, **part}, "DATA.TRAIN.DATA_LIMIT")


def _source(recipe: Recipe, split: str, labelled: bool) -> dict[str, Any]:
    """A folder of classes where labels are needed or ImageNet is meant, else one of pictures."""
    foreign = recipe.foreign
    kinds = [*foreign(f"DATA.{split}.DATA_SOURCES"), "disk_folder"]
    paths, names = foreign(f"DATA.{split}.DATA_PATHS"), foreign(f"DATA.{split}.DATASET_NAMES")
    ours = {"TRAIN": "train", "TEST": "val"}[split]
    root: Reference
    if paths:
        root = recipe.variable(ours, paths[0], f"DATA.{split}.DATA_PATHS")
    elif names == ["imagenet1k_folder"]:
        root = Reference(f"{recipe.variable('root', 'path/to/imagenet')}/{ours}")
        labelled = True
    else:
        root = recipe.variable(ours, f"path/to/{ours}", f"DATA.{split}.DATASET_NAMES")
        recipe.note(f"where {show(names)} lies stands in VISSL's catalog: say it in vars.{ours}")
    if len(paths) > 1 or len(names) > 1:
        recipe.note(f"DATA.{split}: the first of several sets is taken; see the source joined")
    if kinds[0] != "disk_folder":
        recipe.note(f"DATA.{split}.DATA_SOURCES: {show(kinds[0])} is a folder here; see opabinia config list source")
    return {"name": "image_folder" if labelled else "images", "root": root}


# --- training ---------------------------------------------------------------------------------------------------------


def _optimizer(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name = foreign("OPTIMIZER.name")
    recipe.take("OPTIMIZER.name", "optimizer.name", one_of(OPTIMIZERS))
    scaled = foreign(f"{LR}.auto_lr_scaling.auto_scale")
    curve = schedules.learning_rate(recipe, scaled)
    if scaled:
        recipe.take(f"{LR}.auto_lr_scaling.base_value", "optimizer.lr")
        recipe.take(f"{LR}.auto_lr_scaling.base_lr_batch_size", "train.lr_batch_size")
        scaling = one_of({"linear": "linear", "sqrt": "sqrt"})
        recipe.take(f"{LR}.auto_lr_scaling.scaling_type", "train.lr_scaling", scaling)
    else:
        recipe.put("optimizer.lr", curve.peak, *foreign.keys(LR))
    recipe.put("schedule", curve.schedule, *foreign.keys(LR))
    if name == "sgd" or name == "lars":
        recipe.take("OPTIMIZER.momentum", "optimizer.momentum")
        recipe.take("OPTIMIZER.nesterov", "optimizer.nesterov")
    elif name.startswith("adam"):
        recipe.take("OPTIMIZER.betas", "optimizer.betas")
    if f"{DECAY}.name" in foreign:
        _decay(recipe)
    else:
        recipe.take("OPTIMIZER.weight_decay", "optimizer.weight_decay")
    if foreign("OPTIMIZER.use_larc") and name == "sgd":
        recipe.put("optimizer.name", "lars", "OPTIMIZER.use_larc")
        recipe.put("optimizer.exclude_1d", False, "OPTIMIZER.use_larc")
        recipe.take("OPTIMIZER.larc_config.trust_coefficient", "optimizer.trust")
        if foreign("OPTIMIZER.larc_config.clip"):
            recipe.leave("OPTIMIZER.larc_config.clip", "rates are scaled, not clipped")
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
        recipe.leave("OPTIMIZER.non_regularized_parameters", "see groups.rules: pattern")
    if rules:
        recipe.put("groups.rules", rules, *kinds.values(), "OPTIMIZER.non_regularized_parameters")


def _decay(recipe: Recipe) -> None:
    """A weight decay that follows a schedule."""
    foreign = recipe.foreign
    start, end = foreign.number(f"{DECAY}.start_value"), foreign.number(f"{DECAY}.end_value")
    shapes = {"cosine": "cosine", "linear": "linear"}
    name = foreign(f"{DECAY}.name")
    if name not in shapes or not start:
        raise foreign.problem(f"{DECAY}.name", f"{show(name)} from {start} is not taken over", "cosine and linear are")
    by = schedules.by(foreign(f"{DECAY}.update_interval", "epoch"))
    recipe.put("optimizer.weight_decay", start, f"{DECAY}.start_value")
    schedule = {"name": name, "start": 1.0, "end": schedules.ratio(end, start), "by": by}
    recipe.put("schedules.weight_decay", schedule, *foreign.keys(DECAY))


def _training(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.take("OPTIMIZER.num_epochs", "train.length", lasting("ep"))
    recipe.take("LOG_FREQUENCY", "train.log_every")
    recipe.take("CHECKPOINT.CHECKPOINT_FREQUENCY", "checkpoint.every", lasting("ep"))
    recipe.take("TEST_EVERY_NUM_EPOCH", "evaluate.every", lasting("ep"))
    recipe.take("SEED_VALUE", "seed")
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
