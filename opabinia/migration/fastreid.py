"""Conversion of FastReID's configs.

For keys that a config does not set, the recipe gets FastReID's defaults (:data:`DEFAULTS`), not Opabinia's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import show
from opabinia.migration import yacs
from opabinia.migration.detectron2 import clipping
from opabinia.migration.foreign_config import ForeignConfig, leaves
from opabinia.migration.recipe import Recipe, Table, duration, duration_in, lookup, to_unit_range
from opabinia.migration.tables.fastreid import (
    ATTRIBUTE_SOURCES,
    DEFAULTS,
    HEADS,
    METRIC_LOSSES,
    METRICS,
    NORMS,
    OPEN_SOURCES,
    OWN_MODELS,
    POOLINGS,
    REASONS,
    REFUSED,
    RESNET_KEYS,
    RESNETS,
    SOURCES,
    STRIDED,
    TASKS,
    TIMM_MODELS,
    WARMUPS,
)


def convert(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Convert a config of FastReID.

    Args:
        file: the YAML file.
        overrides: changes such as ``SOLVER.BASE_LR=0.01``.

    Raises:
        ConfigError: the config cannot be read, or its model or a value is not supported.
    """
    tree = yacs.read(file, overrides)
    recipe = Recipe(ForeignConfig("FastReID", str(file), dict(leaves(tree)), DEFAULTS, REASONS))
    _architecture(recipe)
    _backbone(recipe)
    head = recipe.foreign("MODEL.HEADS.NAME")
    if head == "ClasHead":
        _classifier(recipe)
    elif head == "AttrHead":
        _attributes(recipe)
    else:
        _head(recipe)
        _losses(recipe)
        _retrieval(recipe)
    recipe.convert("MODEL.PIXEL_MEAN", "task.mean", to_unit_range)
    recipe.convert("MODEL.PIXEL_STD", "task.std", to_unit_range)
    _data(recipe)
    _training(recipe)
    _evaluation(recipe)
    recipe.finish()
    return recipe


RESNET: Table = {
    "last_stride": "LAST_STRIDE",
    "ibn": "WITH_IBN",
    "se": "WITH_SE",
    "non_local": "WITH_NL",
    "norm": ("NORM", lookup(NORMS)),
}
TRANSFORMER: Table = {
    "stride": "STRIDE_SIZE",
    "drop_path": "DROP_PATH_RATIO",
    "dropout": "DROP_RATIO",
    "attention_dropout": "ATT_DROP_RATE",
}
WARMUP: Table = {
    "delay": ("DELAY_EPOCHS", duration_in("ep")),
    "warmup": ("WARMUP_ITERS", duration_in("it")),
    "warmup_factor": "WARMUP_FACTOR",
    "warmup_mode": ("WARMUP_METHOD", lookup(WARMUPS)),
}
EXPANSION: Table = {"k": "QE_K", "alpha": "ALPHA", "times": "QE_TIME"}


# --- model ------------------------------------------------------------------------------------------------------------


def _architecture(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name = foreign("MODEL.META_ARCHITECTURE")
    _refuse(recipe, "MODEL.META_ARCHITECTURE")
    _refuse(recipe, "MODEL.HEADS.NAME")
    if (head := foreign("MODEL.HEADS.NAME")) not in TASKS:
        supported = f"supported: {', '.join(TASKS)}"
        raise foreign.problem("MODEL.HEADS.NAME", f"{show(head)} is not supported", supported)
    recipe.convert("MODEL.META_ARCHITECTURE", "task.name", lookup(TASKS[head]))
    if name == "MoCo":
        recipe.put("task.cross_batch_memory", {"margin": 0.25, "gamma": 32.0})
        recipe.convert("MODEL.QUEUE_SIZE", "task.cross_batch_memory.size")
    if name == "Distiller":
        _teachers(recipe)
    if weights := foreign("MODEL.WEIGHTS"):
        recipe.put("init.weights", recipe.variable("weights", weights, "MODEL.WEIGHTS"))


def _refuse(recipe: Recipe, key: str) -> None:
    """Raise ConfigError with the reason if the value is a name of :data:`REFUSED`."""
    if reason := REFUSED.get(str(name := recipe.foreign(key))):
        raise recipe.foreign.problem(key, f"{show(name)} is not supported: {reason}")


def _is_classifier(recipe: Recipe) -> bool:
    return recipe.foreign("MODEL.HEADS.NAME") in ("ClasHead", "AttrHead")


def _is_face(recipe: Recipe) -> bool:
    return bool(recipe.foreign("MODEL.META_ARCHITECTURE") == "FaceBaseline")


def _teachers(recipe: Recipe) -> None:
    """Add a variable for the run folder of every teacher, which the user fills in."""
    foreign = recipe.foreign
    configs = foreign("KD.MODEL_CONFIG")
    teachers = [
        {"run": recipe.variable(f"teacher{number}", "path/to/run", "KD.MODEL_CONFIG")}
        for number, _ in enumerate(configs)
    ]
    recipe.put("distill", {"logits_loss": "symmetric", "temperature": 16, "task_weight": 1.0, "logits_weight": 1.0})
    if teachers:
        recipe.put("distill.teachers", teachers, "KD.MODEL_CONFIG")
        recipe.note("teachers are run folders of Opabinia: train or convert them, and set their paths in vars")
    recipe.skip("KD.MODEL_WEIGHTS", "the run folder contains the weights")
    if foreign("KD.EMA.ENABLED"):
        recipe.convert("KD.EMA.MOMENTUM", "distill.ema_teacher.decay")


def _backbone(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name, depth = foreign("MODEL.BACKBONE.NAME"), "MODEL.BACKBONE.DEPTH"
    _refuse(recipe, "MODEL.BACKBONE.NAME")
    recipe.put("task.backbone", {}, "MODEL.BACKBONE.NAME")
    if name in RESNETS:
        recipe.put("task.backbone.name", "resnet")
        recipe.convert(depth, "task.backbone.model", lookup(RESNETS[name]))
        _resnet(recipe, name)
    elif name == "build_vit_backbone":
        recipe.put("task.backbone.name", "vit")
        recipe.convert(depth, "task.backbone.model", lookup({"base": "vit_base_patch16_224"}))
        recipe.convert("INPUT.SIZE_TRAIN", "task.backbone.image_size")
        recipe.convert_section("MODEL.BACKBONE", "task.backbone", TRANSFORMER)
    elif name in TIMM_MODELS:
        recipe.put("task.backbone.name", "timm")
        recipe.convert(depth, "task.backbone.model", lookup(TIMM_MODELS[name]))
        _timm(recipe, name)
    elif name in OWN_MODELS:
        own, models = OWN_MODELS[name]
        recipe.put("task.backbone.name", own)
        recipe.convert(depth, "task.backbone.model", lookup(models))
        _own_backbone(recipe, name)
        return
    else:
        supported = ", ".join([*RESNETS, "build_vit_backbone", *TIMM_MODELS, *OWN_MODELS])
        raise foreign.problem("MODEL.BACKBONE.NAME", f"{show(name)} is not supported", f"supported: {supported}")
    _pretrained(recipe)


def _resnet(recipe: Recipe, name: str) -> None:
    """Convert the options that FastReID reads for this builder function."""
    foreign = recipe.foreign
    options = {key: source for key, source in RESNET.items() if key in RESNET_KEYS[name]}
    recipe.convert_section("MODEL.BACKBONE", "task.backbone", options)
    recipe.put("task.backbone.convention", "fastreid", "MODEL.BACKBONE.NAME")
    if foreign("MODEL.BACKBONE.NORM") == "syncBN":
        recipe.put("train.sync_batch_norm", True, "MODEL.BACKBONE.NORM")
    deep = (name, foreign("MODEL.BACKBONE.DEPTH")) == ("build_resnext_backbone", "101x")
    if deep and foreign("MODEL.BACKBONE.WITH_NL"):
        recipe.note("the third stage has nine non-local blocks, that of FastReID's ResNeXt-101 three")


def _own_backbone(recipe: Recipe, name: str) -> None:
    """Convert the options of OSNet, ShuffleNet and IResNet."""
    foreign = recipe.foreign
    _batch_norm(recipe)
    recipe.skip("MODEL.BACKBONE.LAST_STRIDE", "FastReID's backbone of this name does not use it")
    if name == "build_osnet_backbone":
        recipe.convert("MODEL.BACKBONE.WITH_IBN", "task.backbone.ibn")
    elif name != "build_shufflenetv2_backbone":
        recipe.convert("MODEL.BACKBONE.DROPOUT", "task.backbone.dropout")
        size = foreign("INPUT.SIZE_TRAIN")
        recipe.put("task.backbone.image_size", size if len(size) == 2 else [112, 112], "INPUT.SIZE_TRAIN")
    if name == "build_resnetIR_backbone":
        recipe.convert("MODEL.BACKBONE.WITH_SE", "task.backbone.se")
        recipe.note("build_resnetIR_backbone is not part of FastReID: replaced by IResNet of this depth")
    if foreign("MODEL.BACKBONE.PRETRAIN") and not foreign("MODEL.WEIGHTS"):
        file = foreign("MODEL.BACKBONE.PRETRAIN_PATH") or "path/to/pretrained.pth"
        recipe.note("MODEL.BACKBONE.PRETRAIN: set the file of the pretrained weights in vars")
        weights = recipe.variable("weights", file, "MODEL.BACKBONE.PRETRAIN_PATH")
        recipe.put("init", {"weights": weights, "target_prefix": "backbone.module"}, "MODEL.BACKBONE.PRETRAIN")


def _batch_norm(recipe: Recipe) -> None:
    """Convert the norm of a backbone that has batch norms only."""
    foreign, norm = recipe.foreign, "MODEL.BACKBONE.NORM"
    if foreign(norm) == "syncBN":
        recipe.put("train.sync_batch_norm", True, norm)
    elif foreign(norm) != "BN":
        message = f"{show(foreign(norm))} is only supported for ResNets"
        raise foreign.problem(norm, message, "supported: BN, syncBN")


def _timm(recipe: Recipe, name: str) -> None:
    foreign = recipe.foreign
    _batch_norm(recipe)
    if foreign("MODEL.BACKBONE.LAST_STRIDE") == 1 and name in STRIDED:
        recipe.note("MODEL.BACKBONE.LAST_STRIDE is 1: dropped, the last stage of timm's model has stride 2")
    elif name not in STRIDED:
        recipe.skip("MODEL.BACKBONE.LAST_STRIDE", "FastReID's backbone of this name does not use it")


def _pretrained(recipe: Recipe) -> None:
    foreign = recipe.foreign
    file = foreign("MODEL.BACKBONE.PRETRAIN_PATH")
    pretrained = foreign("MODEL.BACKBONE.PRETRAIN")
    recipe.put("task.backbone.pretrained", pretrained and not file, "MODEL.BACKBONE.PRETRAIN")
    if pretrained and file and not foreign("MODEL.WEIGHTS"):
        weights = recipe.variable("weights", file, "MODEL.BACKBONE.PRETRAIN_PATH")
        added = {"partial": True} if foreign("MODEL.BACKBONE.WITH_NL") else {}  # layers that pretrained files lack
        recipe.put("init", {"weights": weights, "target_prefix": "backbone", **added})
    elif file:
        recipe.skip("MODEL.BACKBONE.PRETRAIN_PATH", "FastReID does not use it in this config")
    backbone = recipe.config["task"]["backbone"]
    if pretrained and not file and (backbone.get("ibn") or backbone.get("se")):
        recipe.note(
            "FastReID has pretrained weights for IBN and SE; Opabinia uses those of the plain ResNet (see init.weights)"
        )


def _head(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.convert("MODEL.HEADS.POOL_LAYER", "task.pooling", lookup(POOLINGS))
    if width := foreign("MODEL.HEADS.EMBEDDING_DIM"):
        recipe.put("task.embedding", width, "MODEL.HEADS.EMBEDDING_DIM")
    if foreign("MODEL.META_ARCHITECTURE") == "MGN":
        recipe.skip("MODEL.HEADS.WITH_BNNECK", "task mgn always has one")
    else:
        recipe.convert("MODEL.HEADS.WITH_BNNECK", "task.neck", lambda enabled: "batch" if enabled else None)
    if foreign("MODEL.HEADS.NORM") == "syncBN":
        recipe.put("train.sync_batch_norm", True, "MODEL.HEADS.NORM")
    elif foreign("MODEL.HEADS.NORM") != "BN" and foreign("MODEL.HEADS.WITH_BNNECK"):
        name = show(foreign("MODEL.HEADS.NORM"))
        raise foreign.problem("MODEL.HEADS.NORM", f"{name} is not supported", "supported: BN, syncBN")
    recipe.convert("MODEL.HEADS.NECK_FEAT", "task.metric_feature", lookup({"before": "before", "after": "after"}))
    recipe.convert("MODEL.HEADS.CLS_LAYER", "task.head.name", lookup(HEADS))
    recipe.convert("MODEL.HEADS.SCALE", "task.head.scale")
    if _is_face(recipe) and foreign("MODEL.HEADS.PFC.ENABLED"):
        recipe.convert("MODEL.HEADS.PFC.SAMPLE_RATE", "task.sampled_classes")
        recipe.put("train.step", {"name": "standard", "clip_norm": 5}, "MODEL.HEADS.PFC.ENABLED")
        recipe.note(
            "task.sampled_classes: class weights are replicated on all ranks, weight decay and momentum also act on "
            "classes that are not sampled, and gradients are clipped with the classifier's (FastFace's: without)"
        )
    if foreign("MODEL.HEADS.CLS_LAYER") != "Linear":
        recipe.convert("MODEL.HEADS.MARGIN", "task.head.margin")


AVERAGE = ("GlobalAvgPool", "FastGlobalAvgPool")


def _require(recipe: Recipe, head: str, allowed: dict[str, tuple[Any, ...]]) -> None:
    """Raise ConfigError if a key of MODEL has another value than the head of this name supports."""
    for key, values in allowed.items():
        if (value := recipe.foreign(f"MODEL.{key}")) not in values:
            supported = f"supported: {', '.join(show(choice) for choice in values)}"
            raise recipe.foreign.problem(f"MODEL.{key}", f"{show(value)} is not supported with {head}", supported)


def _classifier(recipe: Recipe) -> None:
    """Convert ClasHead, which must be a linear layer on averaged features."""
    foreign = recipe.foreign
    linear = {"HEADS.CLS_LAYER": ("Linear",), "HEADS.WITH_BNNECK": (False,), "HEADS.EMBEDDING_DIM": (0,)}
    _require(recipe, "ClasHead", {"HEADS.POOL_LAYER": AVERAGE, **linear})
    recipe.note("the classifier has biases; that of FastReID has none")
    _require(recipe, "ClasHead", {"LOSSES.NAME": (["CrossEntropyLoss"],)})
    recipe.put("task.loss", _cross_entropy(recipe), "MODEL.LOSSES.NAME", "MODEL.LOSSES.CE.EPSILON")
    if foreign("MODEL.LOSSES.CE.SCALE") != 1:
        recipe.skip("MODEL.LOSSES.CE.SCALE", "the loss of a classification is not scaled")


def _attributes(recipe: Recipe) -> None:
    """Convert FastAttr's head, norms around a linear layer on averaged features, its loss and its evaluator."""
    foreign = recipe.foreign
    linear = {"HEADS.CLS_LAYER": ("Linear",), "HEADS.WITH_BNNECK": (True,), "HEADS.EMBEDDING_DIM": (0,)}
    norms = {"HEADS.NORM": ("BN", "syncBN"), "LOSSES.NAME": (["BinaryCrossEntropyLoss"],)}
    _require(recipe, "AttrHead", {"HEADS.POOL_LAYER": AVERAGE, **linear, **norms})
    if foreign("MODEL.HEADS.NORM") == "syncBN":
        recipe.put("train.sync_batch_norm", True, "MODEL.HEADS.NORM")
    recipe.convert("MODEL.LOSSES.BCE.WEIGHT_ENABLED", "task.weighted")
    recipe.convert("TEST.THRES", "task.threshold")
    if foreign("MODEL.LOSSES.BCE.SCALE") != 1:
        recipe.skip("MODEL.LOSSES.BCE.SCALE", "the loss of a classification is not scaled")


def _losses(recipe: Recipe) -> None:
    foreign = recipe.foreign
    names = foreign("MODEL.LOSSES.NAME")
    loss = _cross_entropy(recipe) if "CrossEntropyLoss" in names else None
    recipe.put("task.loss", loss, "MODEL.LOSSES.NAME", "MODEL.LOSSES.CE.EPSILON")
    recipe.convert("MODEL.LOSSES.CE.SCALE", "task.loss_scale")
    metric = [_metric_loss(recipe, METRIC_LOSSES[name]) for name in names if name in METRIC_LOSSES]
    recipe.put("task.metric_losses", metric, "MODEL.LOSSES.NAME")
    for name in names:
        if name not in METRIC_LOSSES and name != "CrossEntropyLoss":
            recipe.skip_part("MODEL.LOSSES.NAME", name, "FastReID does not use it either")


def _cross_entropy(recipe: Recipe) -> dict[str, Any]:
    smoothing = recipe.foreign("MODEL.LOSSES.CE.EPSILON")
    if smoothing < 0:
        return {
            "name": "adaptive_cross_entropy",
            "alpha": recipe.foreign("MODEL.LOSSES.CE.ALPHA"),
            "averaged_samples": "nonzero",
        }
    smooth = {"label_smoothing": smoothing, "smoothing_classes": "others"} if smoothing else {}
    return {"name": "cross_entropy", **smooth, "averaged_samples": "nonzero"}


def _metric_loss(recipe: Recipe, section: str) -> dict[str, Any]:
    foreign, path = recipe.foreign, f"MODEL.LOSSES.{section}"
    loss: dict[str, Any]
    if section == "TRI":
        mining = "hard" if foreign(f"{path}.HARD_MINING") else "weighted"
        distance = "cosine" if foreign(f"{path}.NORM_FEAT") else "euclidean"
        loss = {"name": "triplet", "mining": mining, "distance": distance}
    else:
        loss = {"name": section.lower(), "gamma": foreign(f"{path}.GAMMA")}
    return {**loss, "margin": foreign(f"{path}.MARGIN"), "scale": foreign(f"{path}.SCALE")}


# --- data -------------------------------------------------------------------------------------------------------------


def _data(recipe: Recipe) -> None:
    foreign = recipe.foreign
    split = "all" if foreign("DATASETS.COMBINEALL") else "train"
    if foreign("MODEL.HEADS.NAME") == "ClasHead":
        recipe.skip("DATASETS.COMBINEALL", "set vars to a folder that holds all images")
    names = foreign("DATASETS.NAMES")
    if _is_face(recipe) and foreign("DATASETS.REC_PATH"):
        names = [Path(foreign("DATASETS.REC_PATH")).stem]  # then FastFace ignores DATASETS.NAMES
        recipe.note("DATASETS.REC_PATH: write the images of the record file into a folder for each identity: set vars")
    sources = [_train_source(recipe, name, split) for name in names]
    several = "concat" if _is_classifier(recipe) else "concat_identities"
    source = sources[0] if len(sources) == 1 else {"name": several, "sources": sources}
    recipe.put("data.train.source", source, "DATASETS.NAMES", "DATASETS.COMBINEALL")
    recipe.put("data.train.transforms", _augmentations(recipe), *_augmentation_keys(recipe))
    val_transforms = _resize(recipe, "TEST")
    if foreign("INPUT.CROP.ENABLED"):
        val_transforms.append({"name": "CenterCrop", "size": foreign("INPUT.CROP.SIZE")})
    names = foreign("DATASETS.TESTS")
    val_sets: list[dict[str, Any]] = [
        {"source": _test_source(recipe, name), "transforms": val_transforms} for name in names
    ]
    if len(val_sets) > 1:
        val_sets = [{"prefix": str(name).lower(), **val_set} for name, val_set in zip(names, val_sets, strict=True)]
    recipe.put("data.val", val_sets[0] if len(val_sets) == 1 else val_sets, "DATASETS.TESTS", "INPUT.SIZE_TEST")
    _sampler(recipe)
    recipe.convert("SOLVER.IMS_PER_BATCH", "data.batch_size")
    recipe.convert("DATALOADER.NUM_WORKERS", "data.num_workers")
    if foreign("INPUT.RPT.ENABLED"):
        recipe.put("data.mix", [{"name": "random_patch", "probability": foreign("INPUT.RPT.PROB")}], "INPUT.RPT.PROB")


def _train_source(recipe: Recipe, name: Any, split: str) -> dict[str, Any]:
    if _is_classifier(recipe):
        return _classified_source(recipe, name, "train")
    if _is_face(recipe):
        return {"name": "class_folders", "root": _data_variable(recipe, name), "split": "all"}
    return {**_source(recipe, name), "split": split}


def _test_source(recipe: Recipe, name: Any) -> dict[str, Any]:
    if _is_classifier(recipe):
        return _classified_source(recipe, name, "val")
    if _is_face(recipe):
        recipe.note(f"the dataset {show(name)} becomes a list of pairs (opabinia config list source image_pairs)")
        return {"name": "image_pairs", "file": _data_variable(recipe, name, ".csv")}
    return {**_source(recipe, name), "split": "test"}


def _classified_source(recipe: Recipe, name: Any, split: str) -> dict[str, Any]:
    """Return a source of images with classes or attributes."""
    if recipe.foreign("MODEL.HEADS.NAME") == "ClasHead":
        return _image_folder(recipe, name, split)
    if source := ATTRIBUTE_SOURCES.get(str(name)):
        return {
            "name": source, "root": _data_variable(recipe, name), "split": "test" if split == "val" else split,
        }  # fmt: skip
    recipe.note(f"the dataset {show(name)} is not known: write a list of its images with their attributes")
    return {"name": "table", "file": _data_variable(recipe, f"{name}_{split}", ".csv"), "multi_label": True}


def _data_variable(recipe: Recipe, name: Any, suffix: str = "") -> str:
    variable = _variable_name(name)
    return recipe.variable(variable, f"path/to/{variable}{suffix}")


def _image_folder(recipe: Recipe, name: Any, split: str) -> dict[str, Any]:
    variable = _variable_name(name)
    recipe.note(f"the dataset {show(name)} becomes a folder with a subfolder for each class: set vars")
    return {"name": "image_folder", "root": recipe.variable(f"{variable}_{split}", f"path/to/{variable}/{split}")}


def _variable_name(name: Any) -> str:
    return re.sub(r"\W", "_", str(name)).lower() or "data"


def _source(recipe: Recipe, name: Any) -> dict[str, Any]:
    if source := SOURCES.get(str(name)):
        variable = _variable_name(name) if source["name"] in OPEN_SOURCES else source["name"]
        return {**source, "root": recipe.variable(variable, f"path/to/{variable}")}
    variable = _variable_name(name)
    recipe.note(
        f"the dataset {show(name)} is not known: write a list of its images (opabinia config list source identities)"
    )
    return {"name": "identities", "file": recipe.variable(variable, f"path/to/{variable}.csv")}


def _augmentation_keys(recipe: Recipe) -> list[str]:
    """Return the source keys of the enabled augmentations."""
    names = ("AUTOAUG", "CROP", "PADDING", "FLIP", "CJ", "AFFINE", "AUGMIX", "REA")
    return ["INPUT.SIZE_TRAIN", *(f"INPUT.{name}.ENABLED" for name in names if recipe.foreign(f"INPUT.{name}.ENABLED"))]


def _augmentations(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the enabled augmentations in FastReID's order."""
    foreign = recipe.foreign
    size = _size(foreign("INPUT.SIZE_TRAIN"))
    builders: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("CROP", lambda: _crop(recipe)),
        (
            "PADDING",
            lambda: {
                "name": "RandomCrop",
                "size": size,
                "padding": foreign("INPUT.PADDING.SIZE"),
                "padding_mode": foreign("INPUT.PADDING.MODE"),
            },
        ),
        ("FLIP", lambda: {"name": "RandomHorizontalFlip", "p": foreign("INPUT.FLIP.PROB")}),
        ("CJ", lambda: _random_apply(foreign("INPUT.CJ.PROB"), _jitter(recipe))),
        ("AFFINE", lambda: {"name": "RandomAffine", "degrees": 10, "scale": [0.9, 1.1], "shear": 0.1}),
        ("AUGMIX", lambda: _random_apply(foreign("INPUT.AUGMIX.PROB"), _policy("augmix-m1-w3-d1-a0.1"))),
        ("REA", lambda: _erasing(recipe)),
    ]
    steps = []
    if foreign("INPUT.AUTOAUG.ENABLED"):
        steps.append(_random_apply(foreign("INPUT.AUTOAUG.PROB"), _policy("original")))
    steps += _resize(recipe, "TRAIN")
    return steps + [build() for name, build in builders if foreign(f"INPUT.{name}.ENABLED")]


def _crop(recipe: Recipe) -> dict[str, Any]:
    section = "INPUT.CROP"
    keys = {"size": "SIZE", "scale": "SCALE", "ratio": "RATIO"}
    return {"name": "RandomResizedCrop", **{key: recipe.foreign(f"{section}.{source}") for key, source in keys.items()}}


def _jitter(recipe: Recipe) -> dict[str, Any]:
    keys = ("brightness", "contrast", "saturation", "hue")
    return {"name": "ColorJitter", **{key: recipe.foreign(f"INPUT.CJ.{key.upper()}") for key in keys}}


def _erasing(recipe: Recipe) -> dict[str, Any]:
    foreign = recipe.foreign
    mean = {"mean": to_unit_range(foreign("INPUT.REA.VALUE"))} if "INPUT.REA.VALUE" in foreign else {}
    return {"name": "random_erase", "probability": foreign("INPUT.REA.PROB"), **mean}


def _policy(name: str) -> dict[str, Any]:
    return {"name": "timm_policy", "policy": name}


def _random_apply(probability: float, step: dict[str, Any]) -> dict[str, Any]:
    return {"name": "RandomApply", "p": probability, "transforms": [step]}


def _resize(recipe: Recipe, split: str) -> list[dict[str, Any]]:
    size = recipe.foreign(f"INPUT.SIZE_{split}")
    if not size or size[0] <= 0:
        return []
    return [{"name": "Resize", "size": _size(size), "interpolation": "bicubic"}]


def _size(size: list[Any]) -> Any:
    """Return height and width, or the length of the shorter side alone."""
    return size[0] if len(size) == 1 else size


def _sampler(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name, instances = foreign("DATALOADER.SAMPLER_TRAIN"), foreign("DATALOADER.NUM_INSTANCE")
    samplers: dict[str, dict[str, Any] | None] = {
        "TrainingSampler": None,
        "NaiveIdentitySampler": {"name": "identities", "instances": instances},
        "BalancedIdentitySampler": {"name": "balanced_identities", "instances": instances},
        "SetReWeightSampler": {
            "name": "mixed_identities",
            "weights": foreign("DATALOADER.SET_WEIGHT"),
            "domain": "camera",
            "instances": instances,
        },
        "ImbalancedDatasetSampler": {"name": "weighted"},
    }
    if name not in samplers:
        raise foreign.problem(
            "DATALOADER.SAMPLER_TRAIN", f"{show(name)} is not supported", f"supported: {', '.join(samplers)}"
        )
    if sampler := samplers[name]:
        recipe.put("data.sampler", sampler, "DATALOADER.SAMPLER_TRAIN", "DATALOADER.NUM_INSTANCE")
    else:
        recipe.put("data.drop_last", True, "DATALOADER.SAMPLER_TRAIN")


# --- training ---------------------------------------------------------------------------------------------------------


def _training(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.convert("SOLVER.OPT", "optimizer.name", str.lower)
    recipe.convert("SOLVER.BASE_LR", "optimizer.lr")
    if foreign("SOLVER.OPT") == "SGD":
        recipe.convert("SOLVER.MOMENTUM", "optimizer.momentum")
        recipe.convert("SOLVER.NESTEROV", "optimizer.nesterov")
    recipe.convert("SOLVER.WEIGHT_DECAY", "optimizer.weight_decay")
    _groups(recipe)
    _schedule(recipe)
    recipe.convert("SOLVER.MAX_EPOCH", "train.length", duration_in("ep"))
    if foreign("SOLVER.AMP.ENABLED"):
        recipe.put("train.precision", "fp16", "SOLVER.AMP.ENABLED")
    if foreign("CUDNN_BENCHMARK"):
        recipe.put("train.cudnn_benchmark", True, "CUDNN_BENCHMARK")
    if step := clipping(recipe):
        recipe.put("train.step", step, "SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "SOLVER.CLIP_GRADIENTS.CLIP_VALUE")
    recipe.convert("SOLVER.CHECKPOINT_PERIOD", "checkpoint.every", duration_in("ep"))
    if foreign("SOLVER.FREEZE_ITERS"):
        _freeze_hook(recipe)


def _freeze_hook(recipe: Recipe) -> None:
    layers = recipe.foreign("MODEL.FREEZE_LAYERS")
    if "backbone" in layers:
        hook = {
            "name": "freeze",
            "pattern": "^backbone",
            "until": duration(recipe.foreign("SOLVER.FREEZE_ITERS"), "it"),
        }
        recipe.put("hooks.freeze", hook, "MODEL.FREEZE_LAYERS", "SOLVER.FREEZE_ITERS")
    if others := [str(layer) for layer in layers if layer != "backbone"]:
        recipe.note(f"MODEL.FREEZE_LAYERS: {', '.join(others)} have other names in Opabinia; see the hook freeze")


def _has_biases(recipe: Recipe) -> bool:
    """Whether a bias is trained: neck and heads have none, so with frozen norms there may be no bias at all."""
    backbone = recipe.config["task"]["backbone"]
    added = backbone.get("ibn") or backbone.get("non_local")
    return backbone.get("norm") != "frozen" or bool(added) or _is_classifier(recipe)


def _groups(recipe: Recipe) -> None:
    foreign = recipe.foreign
    default_decay = foreign("SOLVER.WEIGHT_DECAY")
    rules: list[dict[str, Any]] = []
    for kind in ("norm", "bias") if _has_biases(recipe) else ("norm",):
        decay = foreign(f"SOLVER.WEIGHT_DECAY_{kind.upper()}")
        factor = foreign("SOLVER.BIAS_LR_FACTOR") if kind == "bias" else 1
        if decay != default_decay or factor != 1:
            rules.append({"kind": kind, "weight_decay": decay, **({"lr_factor": factor} if factor != 1 else {})})
    if (factor := foreign("SOLVER.HEADS_LR_FACTOR")) != 1:
        rules.append({"pattern": "^(?!backbone)", "lr_factor": factor})
    if rules:
        keys = ("WEIGHT_DECAY_NORM", "WEIGHT_DECAY_BIAS", "BIAS_LR_FACTOR", "HEADS_LR_FACTOR")
        recipe.put("param_groups.rules", rules, *(f"SOLVER.{key}" for key in keys))


def _schedule(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name = foreign("SOLVER.SCHED")
    if name == "MultiStepLR":
        milestones = [duration(step, "ep") for step in foreign("SOLVER.STEPS")]
        recipe.put("schedule", {"name": "multi_step", "milestones": milestones}, "SOLVER.STEPS")
        recipe.convert("SOLVER.GAMMA", "schedule.gamma")
    elif name == "CosineAnnealingLR":
        end = recipe.ratio("SOLVER.ETA_MIN_LR", "SOLVER.BASE_LR")
        recipe.put("schedule", {"name": "cosine", "end": end}, "SOLVER.SCHED", "SOLVER.ETA_MIN_LR")
    else:
        raise foreign.problem(
            "SOLVER.SCHED", f"{show(name)} is not supported", "supported: MultiStepLR, CosineAnnealingLR"
        )
    recipe.convert_section("SOLVER", "schedule", WARMUP)
    recipe.put("schedule.warmup_rule", "fastreid")
    recipe.note(
        "schedule.warmup_rule: fastreid counts epochs from the end of warm-up and delay, as FastReID does; other rules "
        "count from the start of the training"
    )


def _evaluation(recipe: Recipe) -> None:
    foreign = recipe.foreign
    every = max(0, foreign("TEST.EVAL_PERIOD"))
    recipe.put("evaluate.every", duration(every, "ep"), "TEST.EVAL_PERIOD")
    recipe.convert("TEST.IMS_PER_BATCH", "evaluate.batch_size")
    if foreign("TEST.PRECISE_BN.ENABLED"):
        hook = {"every": duration(max(1, every), "ep"), "batches": foreign("TEST.PRECISE_BN.NUM_ITER")}
        recipe.put("hooks.precise_bn", hook, "TEST.PRECISE_BN.NUM_ITER", "TEST.EVAL_PERIOD")


def _retrieval(recipe: Recipe) -> None:
    """Convert the evaluation: a retrieval with the keys of ``TEST``, or recall where all test images are queries."""
    foreign, evaluator = recipe.foreign, "task.evaluator"
    if _is_face(recipe):
        recipe.put(f"{evaluator}.name", "verification", "DATASETS.TESTS")
        recipe.convert("TEST.FLIP.ENABLED", "task.flip_test")
        return
    names = [SOURCES.get(str(name), {}).get("name") for name in foreign("DATASETS.TESTS")]
    if names and all(name in OPEN_SOURCES for name in names):
        recipe.put(f"{evaluator}.name", "recall", "DATASETS.TESTS")
        recipe.convert("TEST.METRIC", f"{evaluator}.metric", lookup(METRICS))
        recipe.convert("TEST.RECALLS", f"{evaluator}.ks")
        recipe.convert("TEST.FLIP.ENABLED", "task.flip_test")
        return
    recipe.put(f"{evaluator}.name", "retrieval")
    if "TEST.RECALLS" in foreign:
        recipe.convert("TEST.RECALLS", f"{evaluator}.ranks")
    recipe.convert("TEST.METRIC", f"{evaluator}.metric", lookup(METRICS))
    recipe.convert("TEST.FLIP.ENABLED", "task.flip_test")
    if foreign("TEST.ROC.ENABLED"):
        recipe.put(f"{evaluator}.roc", True, "TEST.ROC.ENABLED")
    if foreign("TEST.AQE.ENABLED"):
        recipe.convert_section("TEST.AQE", f"{evaluator}.query_expansion", EXPANSION)
    if foreign("TEST.RERANK.ENABLED") or foreign("TEST.METRIC") == "jaccard":
        recipe.put(f"{evaluator}.rerank.variant", "fastreid")
        recipe.convert("TEST.RERANK.K1", f"{evaluator}.rerank.k1")
        recipe.convert("TEST.RERANK.K2", f"{evaluator}.rerank.k2")
        if foreign("TEST.METRIC") == "jaccard":
            recipe.put(f"{evaluator}.rerank.lambda_value", 0.0, "TEST.METRIC")
        else:
            recipe.convert("TEST.RERANK.LAMBDA", f"{evaluator}.rerank.lambda_value")
