"""Tables for basecls: its defaults, the reasons why keys are not converted, and the equivalents of its names."""

from __future__ import annotations

from typing import Any

from opabinia.migration.python_literals import Name
from opabinia.migration.tables import read_tables

DEFAULTS, REASONS = read_tables("basecls", "DEFAULTS", "REASONS")

NORM = Name("NORM_TYPES")


_PRECISE_BN = {"bn.precise_every_n_epoch": 1}

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

_EMA = {"model_ema.enabled": True}

_ADAM = {**_TRANSFORMER, "solver.optimizer": "adamw", "solver.max_epoch": 300, "solver.warmup_epochs": 20}

_EFFNET = {
    **_PRECISE_BN,
    **_STRONG,
    **_COSINE,
    **_EMA,
    "augments.rand_erase.prob": 0.25,
    "solver.basic_lr": 0.05,
    "solver.weight_decay": [[0, "bias"], [0, NORM], 1e-5],
    "solver.max_epoch": 350,
    "model_ema.momentum": 0.99998,
}

_REGNET = {
    **_PRECISE_BN,
    **_STRONG,
    **_COSINE,
    **_EMA,
    "test.crop_pct": 224 / 232,
    "augments.rand_aug.magnitude": 7,
    "augments.rand_erase.prob": 0.1,
    "augments.mixup.mixup_alpha": 0.2,
    "augments.mixup.cutmix_alpha": 1.0,
    "solver.basic_lr": 0.025,
    "solver.weight_decay": [[0, "bias"], [0, NORM], 2e-5],
    "solver.max_epoch": 300,
    "model_ema.momentum": 0.99998,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "BaseConfig": {},
    "ResNetConfig": _REGNET,
    "HRNetConfig": {**_PRECISE_BN, **_COSINE, "solver.basic_lr": 0.025, "solver.weight_decay": 5e-5},
    "VGGConfig": {
        **_PRECISE_BN,
        **_COSINE,
        "solver.basic_lr": 0.025,
        "solver.weight_decay": [[0, "bias"], [0, NORM], 5e-5],
    },
    "RegNetConfig": _REGNET,
    "EffNetConfig": _EFFNET,
    "EffNetLiteConfig": {
        **_EFFNET,
        "augments.name": "ColorAugment",
        "augments.resize.interpolation": "bilinear",
        "augments.rand_erase.prob": 0.0,
    },
    "MBConfig": {
        **_PRECISE_BN,
        **_LIGHT,
        **_COSINE,
        "solver.basic_lr": 0.05,
        "solver.weight_decay": [[0, "bias"], [0, NORM], 4e-5],
        "solver.max_epoch": 150,
    },
    "SNetConfig": {
        **_PRECISE_BN,
        **_LIGHT,
        "solver.basic_lr": 0.0625,
        "solver.weight_decay": [[0, "bias"], [0, NORM], 4e-5],
        "solver.max_epoch": 240,
        "solver.warmup_epochs": 0,
        "solver.lr_schedule": "linear",
    },
    "RepVGGConfig": {
        **_PRECISE_BN,
        "batch_size": 64,
        "augments.name": "SimpleAugment",
        "solver.max_epoch": 120,
        "solver.lr_schedule": "cosine",
        "solver.basic_lr": 0.025,
        "solver.weight_decay": [[0, "bn"], [0, "bias"], 1e-4],
    },
    "ResMLPConfig": {
        **_TRANSFORMER,
        **_EMA,
        "test.crop_pct": 0.9,
        "solver.optimizer": "lamb",
        "solver.basic_lr": 6.25e-4,
        "solver.weight_decay": [[0, "bias"], [0, "gamma"], [0, NORM], [0, Name("Affine")], 0.2],
        "solver.max_epoch": 400,
        "model_ema.momentum": 0.99996,
    },
    "ViTConfig": {
        **_ADAM,
        **_EMA,
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
"""Changes to the defaults by the classes of ``basecls.configs``."""


MODELS: tuple[tuple[str, str], ...] = (
    (r"(resnet\d+d?|wide_resnet\d+_2|resnext50_32x4d|resnext101_(32x4d|32x8d|64x4d))", r"\1"),
    (r"se_(resnet\d+|resnext50_32x4d|resnext101_(32x4d|32x8d|64x4d))", r"se\1"),
    (r"resnext152_\d+x\d+d", "resnet152"),
    (r"se_resnext152_\d+x\d+d", "seresnet152"),
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
"""Patterns of basecls' model names with timm's names."""

OPTIMIZERS = {name: name for name in ("sgd", "adam", "adamw", "lamb", "lars")}

PER = {"batch": "batch", "pair": "pair", "elem": "sample"}

PARAMETERS: dict[str, dict[str, Any]] = {
    "bias": {"kind": "bias"},
    "bn": {"kind": "norm"},
    "NORM_TYPES": {"kind": "norm"},
    "pos_embed": {"kind": "embedding"},
    "cls_token": {"kind": "embedding"},
    "abs_pos_embed": {"kind": "embedding"},
    "rel_pos_bias_table": {"kind": "embedding"},
    "gamma": {"pattern": r"\.ls\d$"},
    "Affine": {"pattern": r"\.(alpha|beta)$"},
}
"""Parameters in ``param_groups.rules`` by basecls' names."""
