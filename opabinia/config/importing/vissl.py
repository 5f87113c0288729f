"""VISSL's configs of self-supervised learning and of classifiers behind it as configs of ours.

Where a config says nothing, VISSL's default is written into the recipe, not ours: :data:`DEFAULTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.importing import hydra, views
from opabinia.config.importing.foreign import Foreign, leaves
from opabinia.config.importing.recipe import Recipe, Reference, Rule, duration, lasting, one_of

LR = "OPTIMIZER.param_schedulers.lr"
DECAY = "OPTIMIZER.param_schedulers.weight_decay"

DEFAULTS: dict[str, Any] = {
    "LOG_FREQUENCY": 10,
    "TEST_MODEL": True,
    "TEST_EVERY_NUM_EPOCH": 1,
    "SEED_VALUE": 0,
    "DATA.NUM_DATALOADER_WORKERS": 4,
    **{
        f"DATA.{split}.{key}": value
        for split in ("TRAIN", "TEST")
        for key, value in {
            "DATASET_NAMES": ["imagenet1k_folder"],
            "DATA_SOURCES": [],
            "DATA_PATHS": [],
            "BATCHSIZE_PER_REPLICA": 256,
            "TRANSFORMS": [],
            "DROP_LAST": False,
            "DATA_LIMIT": -1,
            "DATA_LIMIT_SAMPLING.SEED": 0,
            "DATA_LIMIT_SAMPLING.IS_BALANCED": False,
        }.items()
    },
    "MODEL.TRUNK.NAME": "resnet",
    "MODEL.TRUNK.RESNETS.DEPTH": 50,
    "MODEL.TRUNK.RESNETS.GROUPS": 1,
    "MODEL.TRUNK.RESNETS.WIDTH_PER_GROUP": 64,
    "MODEL.TRUNK.RESNETS.WIDTH_MULTIPLIER": 1,
    "MODEL.TRUNK.RESNETS.NORM": "BatchNorm",
    "MODEL.TRUNK.RESNETS.LAYER4_STRIDE": 2,
    "MODEL.TRUNK.VISION_TRANSFORMERS.IMAGE_SIZE": 224,
    "MODEL.TRUNK.VISION_TRANSFORMERS.PATCH_SIZE": 16,
    "MODEL.TRUNK.VISION_TRANSFORMERS.NUM_LAYERS": 12,
    "MODEL.TRUNK.VISION_TRANSFORMERS.NUM_HEADS": 12,
    "MODEL.TRUNK.VISION_TRANSFORMERS.HIDDEN_DIM": 768,
    "MODEL.TRUNK.VISION_TRANSFORMERS.DROP_PATH_RATE": 0.0,
    "MODEL.HEAD.PARAMS": [],
    "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP": [],
    "MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON": False,
    "MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY": False,
    "MODEL.FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP": [],
    "MODEL.WEIGHTS_INIT.PARAMS_FILE": "",
    "MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN": False,
    "MODEL.AMP_PARAMS.USE_AMP": False,
    "MODEL.GRAD_CLIP.USE_GRAD_CLIP": False,
    "MODEL.GRAD_CLIP.NORM_TYPE": 2.0,
    "MODEL.GRAD_CLIP.MAX_NORM": 1.0,
    "MODEL.CUDA_CACHE.CLEAR_CUDA_CACHE": False,
    "MODEL.CUDA_CACHE.CLEAR_FREQ": 100,
    "LOSS.name": "CrossEntropyLoss",
    "LOSS.simclr_info_nce_loss.temperature": 0.1,
    "LOSS.multicrop_simclr_info_nce_loss.temperature": 0.1,
    "LOSS.moco_loss.queue_size": 65536,
    "LOSS.moco_loss.momentum": 0.999,
    "LOSS.moco_loss.temperature": 0.2,
    "LOSS.swav_loss.temperature": 0.1,
    "LOSS.swav_loss.epsilon": 0.05,
    "LOSS.swav_loss.num_iters": 3,
    "LOSS.swav_loss.crops_for_assign": [0, 1],
    "LOSS.swav_loss.temp_hard_assignment_iters": 0,
    "LOSS.swav_loss.queue.queue_length": 0,
    "LOSS.swav_loss.queue.start_iter": 0,
    "LOSS.deepclusterv2_loss.temperature": 0.1,
    "LOSS.deepclusterv2_loss.num_clusters": [3000, 3000, 3000],
    "LOSS.deepclusterv2_loss.kmeans_iters": 10,
    "LOSS.deepclusterv2_loss.memory_params.crops_for_mb": [0],
    "LOSS.dino_loss.momentum": 0.996,
    "LOSS.dino_loss.student_temp": 0.1,
    "LOSS.dino_loss.teacher_temp_min": 0.04,
    "LOSS.dino_loss.teacher_temp_max": 0.07,
    "LOSS.dino_loss.teacher_temp_warmup_iters": 37500,
    "LOSS.dino_loss.ema_center": 0.9,
    "LOSS.barlow_twins_loss.lambda_": 0.0051,
    "LOSS.barlow_twins_loss.scale_loss": 0.024,
    "LOSS.nce_loss_with_memory.loss_type": "nce",
    "LOSS.nce_loss_with_memory.temperature": 0.07,
    "LOSS.nce_loss_with_memory.negative_sampling_params.num_negatives": 16000,
    "LOSS.nce_loss_with_memory.memory_params.momentum": 0.5,
    "LOSS.cross_entropy_multiple_output_single_target.label_smoothing": 0.0,
    "OPTIMIZER.name": "sgd",
    "OPTIMIZER.use_larc": False,
    "OPTIMIZER.larc_config.clip": False,
    "OPTIMIZER.larc_config.trust_coefficient": 0.001,
    "OPTIMIZER.weight_decay": 0.0001,
    "OPTIMIZER.momentum": 0.9,
    "OPTIMIZER.nesterov": False,
    "OPTIMIZER.num_epochs": 90,
    "OPTIMIZER.betas": [0.9, 0.999],
    "OPTIMIZER.regularize_bn": False,
    "OPTIMIZER.regularize_bias": True,
    "OPTIMIZER.non_regularized_parameters": [],
    f"{LR}.auto_lr_scaling.auto_scale": False,
    f"{LR}.auto_lr_scaling.base_value": 0.1,
    f"{LR}.auto_lr_scaling.base_lr_batch_size": 256,
    f"{LR}.auto_lr_scaling.scaling_type": "linear",
    f"{LR}.name": "multistep",
    f"{LR}.update_interval": "epoch",
    f"{LR}.values": [0.1, 0.01, 0.001],
    f"{LR}.milestones": [30, 60],
    f"{LR}.schedulers": [],
    f"{LR}.interval_scaling": [],
    f"{LR}.lengths": [],
    f"{LR}.start_value": 0.1,
    f"{LR}.end_value": 0.0,
    f"{LR}.value": 0.1,
    "CHECKPOINT.CHECKPOINT_FREQUENCY": 1,
    "DISTRIBUTED.NUM_NODES": 1,
    "DISTRIBUTED.NUM_PROC_PER_NODE": 8,
}
"""VISSL's defaults, of the keys that are read here."""

_DATA_REASONS = {
    "LABEL_TYPE": "tasks know whether they look at labels",
    "LABEL_SOURCES": "the source has its labels",
    "LABEL_PATHS": "the source has its labels",
    "COLLATE_FUNCTION": "views say how samples become batches; see data.mix for mixup",
    "COLLATE_FUNCTION_PARAMS": "see data.mix",
    "MMAP_MODE": "lists are read once",
    "COPY_TO_LOCAL_DISK": "nothing copies data here",
    "COPY_DESTINATION_DIR": "nothing copies data here",
    "ENABLE_QUEUE_DATASET": "data.on_error: skip",
    "DEFAULT_GRAY_IMG_SIZE": "data.on_error: skip leaves broken pictures out",
}
REASONS = {
    "VERSION": "of VISSL's own keys",
    "engine_name": "of VISSL's own keys",
    "VERBOSE": "the log is of one kind",
    "TEST_ONLY": "opabinia eval",
    "HOOKS": "the journal has times, and tensorboard is written; see opabinia config list hook",
    "TENSORBOARD_SETUP": "tensorboard is written",
    "MONITOR_PERF_STATS": "the journal has times",
    "ROLLING_BTIME_FREQ": "the journal has times",
    "MULTI_PROCESSING_METHOD": "workers are forked",
    "METERS": "the task has its scores",
    "TRAINER": "there is one step, train.step",
    "MACHINE": "train.device; auto takes a GPU where there is one",
    "DISTRIBUTED": "opabinia train --nproc, --nnodes",
    "SLURM": "SLURM's variables are read",
    "CHECKPOINT": "--out, --resume and checkpoint.every",
    **{f"DATA.{split}.{key}": why for split in ("TRAIN", "TEST") for key, why in _DATA_REASONS.items()},
    "DATA.TEST.DROP_LAST": "an evaluation sees every sample once",
    "MODEL.SYNC_BN_CONFIG": "norms take their statistics over all processes",
    "MODEL.AMP_PARAMS": "train.precision says it all",
    "MODEL.WEIGHTS_INIT": "init knows VISSL's names and tells what it did with them",
    "MODEL.TRUNK.RESNETS.ZERO_INIT_RESIDUAL": "timm begins so",
    "MODEL.TRUNK.VISION_TRANSFORMERS.MLP_DIM": "follows from the model",
    "MODEL.TRUNK.VISION_TRANSFORMERS.CLASSIFIER": "the class token, as timm has it",
    "MODEL.TRUNK.VISION_TRANSFORMERS.QKV_BIAS": "timm's have biases",
    "MODEL.FEATURE_EVAL_SETTINGS": "evaluate.measures and the hook freeze",
    "MODEL.SINGLE_PASS_EVERY_CROP": "views of one size go through the network together",
    "LOSS.swav_loss.normalize_last_layer": "prototypes are always normalised",
    "LOSS.swav_loss.use_double_precision": "the assignment is computed in the precision it needs",
    "LOSS.simclr_info_nce_loss.buffer_params": "follows from the task and the batch",
    "LOSS.multicrop_simclr_info_nce_loss.buffer_params": "follows from the task and the batch",
    "LOSS.nce_loss_with_memory.memory_params": "follows from the data",
    "LOSS.nce_loss_with_memory.norm_embedding": "vectors are normalised",
    "LOSS.deepclusterv2_loss.memory_params": "follows from the task",
    "OPTIMIZER.larc_config": "of optimizer lars: see there",
    "OPTIMIZER.param_group_constructor": "groups.rules say it",
}
_INFERRED = {
    "swav_loss": ("embedding_dim", "num_crops", "num_prototypes", "output_dir"),
    "deepclusterv2_loss": ("num_crops", "num_train_samples", "BATCHSIZE_PER_REPLICA", "DROP_LAST"),
    "dino_loss": ("output_dim", "crops_for_teacher", "normalize_last_layer"),
    "moco_loss": ("embedding_dim",),
    "barlow_twins_loss": ("embedding_dim",),
    "nce_loss_with_memory": ("num_train_samples",),
}
REASONS |= {f"LOSS.{loss}.{key}": "follows from data and task" for loss, keys in _INFERRED.items() for key in keys}

RESNETS = {
    **{(depth, 1, 64): f"resnet{depth}" for depth in (18, 34, 50, 101, 152)},
    (50, 32, 4): "resnext50_32x4d",
    **{(101, 32, width): f"resnext101_32x{width}d" for width in (4, 8, 16, 32)},
}
TRANSFORMERS = {(192, 12, 3): "tiny", (384, 12, 6): "small", (768, 12, 12): "base", (1024, 24, 16): "large"}
OPTIMIZERS = {"sgd": "sgd", "adam": "adam", "adamw": "adamw", "adamw_mt": "adamw", "rmsprop": "rmsprop", "lars": "lars"}
STAGES = {f"res{number}": f"backbone.model.layer{number - 1}" for number in range(2, 6)}
"""Their names of a ResNet's stages, and ours."""


def convert(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a config of VISSL.

    Args:
        file: its YAML.
        overrides: as behind Hydra's command, see :func:`opabinia.config.importing.hydra.read`.

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


def _transforms(recipe: Recipe, split: str) -> views.Views:
    path = f"DATA.{split}.TRANSFORMS"
    try:
        found = views.read(recipe.foreign(path))
    except ValueError as error:
        raise recipe.foreign.problem(path, str(error)) from error
    for name in found.left:
        recipe.leave_part(path, name, "no transform here answers to it")
    return found


def _method(recipe: Recipe, training: views.Views) -> Callable[[Recipe], None]:
    """What fills in the task."""
    foreign = recipe.foreign
    name = foreign("LOSS.name")
    if "ShuffleImgPatches" in training.left:
        raise foreign.problem("DATA.TRAIN.TRANSFORMS", "Jigsaw and PIRL are not here", f"methods: {', '.join(METHODS)}")
    if name not in METHODS:
        raise foreign.problem("LOSS.name", f"{show(name)} is not taken over", f"taken over: {', '.join(METHODS)}")
    if METHODS[name] is _classification and training.turned:
        return _rotation
    return METHODS[name]


def _simclr(recipe: Recipe) -> None:
    recipe.put("task.name", "simclr", "LOSS.name")
    recipe.take(Rule(f"LOSS.{recipe.foreign('LOSS.name')}.temperature", "task.temperature"))
    _projector(recipe, "hidden", "projection", "layers")


def _moco(recipe: Recipe) -> None:
    recipe.put("task.name", "moco", "LOSS.name")
    recipe.take(Rule("LOSS.moco_loss.queue_size", "task.queue"))
    recipe.take(Rule("LOSS.moco_loss.momentum", "task.momentum"))
    recipe.take(Rule("LOSS.moco_loss.temperature", "task.temperature"))
    _projector(recipe, "hidden", "projection")
    recipe.note("VISSL shuffles samples over cards before the teacher's norms; here they are seen as they come")


def _swav(recipe: Recipe) -> None:
    foreign, loss = recipe.foreign, "LOSS.swav_loss"
    recipe.put("task.name", "swav", "LOSS.name")
    recipe.take_all(
        [
            Rule(f"{loss}.temperature", "task.temperature"),
            Rule(f"{loss}.epsilon", "task.epsilon"),
            Rule(f"{loss}.num_iters", "task.iterations"),
            Rule(f"{loss}.crops_for_assign", "task.assign", len),
            Rule(f"{loss}.temp_hard_assignment_iters", "task.hard", lasting("it")),
        ]
    )
    head = _heads(recipe, "swav_head")
    if head:
        _dimensions(recipe, head[0].get("dims"), "hidden", "projection")
        if clusters := head[0].get("num_clusters"):
            recipe.put("task.prototypes", clusters, "MODEL.HEAD.PARAMS")
    if length := foreign(f"{loss}.queue.queue_length"):
        recipe.put("task.queue.length", length, f"{loss}.queue.queue_length")
        recipe.take(Rule(f"{loss}.queue.start_iter", "task.queue.start", lasting("it")))
    _frozen(recipe, "task.freeze")


def _deepcluster(recipe: Recipe) -> None:
    loss = "LOSS.deepclusterv2_loss"
    recipe.put("task.name", "deepcluster", "LOSS.name")
    recipe.take_all(
        [
            Rule(f"{loss}.temperature", "task.temperature"),
            Rule(f"{loss}.num_clusters", "task.prototypes"),
            Rule(f"{loss}.kmeans_iters", "task.iterations"),
            Rule(f"{loss}.memory_params.crops_for_mb", "task.assign", len),
        ]
    )
    _projector(recipe, "hidden", "projection")


def _dino(recipe: Recipe) -> None:
    loss = "LOSS.dino_loss"
    recipe.put("task.name", "dino", "LOSS.name")
    recipe.take_all(
        [
            Rule(f"{loss}.momentum", "task.momentum"),
            Rule(f"{loss}.student_temp", "task.temperature"),
            Rule(f"{loss}.teacher_temp_max", "task.teacher_temperature"),
            Rule(f"{loss}.teacher_temp_min", "task.first_teacher_temperature"),
            Rule(f"{loss}.teacher_temp_warmup_iters", "task.teacher_warmup", lasting("it")),
            Rule(f"{loss}.ema_center", "task.centre_momentum"),
        ]
    )
    head = _heads(recipe, "dino_head")
    if head:
        source = "MODEL.HEAD.PARAMS"
        recipe.put("task.norm_last_layer", bool(head[0].get("normalize_last_layer", True)), source)
        recipe.put("task.head_norm", bool(head[0].get("use_bn", False)), source)
        clusters = head[0].get("num_clusters")
        if isinstance(clusters, list) and len(clusters) == 1:
            recipe.put("task.outputs", clusters[0], source)
    _frozen(recipe, "task.freeze_last_layer")


def _barlow_twins(recipe: Recipe) -> None:
    recipe.put("task.name", "barlow_twins", "LOSS.name")
    recipe.take(Rule("LOSS.barlow_twins_loss.lambda_", "task.off_diagonal"))
    recipe.take(Rule("LOSS.barlow_twins_loss.scale_loss", "task.scale"))
    recipe.put("task.normalize", "joint")
    recipe.note("task.normalize: joint is VISSL's way, per_view the paper's")
    _projector(recipe, "hidden", "projection", "layers")


def _npid(recipe: Recipe) -> None:
    loss = "LOSS.nce_loss_with_memory"
    recipe.put("task.name", "npid", "LOSS.name")
    recipe.take_all(
        [
            Rule(f"{loss}.loss_type", "task.loss", one_of({"nce": "nce", "cross_entropy": "info_nce"})),
            Rule(f"{loss}.negative_sampling_params.num_negatives", "task.negatives"),
            Rule(f"{loss}.temperature", "task.temperature"),
            Rule(f"{loss}.memory_params.momentum", "task.momentum"),
        ]
    )
    _projector(recipe, "", "projection")


def _rotation(recipe: Recipe) -> None:
    recipe.put("task.name", "rotation", "LOSS.name", "DATA.TRAIN.TRANSFORMS")
    recipe.note(
        "all four turns of an image are in a batch here, VISSL turns each once: a quarter of the batch and of the "
        "epochs shows as many pictures"
    )
    recipe.foreign("MODEL.HEAD.PARAMS")


def _classification(recipe: Recipe) -> None:
    foreign = recipe.foreign
    several = foreign("LOSS.name") == "bce_logits_multiple_output_single_target"
    recipe.put("task.name", "classification", "LOSS.name")
    smoothing = 0.0 if several else foreign("LOSS.cross_entropy_multiple_output_single_target.label_smoothing")
    loss = (
        {"name": "binary_cross_entropy", "sum_classes": True}
        if several
        else {"name": "cross_entropy", "label_smoothing": smoothing}
    )
    recipe.put("task.loss", loss, "LOSS.name")
    foreign("MODEL.HEAD.PARAMS")
    recipe.note("the classifier is one linear layer behind the backbone, whatever MODEL.HEAD.PARAMS says")
    if foreign("MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON") and foreign("MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY"):
        hook = {"name": "freeze", "pattern": "^backbone"}
        recipe.put("hooks.freeze", hook, "MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY")
    _layers(recipe)


def _layers(recipe: Recipe) -> None:
    """Several layers of a network are judged by a measure."""
    path = "MODEL.FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP"
    named = [str(one[0]) for one in recipe.foreign(path) if isinstance(one, list) and one]
    layers = [STAGES[name] for name in named if name in STAGES]
    if len(named) < 2:
        return
    recipe.put(
        "evaluate.measures.layers", {"evaluator": {"name": "linear_probe", "layers": layers}, "every": "0ep"}, path
    )
    recipe.note(
        "features of several layers are judged at the end, by the measure linear_probe, averaged over their places"
    )
    for name in named:
        if name not in STAGES:
            recipe.leave_part(path, name, "no layer here answers to it")


METHODS: dict[str, Callable[[Recipe], None]] = {
    "simclr_info_nce_loss": _simclr,
    "multicrop_simclr_info_nce_loss": _simclr,
    "moco_loss": _moco,
    "swav_loss": _swav,
    "deepclusterv2_loss": _deepcluster,
    "dino_loss": _dino,
    "barlow_twins_loss": _barlow_twins,
    "nce_loss_with_memory": _npid,
    "cross_entropy_multiple_output_single_target": _classification,
    "CrossEntropyLoss": _classification,
    "bce_logits_multiple_output_single_target": _classification,
}
"""By ``LOSS.name``."""


def _heads(recipe: Recipe, kind: str) -> list[Mapping[str, Any]]:
    """The keys of all parts of the head, if all are of a kind; else it is left out."""
    parts = recipe.foreign("MODEL.HEAD.PARAMS")
    keys = [one[1] for one in parts if isinstance(one, list) and len(one) == 2 and one[0] == kind]
    if not keys or len(keys) != len(parts) or not all(isinstance(one, dict) for one in keys):
        recipe.leave("MODEL.HEAD.PARAMS", f"no row of {kind}; the task has its own head")
        return []
    return keys


def _projector(recipe: Recipe, hidden: str, projection: str, layers: str = "") -> None:
    """Rows of ``mlp`` as the widths of a task's projector."""
    widths: list[Any] = []
    for keys in _heads(recipe, "mlp"):
        dims = keys.get("dims")
        widths += dims[1:] if isinstance(dims, list) and widths else dims if isinstance(dims, list) else []
    _dimensions(recipe, widths, hidden, projection, layers)


def _dimensions(recipe: Recipe, widths: Any, hidden: str, projection: str, layers: str = "") -> None:
    source = "MODEL.HEAD.PARAMS"
    if not isinstance(widths, list) or len(widths) < 2:
        return
    recipe.put(f"task.{projection}", widths[-1], source)
    if hidden and len(widths) > 2:
        recipe.put(f"task.{hidden}", widths[1], source)
    if layers:
        recipe.put(f"task.{layers}", len(widths) - 1, source)
    if len(set(widths[1:-1])) > 1 or (not layers and len(widths) > 3) or (not hidden and len(widths) > 2):
        recipe.leave(source, "layers of other number or widths than the task has")


def _frozen(recipe: Recipe, ours: str) -> None:
    """How long prototypes keep still; other parameters are left out."""
    path = "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP"
    steps = []
    for one in recipe.foreign(path):
        match one:
            case [str(name), int(count)] if "prototypes" in name:
                steps.append(count)
            case _:
                recipe.leave_part(path, one, "see the hook freeze")
    if steps:
        recipe.put(ours, duration(max(steps), "it"), path)


# --- the network ------------------------------------------------------------------------------------------------------


def _trunk(recipe: Recipe, training: views.Views) -> None:
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


def _transformer(recipe: Recipe, training: views.Views) -> None:
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


def _pixels(recipe: Recipe, training: views.Views) -> None:
    for name, values in (("mean", training.mean), ("std", training.std)):
        if values is not None:
            recipe.put(f"task.{name}", values, "DATA.TRAIN.TRANSFORMS")


# --- data -------------------------------------------------------------------------------------------------------------


def _data(recipe: Recipe, training: views.Views, method: Callable[[Recipe], None]) -> None:
    foreign = recipe.foreign
    world = foreign("DISTRIBUTED.NUM_NODES") * foreign("DISTRIBUTED.NUM_PROC_PER_NODE")
    labelled = method is _classification
    source = _source(recipe, "TRAIN", labelled)
    if method in (_deepcluster, _npid):
        source = {"name": "numbered", "source": source}
    recipe.put("data.train.source", source, "DATA.TRAIN.DATASET_NAMES", "DATA.TRAIN.DATA_PATHS")
    steps = training.steps
    if method is _npid and not training.number:
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
    recipe.take(Rule("DATA.NUM_DATALOADER_WORKERS", "data.workers"))
    recipe.take(Rule("DATA.TRAIN.DROP_LAST", "data.drop_last"))
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


class Curve(NamedTuple):
    """A schedule of ours, and the value that it multiplies."""

    peak: float
    schedule: dict[str, Any]


def _optimizer(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name = foreign("OPTIMIZER.name")
    recipe.take(Rule("OPTIMIZER.name", "optimizer.name", one_of(OPTIMIZERS)))
    scaled = foreign(f"{LR}.auto_lr_scaling.auto_scale")
    curve = _schedule(recipe, scaled)
    if scaled:
        recipe.take(Rule(f"{LR}.auto_lr_scaling.base_value", "optimizer.lr"))
        recipe.take(Rule(f"{LR}.auto_lr_scaling.base_lr_batch_size", "train.lr_batch_size"))
        scaling = one_of({"linear": "linear", "sqrt": "sqrt"})
        recipe.take(Rule(f"{LR}.auto_lr_scaling.scaling_type", "train.lr_scaling", scaling))
    else:
        recipe.put("optimizer.lr", curve.peak, *foreign.keys(LR))
    recipe.put("schedule", curve.schedule, *foreign.keys(LR))
    if name == "sgd" or name == "lars":
        recipe.take(Rule("OPTIMIZER.momentum", "optimizer.momentum"))
        recipe.take(Rule("OPTIMIZER.nesterov", "optimizer.nesterov"))
    elif name.startswith("adam"):
        recipe.take(Rule("OPTIMIZER.betas", "optimizer.betas"))
    if f"{DECAY}.name" in foreign:
        _decay(recipe)
    else:
        recipe.take(Rule("OPTIMIZER.weight_decay", "optimizer.weight_decay"))
    if foreign("OPTIMIZER.use_larc") and name == "sgd":
        recipe.put("optimizer.name", "lars", "OPTIMIZER.use_larc")
        recipe.put("optimizer.exclude_1d", False, "OPTIMIZER.use_larc")
        recipe.take(Rule("OPTIMIZER.larc_config.trust_coefficient", "optimizer.trust"))
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
    by = _by(foreign(f"{DECAY}.update_interval", "epoch"))
    recipe.put("optimizer.weight_decay", start, f"{DECAY}.start_value")
    schedule = {"name": name, "start": 1.0, "end": _ratio(end, start), "by": by}
    recipe.put("schedules.weight_decay", schedule, *foreign.keys(DECAY))


def _schedule(recipe: Recipe, scaled: bool) -> Curve:
    """The learning rate's."""
    foreign = recipe.foreign
    keys = ("name", "values", "milestones", "start_value", "end_value", "value")
    by = _by(foreign(f"{LR}.update_interval"))
    if foreign(f"{LR}.name") != "composite":
        section = {"name": foreign(f"{LR}.name")}
        section |= {key: foreign(f"{LR}.{key}") for key in _needed(section["name"])}
        curve = _curve(recipe, section)
        return curve._replace(schedule={**curve.schedule, "by": by})
    parts = foreign(f"{LR}.schedulers")
    if len(parts) != 2 or any(not isinstance(part, dict) for part in parts) or parts[0].get("name") != "linear":
        raise foreign.problem(f"{LR}.schedulers", "a line and one more schedule are taken over, nothing else")
    usual = {key: foreign(f"{LR}.{key}") for key in keys if key != "name"}
    return _warm(recipe, {**usual, **parts[0]}, {**usual, **parts[1]}, scaled, by)


def _needed(name: str) -> tuple[str, ...]:
    return {"multistep": ("values", "milestones"), "step": ("values",), "constant": ("value",)}.get(
        name, ("start_value", "end_value")
    )


def _by(interval: Any) -> str:
    return "step" if interval == "step" else "epoch"


def _warm(recipe: Recipe, line: Mapping[str, Any], rest: Mapping[str, Any], scaled: bool, by: str) -> Curve:
    """A line, which is the warm-up, and what comes behind it."""
    foreign = recipe.foreign
    shares, scaling = foreign(f"{LR}.lengths"), foreign(f"{LR}.interval_scaling")
    if len(shares) != 2 or not all(isinstance(one, float | int) and 0 < one < 1 for one in shares):
        raise foreign.problem(f"{LR}.lengths", f"{show(shares)}: two shares of the training are needed")
    nodes = foreign("DISTRIBUTED.NUM_NODES")
    if scaled and nodes == 1:
        recipe.note("VISSL leaves out the warm-up on one machine, so it is left out here")
        curve = _curve(recipe, rest)
        return curve._replace(schedule={**curve.schedule, "by": by})
    fixed = scaling[1:2] != ["rescaled"]
    curve = _curve(recipe, rest, None if fixed else (shares[0], shares[1]))
    factor = _ratio(1, nodes) if scaled else _ratio(_of(recipe, line, "start_value"), curve.peak)
    if scaled:
        recipe.note("VISSL begins the warm-up with the learning rate of one machine, whatever start_value says")
    epochs = foreign.number("OPTIMIZER.num_epochs")
    if fixed and curve.schedule["name"] != "multi_step":
        steep = round(factor + (1 - factor) / shares[0], 6)
        rising = {"name": "linear", "start": factor, "end": steep}
        recipe.note(
            "schedule: the cosine is one of the whole training, of which the warm-up hides the first part, as in VISSL"
        )
        both = {"name": "composite", "schedules": [rising, curve.schedule], "shares": shares, "time": "whole"}
        return Curve(curve.peak, {**both, "by": by})
    warmup = {"warmup": duration(shares[0] * epochs, "ep"), "warmup_factor": factor}
    rule = {"rule": "sliced"} if curve.schedule["name"] == "multi_step" else {}
    return Curve(curve.peak, {**curve.schedule, **warmup, **rule, "by": by})


def _curve(recipe: Recipe, section: Mapping[str, Any], own: tuple[float, float] | None = None) -> Curve:
    """One schedule.

    Args:
        recipe: what it is for.
        section: its keys.
        own: the share of the training before it and its own, if it has a time of its own.
    """
    name = section.get("name")
    if name in ("cosine", "linear"):
        start, end = _of(recipe, section, "start_value"), _of(recipe, section, "end_value")
        return Curve(start, {"name": name, "end": _ratio(end, start)})
    if name == "constant":
        return Curve(_of(recipe, section, "value"), {"name": "constant"})
    if name in ("multistep", "step"):
        return _stepped(recipe, section, own or (0.0, 1.0))
    known = "cosine, multistep, step, constant and linear are"
    raise recipe.foreign.problem(f"{LR}.name", f"{show(name)} is not taken over", known)


def _stepped(recipe: Recipe, section: Mapping[str, Any], own: tuple[float, float]) -> Curve:
    foreign = recipe.foreign
    epochs = foreign.number("OPTIMIZER.num_epochs")
    values = section.get("values") or []
    milestones = section.get("milestones") or []
    if section["name"] == "step":
        milestones = [epochs * number / len(values) for number in range(1, len(values))]
    numbers = [*values, *milestones]
    if len(values) != len(milestones) + 1 or any(not isinstance(one, int | float) for one in numbers) or not values[0]:
        message = f"{show(values)} and {show(milestones)}: numbers are needed, one value more than milestones"
        raise foreign.problem(f"{LR}.values", message)
    times = [duration(own[0] * epochs + own[1] * one, "ep") for one in milestones]
    gamma = _ratio(values[1], values[0]) if len(values) > 1 else 1.0
    if any(abs(value - values[0] * gamma**power) > 1e-6 * values[0] for power, value in enumerate(values)):
        factors = [_ratio(value, values[0]) for value in values]
        return Curve(values[0], {"name": "piecewise", "times": ["0ep", *times], "values": factors, "shape": "steps"})
    return Curve(values[0], {"name": "multi_step", "milestones": times, "gamma": gamma})


def _of(recipe: Recipe, section: Mapping[str, Any], key: str) -> float:
    value = section.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise recipe.foreign.problem(f"{LR}.{key}", f"a number is needed, and there is {show(value)}")
    return value


def _ratio(part: float, whole: float) -> float:
    if not whole:
        raise ConfigError(Problem("", LR, "a schedule that begins with 0 is not taken over"))
    return float(f"{part / whole:.6g}")


def _training(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.take_all(
        [
            Rule("OPTIMIZER.num_epochs", "train.length", lasting("ep")),
            Rule("LOG_FREQUENCY", "train.log_every"),
            Rule("CHECKPOINT.CHECKPOINT_FREQUENCY", "checkpoint.every", lasting("ep")),
            Rule("TEST_EVERY_NUM_EPOCH", "evaluate.every", lasting("ep")),
            Rule("SEED_VALUE", "seed"),
        ]
    )
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
