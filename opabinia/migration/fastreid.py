"""FastReID's configs as configs of ours.

Where a config says nothing, FastReID's default is written into the recipe, not ours: :data:`DEFAULTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import show
from opabinia.migration import yacs
from opabinia.migration.detectron2 import clipping
from opabinia.migration.foreign_config import Foreign, leaves
from opabinia.migration.recipe import Recipe, Table, duration, lasting, of_one, one_of
from opabinia.migration.tables.fastreid import (
    DEFAULTS,
    HEADS,
    METRIC_LOSSES,
    METRICS,
    NORMS,
    OF_TIMM,
    POOLINGS,
    REASONS,
    RESNETS,
    SOURCES,
    WARMUPS,
)


def convert(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a config of FastReID.

    Args:
        file: its YAML.
        overrides: ``SOLVER.BASE_LR=0.01``.

    Raises:
        ConfigError: it cannot be read, is of a network that is not here, or has values that cannot be taken over.
    """
    tree = yacs.read(file, overrides)
    recipe = Recipe(Foreign("FastReID", str(file), dict(leaves(tree)), DEFAULTS, REASONS))
    _architecture(recipe)
    _backbone(recipe)
    _head(recipe)
    _losses(recipe)
    recipe.take("MODEL.PIXEL_MEAN", "task.mean", of_one)
    recipe.take("MODEL.PIXEL_STD", "task.std", of_one)
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
    "norm": ("NORM", one_of(NORMS)),
}
TRANSFORMER: Table = {
    "stride": "STRIDE_SIZE",
    "drop_path": "DROP_PATH_RATIO",
    "dropout": "DROP_RATIO",
    "attention_dropout": "ATT_DROP_RATE",
}
WARMUP: Table = {
    "delay": ("DELAY_EPOCHS", lasting("ep")),
    "warmup": ("WARMUP_ITERS", lasting("it")),
    "warmup_factor": "WARMUP_FACTOR",
    "warmup_mode": ("WARMUP_METHOD", one_of(WARMUPS)),
}
EXPANSION: Table = {"k": "QE_K", "alpha": "ALPHA", "times": "QE_TIME"}


# --- the network ------------------------------------------------------------------------------------------------------


def _architecture(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name = foreign("MODEL.META_ARCHITECTURE")
    tasks = {"Baseline": "reid", "MGN": "mgn", "MoCo": "reid", "Distiller": "reid"}
    recipe.take("MODEL.META_ARCHITECTURE", "task.name", one_of(tasks))
    if foreign("MODEL.HEADS.NAME") != "EmbeddingHead":
        why = f"{show(foreign('MODEL.HEADS.NAME'))} is not taken over"
        raise foreign.problem("MODEL.HEADS.NAME", why, "EmbeddingHead is; ClasHead's is the task classification")
    if name == "MoCo":
        recipe.put("task.memory", {"margin": 0.25, "gamma": 32.0})
        recipe.take("MODEL.QUEUE_SIZE", "task.memory.size")
    if name == "Distiller":
        _teachers(recipe)
    if weights := foreign("MODEL.WEIGHTS"):
        recipe.put("init.weights", recipe.variable("weights", weights, "MODEL.WEIGHTS"))


def _teachers(recipe: Recipe) -> None:
    """Teachers are runs here; which ones, a person has to say."""
    foreign = recipe.foreign
    configs = foreign("KD.MODEL_CONFIG")
    teachers = [
        {"run": recipe.variable(f"teacher{number}", "path/to/run", "KD.MODEL_CONFIG")}
        for number, _ in enumerate(configs)
    ]
    recipe.put("distill", {"logits_loss": "symmetric", "temperature": 16, "task_weight": 1.0, "logits_weight": 1.0})
    if teachers:
        recipe.put("distill.teachers", teachers, "KD.MODEL_CONFIG")
        recipe.note("teachers are runs of ours, not configs with weights: train or import them, and say where they are")
    recipe.leave("KD.MODEL_WEIGHTS", "a run of ours has its weights")
    if foreign("KD.EMA.ENABLED"):
        recipe.take("KD.EMA.MOMENTUM", "distill.average.momentum")


def _backbone(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name, depth = foreign("MODEL.BACKBONE.NAME"), "MODEL.BACKBONE.DEPTH"
    recipe.put("task.backbone", {}, "MODEL.BACKBONE.NAME")
    if name == "build_resnet_backbone":
        recipe.put("task.backbone.name", "resnet")
        recipe.take(depth, "task.backbone.model", one_of(RESNETS))
        _resnet(recipe)
    elif name == "build_vit_backbone":
        recipe.put("task.backbone.name", "vit")
        recipe.take(depth, "task.backbone.model", one_of({"base": "vit_base_patch16_224"}))
        recipe.take("INPUT.SIZE_TRAIN", "task.backbone.image_size")
        recipe.take_all("MODEL.BACKBONE", "task.backbone", TRANSFORMER)
    elif name in OF_TIMM:
        recipe.put("task.backbone.name", "timm")
        recipe.take(depth, "task.backbone.model", one_of(OF_TIMM[name]))
    else:
        known = ", ".join(["build_resnet_backbone", "build_vit_backbone", *OF_TIMM])
        raise foreign.problem("MODEL.BACKBONE.NAME", f"{show(name)} is not taken over", known)
    _pretrained(recipe)


def _resnet(recipe: Recipe) -> None:
    recipe.take_all("MODEL.BACKBONE", "task.backbone", RESNET)
    if recipe.foreign("MODEL.BACKBONE.NORM") == "syncBN":
        recipe.put("train.sync_batch_norm", True, "MODEL.BACKBONE.NORM")
    if recipe.foreign("MODEL.BACKBONE.WITH_NL"):
        recipe.note("non-local blocks have half the channels inside; FastReID's had one")


def _pretrained(recipe: Recipe) -> None:
    foreign = recipe.foreign
    file = foreign("MODEL.BACKBONE.PRETRAIN_PATH")
    wanted = foreign("MODEL.BACKBONE.PRETRAIN")
    recipe.put("task.backbone.pretrained", wanted and not file, "MODEL.BACKBONE.PRETRAIN")
    if wanted and file and not foreign("MODEL.WEIGHTS"):
        weights = recipe.variable("weights", file, "MODEL.BACKBONE.PRETRAIN_PATH")
        recipe.put("init", {"weights": weights, "into": "backbone"})
    elif file:
        recipe.leave("MODEL.BACKBONE.PRETRAIN_PATH", "not used there, either")
    if wanted and not file and (foreign("MODEL.BACKBONE.WITH_IBN") or foreign("MODEL.BACKBONE.WITH_SE")):
        recipe.note(
            "FastReID downloads weights for IBN and SE; here the plain ResNet's are taken: init.weights for your own"
        )


def _head(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.take("MODEL.HEADS.POOL_LAYER", "task.pooling", one_of(POOLINGS))
    if width := foreign("MODEL.HEADS.EMBEDDING_DIM"):
        recipe.put("task.embedding", width, "MODEL.HEADS.EMBEDDING_DIM")
    if foreign("MODEL.META_ARCHITECTURE") == "MGN":
        recipe.leave("MODEL.HEADS.WITH_BNNECK", "task mgn always has one")
    else:
        with_neck = {True: "batch", False: None}
        recipe.take("MODEL.HEADS.WITH_BNNECK", "task.neck", lambda wanted: with_neck[wanted])
    if foreign("MODEL.HEADS.NORM") == "syncBN":
        recipe.put("train.sync_batch_norm", True, "MODEL.HEADS.NORM")
    elif foreign("MODEL.HEADS.NORM") != "BN":
        recipe.leave("MODEL.HEADS.NORM", "the neck is a batch norm here")
    recipe.take("MODEL.HEADS.NECK_FEAT", "task.metric_feature", one_of({"before": "before", "after": "after"}))
    recipe.take("MODEL.HEADS.CLS_LAYER", "task.head.name", one_of(HEADS))
    recipe.take("MODEL.HEADS.SCALE", "task.head.scale")
    if foreign("MODEL.HEADS.CLS_LAYER") != "Linear":
        recipe.take("MODEL.HEADS.MARGIN", "task.head.margin")


def _losses(recipe: Recipe) -> None:
    foreign = recipe.foreign
    names = foreign("MODEL.LOSSES.NAME")
    loss = _cross_entropy(recipe) if "CrossEntropyLoss" in names else None
    recipe.put("task.loss", loss, "MODEL.LOSSES.NAME", "MODEL.LOSSES.CE.EPSILON")
    recipe.take("MODEL.LOSSES.CE.SCALE", "task.loss_scale")
    metric = [_metric_loss(recipe, METRIC_LOSSES[name]) for name in names if name in METRIC_LOSSES]
    recipe.put("task.metric_losses", metric, "MODEL.LOSSES.NAME")
    for name in names:
        if name not in METRIC_LOSSES and name != "CrossEntropyLoss":
            recipe.note(f"MODEL.LOSSES.NAME: {show(name)} is left out; FastReID does not use it, either")


def _cross_entropy(recipe: Recipe) -> dict[str, Any]:
    smoothing = recipe.foreign("MODEL.LOSSES.CE.EPSILON")
    if smoothing < 0:
        return {
            "name": "adaptive_cross_entropy",
            "alpha": recipe.foreign("MODEL.LOSSES.CE.ALPHA"),
            "mean_over": "nonzero",
        }
    smooth = {"label_smoothing": smoothing, "smooth_over": "others"} if smoothing else {}
    return {"name": "cross_entropy", **smooth, "mean_over": "nonzero"}


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
    sources = [{**_source(recipe, name), "split": split} for name in foreign("DATASETS.NAMES")]
    source = sources[0] if len(sources) == 1 else {"name": "joined_identities", "sources": sources}
    recipe.put("data.train.source", source, "DATASETS.NAMES", "DATASETS.COMBINEALL")
    recipe.put("data.train.transforms", _augmentations(recipe), *_enabled(recipe))
    looking = _resized(recipe, "TEST")
    if foreign("INPUT.CROP.ENABLED"):
        looking.append({"name": "CenterCrop", "size": foreign("INPUT.CROP.SIZE")})
    names = foreign("DATASETS.TESTS")
    tests: list[dict[str, Any]] = [
        {"source": {**_source(recipe, name), "split": "test"}, "transforms": looking} for name in names
    ]
    if len(tests) > 1:
        tests = [{"prefix": str(name).lower(), **test} for name, test in zip(names, tests, strict=True)]
    recipe.put("data.val", tests[0] if len(tests) == 1 else tests, "DATASETS.TESTS", "INPUT.SIZE_TEST")
    _sampler(recipe)
    recipe.take("SOLVER.IMS_PER_BATCH", "data.batch_size")
    recipe.take("DATALOADER.NUM_WORKERS", "data.workers")
    if foreign("INPUT.RPT.ENABLED"):
        recipe.put("data.mix", [{"name": "random_patch", "probability": foreign("INPUT.RPT.PROB")}], "INPUT.RPT.PROB")


def _source(recipe: Recipe, name: Any) -> dict[str, Any]:
    if known := SOURCES.get(str(name)):
        return {**known, "root": recipe.variable(known["name"], f"path/to/{known['name']}")}
    variable = re.sub(r"\W", "_", str(name)).lower() or "data"
    recipe.note(
        f"{show(name)} has no source of its own here: make a list of it (opabinia config list source identities)"
    )
    return {"name": "identities", "file": recipe.variable(variable, f"path/to/{variable}.csv")}


def _enabled(recipe: Recipe) -> list[str]:
    """The keys that augmentations come from."""
    names = ("AUTOAUG", "CROP", "PADDING", "FLIP", "CJ", "AFFINE", "AUGMIX", "REA")
    return ["INPUT.SIZE_TRAIN", *(f"INPUT.{name}.ENABLED" for name in names if recipe.foreign(f"INPUT.{name}.ENABLED"))]


def _augmentations(recipe: Recipe) -> list[dict[str, Any]]:
    """In FastReID's order."""
    foreign = recipe.foreign
    size = _side(foreign("INPUT.SIZE_TRAIN"))
    makers: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("CROP", lambda: _cropped(recipe)),
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
        ("CJ", lambda: _sometimes(foreign("INPUT.CJ.PROB"), _jitter(recipe))),
        ("AFFINE", lambda: {"name": "RandomAffine", "degrees": 10, "scale": [0.9, 1.1], "shear": 0.1}),
        ("AUGMIX", lambda: _sometimes(foreign("INPUT.AUGMIX.PROB"), _policy("augmix-m1-w3-d1-a0.1"))),
        ("REA", lambda: _erased(recipe)),
    ]
    steps = []
    if foreign("INPUT.AUTOAUG.ENABLED"):
        steps.append(_sometimes(foreign("INPUT.AUTOAUG.PROB"), _policy("original")))
    steps += _resized(recipe, "TRAIN")
    return steps + [make() for name, make in makers if foreign(f"INPUT.{name}.ENABLED")]


def _cropped(recipe: Recipe) -> dict[str, Any]:
    section = "INPUT.CROP"
    keys = {"size": "SIZE", "scale": "SCALE", "ratio": "RATIO"}
    return {"name": "RandomResizedCrop", **{ours: recipe.foreign(f"{section}.{key}") for ours, key in keys.items()}}


def _jitter(recipe: Recipe) -> dict[str, Any]:
    keys = ("brightness", "contrast", "saturation", "hue")
    return {"name": "ColorJitter", **{key: recipe.foreign(f"INPUT.CJ.{key.upper()}") for key in keys}}


def _erased(recipe: Recipe) -> dict[str, Any]:
    foreign = recipe.foreign
    mean = {"mean": of_one(foreign("INPUT.REA.VALUE"))} if "INPUT.REA.VALUE" in foreign else {}
    return {"name": "erase", "probability": foreign("INPUT.REA.PROB"), **mean}


def _policy(name: str) -> dict[str, Any]:
    return {"name": "timm_policy", "policy": name}


def _sometimes(probability: float, step: dict[str, Any]) -> dict[str, Any]:
    return {"name": "RandomApply", "p": probability, "transforms": [step]}


def _resized(recipe: Recipe, split: str) -> list[dict[str, Any]]:
    size = recipe.foreign(f"INPUT.SIZE_{split}")
    if not size or size[0] <= 0:
        return []
    return [{"name": "Resize", "size": _side(size), "interpolation": "bicubic"}]


def _side(size: list[Any]) -> Any:
    """Height and width, or the shorter side alone."""
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
            "by": "camera",
            "instances": instances,
        },
        "ImbalancedDatasetSampler": {"name": "weighted"},
    }
    if name not in samplers:
        raise foreign.problem("DATALOADER.SAMPLER_TRAIN", f"{show(name)} is not known here", ", ".join(samplers))
    if sampler := samplers[name]:
        recipe.put("data.sampler", sampler, "DATALOADER.SAMPLER_TRAIN", "DATALOADER.NUM_INSTANCE")
    else:
        recipe.put("data.drop_last", True, "DATALOADER.SAMPLER_TRAIN")


# --- training ---------------------------------------------------------------------------------------------------------


def _training(recipe: Recipe) -> None:
    foreign = recipe.foreign
    recipe.take("SOLVER.OPT", "optimizer.name", str.lower)
    recipe.take("SOLVER.BASE_LR", "optimizer.lr")
    if foreign("SOLVER.OPT") == "SGD":
        recipe.take("SOLVER.MOMENTUM", "optimizer.momentum")
        recipe.take("SOLVER.NESTEROV", "optimizer.nesterov")
    recipe.take("SOLVER.WEIGHT_DECAY", "optimizer.weight_decay")
    _groups(recipe)
    _schedule(recipe)
    recipe.take("SOLVER.MAX_EPOCH", "train.length", lasting("ep"))
    if foreign("SOLVER.AMP.ENABLED"):
        recipe.put("train.precision", "fp16", "SOLVER.AMP.ENABLED")
    if foreign("CUDNN_BENCHMARK"):
        recipe.put("train.cudnn_benchmark", True, "CUDNN_BENCHMARK")
    if step := clipping(recipe):
        recipe.put("train.step", step, "SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "SOLVER.CLIP_GRADIENTS.CLIP_VALUE")
    recipe.take("SOLVER.CHECKPOINT_PERIOD", "checkpoint.every", lasting("ep"))
    if foreign("SOLVER.FREEZE_ITERS"):
        _freezing(recipe)


def _freezing(recipe: Recipe) -> None:
    layers = recipe.foreign("MODEL.FREEZE_LAYERS")
    if "backbone" in layers:
        hook = {
            "name": "freeze",
            "pattern": "^backbone",
            "duration": duration(recipe.foreign("SOLVER.FREEZE_ITERS"), "it"),
        }
        recipe.put("hooks.freeze", hook, "MODEL.FREEZE_LAYERS", "SOLVER.FREEZE_ITERS")
    if others := [str(layer) for layer in layers if layer != "backbone"]:
        recipe.note(f"MODEL.FREEZE_LAYERS: {', '.join(others)} have other names here; see the hook freeze")


def _groups(recipe: Recipe) -> None:
    foreign = recipe.foreign
    usual = foreign("SOLVER.WEIGHT_DECAY")
    rules: list[dict[str, Any]] = []
    for kind in ("norm", "bias"):
        decay = foreign(f"SOLVER.WEIGHT_DECAY_{kind.upper()}")
        factor = foreign("SOLVER.BIAS_LR_FACTOR") if kind == "bias" else 1
        if decay != usual or factor != 1:
            rules.append({"kind": kind, "weight_decay": decay, **({"lr_factor": factor} if factor != 1 else {})})
    if (factor := foreign("SOLVER.HEADS_LR_FACTOR")) != 1:
        rules.append({"pattern": "^(?!backbone)", "lr_factor": factor})
    if rules:
        keys = ("WEIGHT_DECAY_NORM", "WEIGHT_DECAY_BIAS", "BIAS_LR_FACTOR", "HEADS_LR_FACTOR")
        recipe.put("groups.rules", rules, *(f"SOLVER.{key}" for key in keys))


def _schedule(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name = foreign("SOLVER.SCHED")
    if name == "MultiStepLR":
        milestones = [duration(step, "ep") for step in foreign("SOLVER.STEPS")]
        recipe.put("schedule", {"name": "multi_step", "milestones": milestones}, "SOLVER.STEPS")
        recipe.take("SOLVER.GAMMA", "schedule.gamma")
    elif name == "CosineAnnealingLR":
        end = recipe.share("SOLVER.ETA_MIN_LR", "SOLVER.BASE_LR")
        recipe.put("schedule", {"name": "cosine", "end": end}, "SOLVER.SCHED", "SOLVER.ETA_MIN_LR")
    else:
        raise foreign.problem(
            "SOLVER.SCHED", f"{show(name)} is not known here", "MultiStepLR and CosineAnnealingLR are"
        )
    recipe.take_all("SOLVER", "schedule", WARMUP)
    recipe.put("schedule.rule", "fastreid")
    recipe.note(
        "schedule.rule: fastreid counts epochs from the end of warm-up and delay, as FastReID does; without it "
        "they are the run's"
    )


def _evaluation(recipe: Recipe) -> None:
    foreign = recipe.foreign
    ours = "task.evaluator"
    recipe.put(f"{ours}.name", "retrieval")
    recipe.take("TEST.METRIC", f"{ours}.metric", one_of(METRICS))
    recipe.take("TEST.FLIP.ENABLED", "task.flip_test")
    if foreign("TEST.ROC.ENABLED"):
        recipe.put(f"{ours}.roc", True, "TEST.ROC.ENABLED")
    if foreign("TEST.AQE.ENABLED"):
        recipe.take_all("TEST.AQE", f"{ours}.query_expansion", EXPANSION)
    if foreign("TEST.RERANK.ENABLED") or foreign("TEST.METRIC") == "jaccard":
        recipe.put(f"{ours}.rerank.variant", "fastreid")
        recipe.take("TEST.RERANK.K1", f"{ours}.rerank.k1")
        recipe.take("TEST.RERANK.K2", f"{ours}.rerank.k2")
        if foreign("TEST.METRIC") == "jaccard":
            recipe.put(f"{ours}.rerank.lambda_value", 0.0, "TEST.METRIC")
        else:
            recipe.take("TEST.RERANK.LAMBDA", f"{ours}.rerank.lambda_value")
    every = max(0, foreign("TEST.EVAL_PERIOD"))
    recipe.put("evaluate.every", duration(every, "ep"), "TEST.EVAL_PERIOD")
    recipe.take("TEST.IMS_PER_BATCH", "evaluate.batch_size")
    if foreign("TEST.PRECISE_BN.ENABLED"):
        hook = {"every": duration(max(1, every), "ep"), "batches": foreign("TEST.PRECISE_BN.NUM_ITER")}
        recipe.put("hooks.precise_norm", hook, "TEST.PRECISE_BN.NUM_ITER", "TEST.EVAL_PERIOD")
