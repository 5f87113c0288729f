"""Conversion of VISSL's configs of self-supervised learning and of classifiers on its features.

For keys that a config does not set, the recipe gets VISSL's defaults (:data:`DEFAULTS`), not Opabinia's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.migration import hydra, vissl_transforms
from opabinia.migration import vissl_schedules as schedules
from opabinia.migration import vissl_tasks as tasks
from opabinia.migration import vissl_tools as tools
from opabinia.migration.foreign_config import ForeignConfig, SourceValue, leaves
from opabinia.migration.recipe import Recipe, Reference, duration, duration_in, lookup
from opabinia.migration.tables.vissl import DECAY, DEFAULTS, LR, MULTI_LABEL, OPTIMIZERS, REASONS, REFUSED_LOSSES
from opabinia.migration.vissl_trunks import Trunk


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
    written = {path.replace(".TRUNK.TRUNK_PARAMS.", ".TRUNK."): value for path, value in leaves(root)}
    if engine := tree.value.get("engine_name"):
        written["engine_name"] = SourceValue(engine.plain(), engine.where)
    foreign = ForeignConfig("VISSL", str(file), written, DEFAULTS, REASONS)
    recipe = Recipe(foreign)
    if "CRITERION" in foreign:
        raise ConfigError(Problem(str(file), "CRITERION", "this key is of an older VISSL; now it is LOSS"))
    if not any(section in foreign for section in ("DATA", "MODEL", "LOSS")):
        raise ConfigError(Problem(str(file), "", "has no key below DATA, MODEL or LOSS, as a config of VISSL has"))
    training = _transforms(recipe, "TRAIN")
    tool = tools.method(recipe)
    method = tool or _method(recipe, training)
    method(recipe)
    _trunk(recipe, training)
    _pixel_stats(recipe, training)
    if method is not tools.instance_retrieval:
        _data(recipe, training, method)
    if tool is None:
        _optimizer(recipe)
        _training(recipe)
    else:
        recipe.put("optimizer", "sgd")
        recipe.put("train.length", "1ep")
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
    if reason := REFUSED_LOSSES.get(name):
        raise foreign.problem("LOSS.name", f"{show(name)} is not supported: {reason}")
    if name not in tasks.METHODS:
        raise foreign.problem("LOSS.name", f"{show(name)} is not supported", f"supported: {', '.join(tasks.METHODS)}")
    if pretext := tasks.PRETEXTS.get((tasks.METHODS[name], training.pretext)):
        return pretext
    if training.pretext:
        raise foreign.problem("LOSS.name", f"{show(name)} is not supported with transforms of {training.pretext}")
    return tasks.METHODS[name]


# --- model ------------------------------------------------------------------------------------------------------------


def _trunk(recipe: Recipe, training: vissl_transforms.Views) -> None:
    foreign = recipe.foreign
    if (order := foreign("MODEL.INPUT_TYPE")) != "rgb":
        raise foreign.problem("MODEL.INPUT_TYPE", f"{show(order)} is not supported", "supported: rgb")
    trunk = Trunk(recipe, "MODEL.TRUNK", training)
    recipe.put("task.backbone", trunk.backbone(), "MODEL.TRUNK.NAME", *trunk.source_keys())
    if trunk.sharded or foreign("MODEL.FSDP_CONFIG.AUTO_SETUP_FSDP"):
        recipe.put("train.parallel", "fsdp", "MODEL.TRUNK.NAME")
    key = "MODEL.ACTIVATION_CHECKPOINTING.USE_ACTIVATION_CHECKPOINTING"
    if foreign(key):
        recipe.put("train.activation_checkpointing", True, key)
    _weights(recipe)


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
    labeled = method in LABELED
    source = _source(recipe, "TRAIN", labeled)
    if method in (tasks.deepcluster, tasks.npid, tasks.pirl):
        source = {"name": "indexed", "source": source}
    recipe.put("data.train.source", source, "DATA.TRAIN.DATASET_NAMES", "DATA.TRAIN.DATA_PATHS")
    steps = training.steps
    if method is tasks.npid and not training.num_views:
        steps = [{"name": "views", "views": [{"transforms": steps}]}]
    recipe.put("data.train.transforms", steps)
    _mixing(recipe)
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
        options = (
            {"stratified": False, "equal_classes": True} if foreign(f"{section}.IS_BALANCED") else {"stratified": False}
        )
        sampler = {"name": "subset", "num_samples": limit, **options, "subset_seed": foreign(f"{section}.SEED")}
        recipe.put("data.sampler", sampler, "DATA.TRAIN.DATA_LIMIT")


LABELED = (tasks.classification, tasks.distillation, *tools.TOOLS.values(), *tools.ENGINES.values())
"""Conversion functions of tasks that need labels."""


def _mixing(recipe: Recipe) -> None:
    """Convert mixup and cutmix; other collation follows from the views."""
    foreign, key = recipe.foreign, "DATA.TRAIN.COLLATE_FUNCTION"
    name = foreign(key)
    values = {path.rpartition(".")[2]: foreign(path) for path in foreign.keys(f"{key}_PARAMS")}
    if name not in ("cutmixup_collator", "mixup_collator") or recipe.config["task"]["name"] != "classification":
        if "mixup" in str(name):
            recipe.skip(key, "views of self-supervised learning are not mixed")
        return
    per = {"batch": "batch", "pair": "pair", "elem": "sample"}.get(values.get("mode", "batch"), "batch")
    alphas = {"mixup": values.get("mixup_alpha", 1.0), "cutmix": values.get("cutmix_alpha", 0.0)}
    mixes = [{"name": mix, "alpha": alpha, "per": per} for mix, alpha in alphas.items() if alpha]
    cutmix = values.get("switch_prob", 0.5)
    weights = {"weights": [round(1 - cutmix, 6), cutmix]} if len(mixes) == 2 else {}
    if mixes:
        mix = {"name": "one_of", "mixes": mixes, "probability": values.get("prob", 1.0), **weights}
        recipe.put("data.mix", [mix], key, *foreign.keys(f"{key}_PARAMS"))
    if smoothing := values.get("label_smoothing"):
        recipe.put("task.loss.label_smoothing", smoothing, f"{key}_PARAMS.label_smoothing")


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
    if labeled and str(names[0] if names else "").startswith(tuple(MULTI_LABEL)):
        recipe.note(
            f"images of {show(names)} have several labels: write a list of them (opabinia config list source table)"
        )
        return {"name": "table", "file": recipe.variable(folder, f"path/to/{folder}.csv"), "multi_label": True}
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
    if (constructor := foreign("OPTIMIZER.param_group_constructor")) == "lr_decay":
        recipe.convert("OPTIMIZER.layer_wise_lr_decay.decay", "param_groups.layer_decay")
    elif constructor == "dino":
        recipe.note("OPTIMIZER.param_group_constructor: dino does not decay norms and biases")
    elif constructor != "default":
        recipe.skip("OPTIMIZER.param_group_constructor", "see param_groups.rules")
    rules: list[dict[str, Any]] = [
        {"kind": kind, "weight_decay": 0.0} for kind, key in kinds.items() if not foreign(key) or constructor == "dino"
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
