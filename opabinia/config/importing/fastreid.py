"""FastReID's configs as configs of ours.

Where a config says nothing, FastReID's default is written into the recipe, not ours: :data:`DEFAULTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import show
from opabinia.config.importing import yacs
from opabinia.config.importing.detectron2 import clipping
from opabinia.config.importing.foreign import Foreign, leaves
from opabinia.config.importing.recipe import Recipe, Rule, duration, lasting, of_one, one_of

DEFAULTS: dict[str, Any] = {
    "MODEL.META_ARCHITECTURE": "Baseline",
    "MODEL.FREEZE_LAYERS": [],
    "MODEL.QUEUE_SIZE": 8192,
    "MODEL.WEIGHTS": "",
    "MODEL.PIXEL_MEAN": [123.675, 116.28, 103.53],
    "MODEL.PIXEL_STD": [58.395, 57.12, 57.375],
    "MODEL.BACKBONE.NAME": "build_resnet_backbone",
    "MODEL.BACKBONE.DEPTH": "50x",
    "MODEL.BACKBONE.LAST_STRIDE": 1,
    "MODEL.BACKBONE.NORM": "BN",
    "MODEL.BACKBONE.WITH_IBN": False,
    "MODEL.BACKBONE.WITH_SE": False,
    "MODEL.BACKBONE.WITH_NL": False,
    "MODEL.BACKBONE.STRIDE_SIZE": [16, 16],
    "MODEL.BACKBONE.DROP_PATH_RATIO": 0.1,
    "MODEL.BACKBONE.DROP_RATIO": 0.0,
    "MODEL.BACKBONE.ATT_DROP_RATE": 0.0,
    "MODEL.BACKBONE.PRETRAIN": False,
    "MODEL.BACKBONE.PRETRAIN_PATH": "",
    "MODEL.HEADS.NAME": "EmbeddingHead",
    "MODEL.HEADS.NORM": "BN",
    "MODEL.HEADS.EMBEDDING_DIM": 0,
    "MODEL.HEADS.WITH_BNNECK": False,
    "MODEL.HEADS.NECK_FEAT": "before",
    "MODEL.HEADS.POOL_LAYER": "GlobalAvgPool",
    "MODEL.HEADS.CLS_LAYER": "Linear",
    "MODEL.HEADS.MARGIN": 0.0,
    "MODEL.HEADS.SCALE": 1,
    "MODEL.LOSSES.NAME": ["CrossEntropyLoss"],
    "MODEL.LOSSES.CE.EPSILON": 0.0,
    "MODEL.LOSSES.CE.ALPHA": 0.2,
    "MODEL.LOSSES.CE.SCALE": 1.0,
    "MODEL.LOSSES.TRI.MARGIN": 0.3,
    "MODEL.LOSSES.TRI.NORM_FEAT": False,
    "MODEL.LOSSES.TRI.HARD_MINING": False,
    "MODEL.LOSSES.TRI.SCALE": 1.0,
    "MODEL.LOSSES.CIRCLE.MARGIN": 0.25,
    "MODEL.LOSSES.CIRCLE.GAMMA": 128,
    "MODEL.LOSSES.CIRCLE.SCALE": 1.0,
    "MODEL.LOSSES.COSFACE.MARGIN": 0.25,
    "MODEL.LOSSES.COSFACE.GAMMA": 128,
    "MODEL.LOSSES.COSFACE.SCALE": 1.0,
    "KD.MODEL_CONFIG": [],
    "KD.MODEL_WEIGHTS": [],
    "KD.EMA.ENABLED": False,
    "KD.EMA.MOMENTUM": 0.999,
    "INPUT.SIZE_TRAIN": [256, 128],
    "INPUT.SIZE_TEST": [256, 128],
    "INPUT.CROP.ENABLED": False,
    "INPUT.CROP.SIZE": [224, 224],
    "INPUT.CROP.SCALE": [0.16, 1],
    "INPUT.CROP.RATIO": [0.75, 1.3333333333333333],
    "INPUT.FLIP.ENABLED": False,
    "INPUT.FLIP.PROB": 0.5,
    "INPUT.PADDING.ENABLED": False,
    "INPUT.PADDING.MODE": "constant",
    "INPUT.PADDING.SIZE": 10,
    "INPUT.CJ.ENABLED": False,
    "INPUT.CJ.PROB": 0.5,
    "INPUT.CJ.BRIGHTNESS": 0.15,
    "INPUT.CJ.CONTRAST": 0.15,
    "INPUT.CJ.SATURATION": 0.1,
    "INPUT.CJ.HUE": 0.1,
    "INPUT.AFFINE.ENABLED": False,
    "INPUT.AUTOAUG.ENABLED": False,
    "INPUT.AUTOAUG.PROB": 0.0,
    "INPUT.AUGMIX.ENABLED": False,
    "INPUT.AUGMIX.PROB": 0.0,
    "INPUT.REA.ENABLED": False,
    "INPUT.REA.PROB": 0.5,
    "INPUT.REA.VALUE": [123.675, 116.28, 103.53],
    "INPUT.RPT.ENABLED": False,
    "INPUT.RPT.PROB": 0.5,
    "DATASETS.NAMES": ["Market1501"],
    "DATASETS.TESTS": ["Market1501"],
    "DATASETS.COMBINEALL": False,
    "DATALOADER.SAMPLER_TRAIN": "TrainingSampler",
    "DATALOADER.NUM_INSTANCE": 4,
    "DATALOADER.NUM_WORKERS": 8,
    "DATALOADER.SET_WEIGHT": [],
    "SOLVER.AMP.ENABLED": False,
    "SOLVER.OPT": "Adam",
    "SOLVER.MAX_EPOCH": 120,
    "SOLVER.BASE_LR": 3e-4,
    "SOLVER.HEADS_LR_FACTOR": 1.0,
    "SOLVER.BIAS_LR_FACTOR": 1.0,
    "SOLVER.MOMENTUM": 0.9,
    "SOLVER.NESTEROV": False,
    "SOLVER.WEIGHT_DECAY": 5e-4,
    "SOLVER.WEIGHT_DECAY_NORM": 5e-4,
    "SOLVER.WEIGHT_DECAY_BIAS": 5e-4,
    "SOLVER.SCHED": "MultiStepLR",
    "SOLVER.STEPS": [30, 55],
    "SOLVER.GAMMA": 0.1,
    "SOLVER.ETA_MIN_LR": 1e-7,
    "SOLVER.DELAY_EPOCHS": 0,
    "SOLVER.WARMUP_FACTOR": 0.1,
    "SOLVER.WARMUP_ITERS": 1000,
    "SOLVER.WARMUP_METHOD": "linear",
    "SOLVER.FREEZE_ITERS": 0,
    "SOLVER.CHECKPOINT_PERIOD": 20,
    "SOLVER.IMS_PER_BATCH": 64,
    "SOLVER.CLIP_GRADIENTS.ENABLED": False,
    "SOLVER.CLIP_GRADIENTS.CLIP_TYPE": "norm",
    "SOLVER.CLIP_GRADIENTS.CLIP_VALUE": 5.0,
    "SOLVER.CLIP_GRADIENTS.NORM_TYPE": 2.0,
    "TEST.EVAL_PERIOD": 20,
    "TEST.IMS_PER_BATCH": 64,
    "TEST.METRIC": "cosine",
    "TEST.ROC.ENABLED": False,
    "TEST.FLIP.ENABLED": False,
    "TEST.AQE.ENABLED": False,
    "TEST.AQE.ALPHA": 3.0,
    "TEST.AQE.QE_TIME": 1,
    "TEST.AQE.QE_K": 5,
    "TEST.RERANK.ENABLED": False,
    "TEST.RERANK.K1": 20,
    "TEST.RERANK.K2": 6,
    "TEST.RERANK.LAMBDA": 0.3,
    "TEST.PRECISE_BN.ENABLED": False,
    "TEST.PRECISE_BN.NUM_ITER": 300,
    "CUDNN_BENCHMARK": False,
}
"""FastReID's defaults, of the keys that are read here."""

REASONS = {
    "VERSION": "of FastReID's own keys",
    "MODEL.DEVICE": "train.device; auto takes a GPU where there is one",
    "MODEL.BACKBONE.FEAT_DIM": "follows from the backbone",
    "MODEL.BACKBONE.SIE_COE": "FastReID's was never used; ours is task.side_information",
    "MODEL.BACKBONE.WITH_IBN": "only of ResNets here",
    "MODEL.BACKBONE.WITH_SE": "only of ResNets here",
    "MODEL.BACKBONE.WITH_NL": "only of ResNets here",
    "MODEL.BACKBONE.LAST_STRIDE": "only of ResNets here",
    "MODEL.BACKBONE.NORM": "only of ResNets here",
    "MODEL.HEADS.NUM_CLASSES": "follows from the data",
    "MODEL.HEADS.MARGIN": "a linear head has none",
    "MODEL.LOSSES.FL": "FastReID never used it; ours is task.loss: {name: focal}",
    "TEST.PRECISE_BN.DATASET": "the training set's",
    "OUTPUT_DIR": "--out",
}

RESNETS = {f"{depth}x": f"resnet{depth}.tv_in1k" for depth in (18, 34, 50, 101)}
OF_TIMM: dict[str, dict[str, str]] = {
    "build_resnext_backbone": {"50x": "resnext50_32x4d", "101x": "resnext101_32x4d"},
    "build_resnest_backbone": {
        "50x": "resnest50d",
        "101x": "resnest101e",
        "200x": "resnest200e",
        "269x": "resnest269e",
    },
    "build_regnet_backbone": {
        f"regnet{kind}_{size}mf": f"regnet{kind}_{size // 100:03}"
        for kind in "xy"
        for size in (200, 400, 600, 800, 1600, 3200, 4000, 6400)
    },
    "build_effnet_backbone": {f"b{number}": f"efficientnet_b{number}" for number in range(6)},
    "build_repvgg_backbone": {
        name: f"repvgg_{name.lower()}" for name in ("A0", "A1", "A2", "B0", "B1", "B1g4", "B2", "B2g4", "B3", "B3g4")
    },
}
"""timm's names, by builder and depth."""

NORMS = {"BN": "batch", "syncBN": "batch", "FrozenBN": "frozen", "GN": "group"}
POOLINGS = {
    "Identity": None,
    "Flatten": None,
    "GlobalAvgPool": "average",
    "FastGlobalAvgPool": "average",
    "GlobalMaxPool": "max",
    "GeneralizedMeanPooling": "gem",
    "GeneralizedMeanPoolingP": "gem_learned",
    "AdaptiveAvgMaxPool": "average_max",
    "ClipGlobalAvgPool": "clipped_average",
}
HEADS = {"Linear": "linear", "CosSoftmax": "cosface", "ArcSoftmax": "arcface", "CircleSoftmax": "circle"}
METRIC_LOSSES = {"TripletLoss": "TRI", "CircleLoss": "CIRCLE", "Cosface": "COSFACE"}
METRICS = {"cosine": "cosine", "euclidean": "squared_euclidean", "jaccard": "cosine"}
WARMUPS = {"linear": "linear", "constant": "constant", "exp": "exponential"}
SOURCES: dict[str, dict[str, Any]] = {
    "Market1501": {"name": "market1501"},
    "DukeMTMC": {"name": "dukemtmc"},
    "MSMT17": {"name": "msmt17"},
    "CUHK03": {"name": "cuhk03"},
    "VeRi": {"name": "veri"},
    "VehicleID": {"name": "vehicleid"},
    "SmallVehicleID": {"name": "vehicleid", "size": 800},
    "MediumVehicleID": {"name": "vehicleid", "size": 1600},
    "LargeVehicleID": {"name": "vehicleid", "size": 2400},
}


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
    recipe.take(Rule("MODEL.PIXEL_MEAN", "task.mean", of_one))
    recipe.take(Rule("MODEL.PIXEL_STD", "task.std", of_one))
    _data(recipe)
    _training(recipe)
    _evaluation(recipe)
    recipe.finish()
    return recipe


# --- the network ------------------------------------------------------------------------------------------------------


def _architecture(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name = foreign("MODEL.META_ARCHITECTURE")
    tasks = {"Baseline": "reid", "MGN": "mgn", "MoCo": "reid", "Distiller": "reid"}
    recipe.take(Rule("MODEL.META_ARCHITECTURE", "task.name", one_of(tasks)))
    if foreign("MODEL.HEADS.NAME") != "EmbeddingHead":
        why = f"{show(foreign('MODEL.HEADS.NAME'))} is not taken over"
        raise foreign.problem("MODEL.HEADS.NAME", why, "EmbeddingHead is; ClasHead's is the task classification")
    if name == "MoCo":
        recipe.put("task.memory", {"margin": 0.25, "gamma": 32.0})
        recipe.take(Rule("MODEL.QUEUE_SIZE", "task.memory.size"))
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
        recipe.take(Rule("KD.EMA.MOMENTUM", "distill.average.momentum"))


def _backbone(recipe: Recipe) -> None:
    foreign = recipe.foreign
    name, depth = foreign("MODEL.BACKBONE.NAME"), "MODEL.BACKBONE.DEPTH"
    recipe.put("task.backbone", {}, "MODEL.BACKBONE.NAME")
    if name == "build_resnet_backbone":
        recipe.put("task.backbone.name", "resnet")
        recipe.take(Rule(depth, "task.backbone.model", one_of(RESNETS)))
        _resnet(recipe)
    elif name == "build_vit_backbone":
        recipe.put("task.backbone.name", "vit")
        recipe.take(Rule(depth, "task.backbone.model", one_of({"base": "vit_base_patch16_224"})))
        recipe.take_all(
            [
                Rule("INPUT.SIZE_TRAIN", "task.backbone.image_size"),
                Rule("MODEL.BACKBONE.STRIDE_SIZE", "task.backbone.stride"),
                Rule("MODEL.BACKBONE.DROP_PATH_RATIO", "task.backbone.drop_path"),
                Rule("MODEL.BACKBONE.DROP_RATIO", "task.backbone.dropout"),
                Rule("MODEL.BACKBONE.ATT_DROP_RATE", "task.backbone.attention_dropout"),
            ]
        )
    elif name in OF_TIMM:
        recipe.put("task.backbone.name", "timm")
        recipe.take(Rule(depth, "task.backbone.model", one_of(OF_TIMM[name])))
    else:
        known = ", ".join(["build_resnet_backbone", "build_vit_backbone", *OF_TIMM])
        raise foreign.problem("MODEL.BACKBONE.NAME", f"{show(name)} is not taken over", known)
    _pretrained(recipe)


def _resnet(recipe: Recipe) -> None:
    recipe.take_all(
        [
            Rule("MODEL.BACKBONE.LAST_STRIDE", "task.backbone.last_stride"),
            Rule("MODEL.BACKBONE.WITH_IBN", "task.backbone.ibn"),
            Rule("MODEL.BACKBONE.WITH_SE", "task.backbone.se"),
            Rule("MODEL.BACKBONE.WITH_NL", "task.backbone.non_local"),
            Rule("MODEL.BACKBONE.NORM", "task.backbone.norm", one_of(NORMS)),
        ]
    )
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
    recipe.take(Rule("MODEL.HEADS.POOL_LAYER", "task.pooling", one_of(POOLINGS)))
    if width := foreign("MODEL.HEADS.EMBEDDING_DIM"):
        recipe.put("task.embedding", width, "MODEL.HEADS.EMBEDDING_DIM")
    if foreign("MODEL.META_ARCHITECTURE") == "MGN":
        recipe.leave("MODEL.HEADS.WITH_BNNECK", "task mgn always has one")
    else:
        with_neck = {True: "batch", False: None}
        recipe.take(Rule("MODEL.HEADS.WITH_BNNECK", "task.neck", lambda wanted: with_neck[wanted]))
    if foreign("MODEL.HEADS.NORM") == "syncBN":
        recipe.put("train.sync_batch_norm", True, "MODEL.HEADS.NORM")
    elif foreign("MODEL.HEADS.NORM") != "BN":
        recipe.leave("MODEL.HEADS.NORM", "the neck is a batch norm here")
    recipe.take(Rule("MODEL.HEADS.NECK_FEAT", "task.metric_feature", one_of({"before": "before", "after": "after"})))
    recipe.take(Rule("MODEL.HEADS.CLS_LAYER", "task.head.name", one_of(HEADS)))
    recipe.take(Rule("MODEL.HEADS.SCALE", "task.head.scale"))
    if foreign("MODEL.HEADS.CLS_LAYER") != "Linear":
        recipe.take(Rule("MODEL.HEADS.MARGIN", "task.head.margin"))


def _losses(recipe: Recipe) -> None:
    foreign = recipe.foreign
    names = foreign("MODEL.LOSSES.NAME")
    loss = _cross_entropy(recipe) if "CrossEntropyLoss" in names else None
    recipe.put("task.loss", loss, "MODEL.LOSSES.NAME", "MODEL.LOSSES.CE.EPSILON")
    recipe.take(Rule("MODEL.LOSSES.CE.SCALE", "task.loss_scale"))
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
    recipe.take(Rule("SOLVER.IMS_PER_BATCH", "data.batch_size"))
    recipe.take(Rule("DATALOADER.NUM_WORKERS", "data.workers"))
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
    recipe.take(Rule("SOLVER.OPT", "optimizer.name", str.lower))
    recipe.take(Rule("SOLVER.BASE_LR", "optimizer.lr"))
    if foreign("SOLVER.OPT") == "SGD":
        recipe.take(Rule("SOLVER.MOMENTUM", "optimizer.momentum"))
        recipe.take(Rule("SOLVER.NESTEROV", "optimizer.nesterov"))
    recipe.take(Rule("SOLVER.WEIGHT_DECAY", "optimizer.weight_decay"))
    _groups(recipe)
    _schedule(recipe)
    recipe.take(Rule("SOLVER.MAX_EPOCH", "train.length", lasting("ep")))
    if foreign("SOLVER.AMP.ENABLED"):
        recipe.put("train.precision", "fp16", "SOLVER.AMP.ENABLED")
    if foreign("CUDNN_BENCHMARK"):
        recipe.put("train.cudnn_benchmark", True, "CUDNN_BENCHMARK")
    if step := clipping(recipe):
        recipe.put("train.step", step, "SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "SOLVER.CLIP_GRADIENTS.CLIP_VALUE")
    recipe.take(Rule("SOLVER.CHECKPOINT_PERIOD", "checkpoint.every", lasting("ep")))
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
        recipe.take(Rule("SOLVER.GAMMA", "schedule.gamma"))
    elif name == "CosineAnnealingLR":
        end = recipe.share("SOLVER.ETA_MIN_LR", "SOLVER.BASE_LR")
        recipe.put("schedule", {"name": "cosine", "end": end}, "SOLVER.SCHED", "SOLVER.ETA_MIN_LR")
    else:
        raise foreign.problem(
            "SOLVER.SCHED", f"{show(name)} is not known here", "MultiStepLR and CosineAnnealingLR are"
        )
    recipe.take_all(
        [
            Rule("SOLVER.DELAY_EPOCHS", "schedule.delay", lasting("ep")),
            Rule("SOLVER.WARMUP_ITERS", "schedule.warmup", lasting("it")),
            Rule("SOLVER.WARMUP_FACTOR", "schedule.warmup_factor"),
            Rule("SOLVER.WARMUP_METHOD", "schedule.warmup_mode", one_of(WARMUPS)),
        ]
    )
    recipe.put("schedule.rule", "fastreid")
    recipe.note(
        "schedule.rule: fastreid counts epochs from the end of warm-up and delay, as FastReID does; without it "
        "they are the run's"
    )


def _evaluation(recipe: Recipe) -> None:
    foreign = recipe.foreign
    ours = "task.evaluator"
    recipe.put(f"{ours}.name", "retrieval")
    recipe.take(Rule("TEST.METRIC", f"{ours}.metric", one_of(METRICS)))
    recipe.take(Rule("TEST.FLIP.ENABLED", "task.flip_test"))
    if foreign("TEST.ROC.ENABLED"):
        recipe.put(f"{ours}.roc", True, "TEST.ROC.ENABLED")
    if foreign("TEST.AQE.ENABLED"):
        recipe.take(Rule("TEST.AQE.QE_K", f"{ours}.query_expansion.k"))
        recipe.take(Rule("TEST.AQE.ALPHA", f"{ours}.query_expansion.alpha"))
        recipe.take(Rule("TEST.AQE.QE_TIME", f"{ours}.query_expansion.times"))
    if foreign("TEST.RERANK.ENABLED") or foreign("TEST.METRIC") == "jaccard":
        recipe.put(f"{ours}.rerank.variant", "fastreid")
        recipe.take(Rule("TEST.RERANK.K1", f"{ours}.rerank.k1"))
        recipe.take(Rule("TEST.RERANK.K2", f"{ours}.rerank.k2"))
        if foreign("TEST.METRIC") == "jaccard":
            recipe.put(f"{ours}.rerank.lambda_value", 0.0, "TEST.METRIC")
        else:
            recipe.take(Rule("TEST.RERANK.LAMBDA", f"{ours}.rerank.lambda_value"))
    every = max(0, foreign("TEST.EVAL_PERIOD"))
    recipe.put("evaluate.every", duration(every, "ep"), "TEST.EVAL_PERIOD")
    recipe.take(Rule("TEST.IMS_PER_BATCH", "evaluate.batch_size"))
    if foreign("TEST.PRECISE_BN.ENABLED"):
        hook = {"every": duration(max(1, every), "ep"), "batches": foreign("TEST.PRECISE_BN.NUM_ITER")}
        recipe.put("hooks.precise_norm", hook, "TEST.PRECISE_BN.NUM_ITER", "TEST.EVAL_PERIOD")
