"""PySlowFast's keys: its defaults (slowfast/config/defaults.py), values that are refused, and reasons."""

from __future__ import annotations

from typing import Any

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS = read_tables("pyslowfast", "DEFAULTS", "REASONS")


X3D_DEPTHS = {2.2: "M", 5.0: "L"}
"""Sizes of X3D by their depth factor. XS and S are networks like M."""

PLAIN_MVIT = {
    "MVIT.CLS_EMBED_ON": True,
    "MVIT.DROPOUT_RATE": 0.0,
    "MVIT.LAYER_SCALE_INIT_VALUE": 0.0,
    "MVIT.MLP_RATIO": 4.0,
    "MVIT.MODE": "conv",
    "MVIT.NORM_STEM": False,
    "MVIT.POOL_FIRST": False,
    "MVIT.QKV_BIAS": True,
    "MVIT.SEPARATE_QKV": False,
    "MVIT.USE_FIXED_SINCOS_POS": False,
}
"""The only supported values of MViTs of clips."""

MVIT_VERSIONS: dict[bool, dict[str, bool]] = {
    False: {
        "MVIT.REL_POS_TEMPORAL": False,
        "MVIT.RESIDUAL_POOLING": False,
        "MVIT.SEP_POS_EMBED": True,
        "MVIT.USE_ABS_POS": True,
    },
    True: {"MVIT.REL_POS_TEMPORAL": True, "MVIT.RESIDUAL_POOLING": True, "MVIT.USE_ABS_POS": False},
}
"""The supported values of MViTs with and without relative positions."""

_MVIT = {
    "DATA.NUM_FRAMES": 16,
    "DATA.TRAIN_CROP_SIZE": 224,
    "DATA.TEST_CROP_SIZE": 224,
    "MVIT.DEPTH": 16,
    "MVIT.DIM_MUL": [[1, 2.0], [3, 2.0], [14, 2.0]],
    "MVIT.DROPPATH_RATE": 0.2,
    "MVIT.EMBED_DIM": 96,
    "MVIT.HEAD_MUL": [[1, 2.0], [3, 2.0], [14, 2.0]],
    "MVIT.NUM_HEADS": 1,
    "MVIT.PATCH_KERNEL": [3, 7, 7],
    "MVIT.PATCH_STRIDE": [2, 4, 4],
    "MVIT.POOL_KVQ_KERNEL": [3, 3, 3],
    "MVIT.POOL_KV_STRIDE_ADAPTIVE": [1, 8, 8],
    "MVIT.USE_MEAN_POOLING": False,
}

MVITS: dict[str, dict[str, Any]] = {
    "mvit_v1_b": {**_MVIT, "MVIT.SEP_POS_EMBED": True, "MVIT.USE_ABS_POS": True, "MVIT.DIM_MUL_IN_ATT": False},
    "mvit_v2_s": {
        **_MVIT,
        "MVIT.USE_ABS_POS": False,
        "MVIT.REL_POS_SPATIAL": True,
        "MVIT.REL_POS_TEMPORAL": True,
        "MVIT.RESIDUAL_POOLING": True,
        "MVIT.DIM_MUL_IN_ATT": True,
    },
}
"""The values of torchvision's MViTs."""

_IMAGE_MVIT = {
    "MVIT.CLS_EMBED_ON": False,
    "MVIT.EMBED_DIM": 96,
    "MVIT.PATCH_2D": True,
    "MVIT.RESIDUAL_POOLING": True,
    "MVIT.USE_ABS_POS": False,
    "MVIT.REL_POS_SPATIAL": True,
    "MVIT.DIM_MUL_IN_ATT": True,
}
_IMAGE_VIT = {"MVIT.PATCH_KERNEL": [16, 16], "MVIT.PATCH_2D": True, "MVIT.USE_MEAN_POOLING": True, "MVIT.DIM_MUL": []}

IMAGE_MVITS: dict[str, dict[str, Any]] = {
    "mvitv2_tiny": {**_IMAGE_MVIT, "MVIT.DEPTH": 10, "MVIT.DIM_MUL": [[1, 2.0], [3, 2.0], [8, 2.0]]},
    "mvitv2_small": {**_IMAGE_MVIT, "MVIT.DEPTH": 16, "MVIT.DIM_MUL": [[1, 2.0], [3, 2.0], [14, 2.0]]},
    "mvitv2_base": {**_IMAGE_MVIT, "MVIT.DEPTH": 24, "MVIT.DIM_MUL": [[2, 2.0], [5, 2.0], [21, 2.0]]},
    "vit_base_patch16_224": {**_IMAGE_VIT, "MVIT.DEPTH": 12, "MVIT.EMBED_DIM": 768},
    "vit_large_patch16_224": {**_IMAGE_VIT, "MVIT.DEPTH": 24, "MVIT.EMBED_DIM": 1024},
}
"""The values of timm's vision transformers."""

REFUSED: tuple[tuple[str, Any, str], ...] = (
    ("DETECTION.ENABLE", False, "spatio-temporal detection (AVA) is not supported"),
    ("MASK.ENABLE", False, "masked pretraining is not supported"),
    ("MVIT.REV.ENABLE", False, "reversible MViTs are not supported"),
    ("RESNET.STRIDE_1X1", False, "the stride of a block is in its 3 x 3 convolution"),
    ("RESNET.NUM_GROUPS", 1, "grouped convolutions are not supported"),
    ("RESNET.WIDTH_PER_GROUP", 64, "the stem of the slow pathway has 64 channels"),
    ("SOLVER.CLIP_GRAD_VAL", None, "set train.step.clip_value yourself"),
    ("SOLVER.DAMPENING", 0.0, "SGD has no dampening"),
    ("SOLVER.LARS_ON", False, "LARS is not supported for videos"),
)
"""Keys, the only supported value of each, and the reason."""
