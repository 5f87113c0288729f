"""Conversion of PySlowFast configs, and of all packaged with it if a checkout is available."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError, catalog, check, compose
from opabinia.migration import convert
from opabinia.migration.recipe import Recipe

# The values of configs/Kinetics/SLOWFAST_8x8_R50.yaml.
SLOWFAST = """
TRAIN: {ENABLE: True, DATASET: kinetics, BATCH_SIZE: 64, EVAL_PERIOD: 10, CHECKPOINT_PERIOD: 1, AUTO_RESUME: True}
DATA:
  NUM_FRAMES: 32
  SAMPLING_RATE: 2
  TRAIN_JITTER_SCALES: [256, 320]
  TRAIN_CROP_SIZE: 224
  TEST_CROP_SIZE: 256
  INPUT_CHANNEL_NUM: [3, 3]
SLOWFAST: {ALPHA: 4, BETA_INV: 8, FUSION_CONV_CHANNEL_RATIO: 2, FUSION_KERNEL_SZ: 7}
RESNET:
  ZERO_INIT_FINAL_BN: True
  WIDTH_PER_GROUP: 64
  NUM_GROUPS: 1
  DEPTH: 50
  TRANS_FUNC: bottleneck_transform
  STRIDE_1X1: False
  NUM_BLOCK_TEMP_KERNEL: [[3, 3], [4, 4], [6, 6], [3, 3]]
  SPATIAL_STRIDES: [[1, 1], [2, 2], [2, 2], [2, 2]]
  SPATIAL_DILATIONS: [[1, 1], [1, 1], [1, 1], [1, 1]]
NONLOCAL: {LOCATION: [[[], []], [[], []], [[], []], [[], []]], INSTANTIATION: dot_product}
BN: {USE_PRECISE_STATS: True, NUM_BATCHES_PRECISE: 200}
SOLVER:
  BASE_LR: 0.1
  LR_POLICY: cosine
  MAX_EPOCH: 196
  MOMENTUM: 0.9
  WEIGHT_DECAY: 1e-4
  WARMUP_EPOCHS: 34.0
  WARMUP_START_LR: 0.01
  OPTIMIZING_METHOD: sgd
MODEL: {NUM_CLASSES: 400, ARCH: slowfast, MODEL_NAME: SlowFast, LOSS_FUNC: cross_entropy, DROPOUT_RATE: 0.5}
TEST: {ENABLE: True, DATASET: kinetics, BATCH_SIZE: 64}
DATA_LOADER: {NUM_WORKERS: 8, PIN_MEMORY: True}
NUM_GPUS: 8
NUM_SHARDS: 1
RNG_SEED: 0
OUTPUT_DIR: .
"""

MULTIGRID = """
MULTIGRID: {SHORT_CYCLE: True, LONG_CYCLE: True}
"""

STEPS = {
    "LR_POLICY: cosine": "LR_POLICY: steps_with_relative_lrs\n  LRS: [1, 0.1, 0.01, 0.001, 1e-4]",
    "MOMENTUM: 0.9": "MOMENTUM: 0.9\n  STEPS: [0, 94, 154, 196]",
    "MAX_EPOCH: 196": "MAX_EPOCH: 239",
}

MVIT = """
MVIT:
  USE_ABS_POS: False
  REL_POS_SPATIAL: True
  REL_POS_TEMPORAL: True
  DEPTH: 16
  NUM_HEADS: 1
  EMBED_DIM: 96
  DIM_MUL: [[1, 2.0], [3, 2.0], [14, 2.0]]
  HEAD_MUL: [[1, 2.0], [3, 2.0], [14, 2.0]]
  POOL_Q_STRIDE: Q_STRIDES
  POOL_KV_STRIDE_ADAPTIVE: [1, 8, 8]
  POOL_KVQ_KERNEL: [3, 3, 3]
  PATCH_KERNEL: (3, 7, 7)
  DROPPATH_RATE: 0.2
  DIM_MUL_IN_ATT: True
  RESIDUAL_POOLING: True
AUG: {NUM_SAMPLE: 2, ENABLE: True, AA_TYPE: rand-m7-n4-mstd0.5-inc1, INTERPOLATION: bicubic, RE_PROB: 0.25}
MIXUP: {ENABLE: True, ALPHA: 0.8, CUTMIX_ALPHA: 1.0}
"""


def with_strides(depth: int, first: Sequence[int]) -> str:
    strides = [[block, 1, *[2 if block in first else 1] * 2] for block in range(depth)]
    return MVIT.replace("Q_STRIDES", str(strides))


MVIT_CHANGES = {
    "NUM_FRAMES: 32": "NUM_FRAMES: 16",
    "TEST_CROP_SIZE: 256": "TEST_CROP_SIZE: 224\n  TRAIN_JITTER_SCALES_RELATIVE: [0.08, 1.0]",
    "ARCH: slowfast, MODEL_NAME: SlowFast, LOSS_FUNC: cross": "ARCH: mvit, MODEL_NAME: MViT, LOSS_FUNC: soft_cross",
    "METHOD: sgd": "METHOD: adamw\n  ZERO_WD_1D_PARAM: True\n  CLIP_GRAD_L2NORM: 1.0\n  COSINE_AFTER_WARMUP: True",
    "TEST: {": "TEST: {NUM_SPATIAL_CROPS: 1, NUM_ENSEMBLE_VIEWS: 5, ",
}


def converted(folder: Path, text: str = SLOWFAST, changes: dict[str, str] | None = None) -> Recipe:
    for old, new in (changes or {}).items():
        assert old in text, old
        text = text.replace(old, new)
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return convert("pyslowfast", file)


def checked(folder: Path, recipe: Recipe) -> dict[str, Any]:
    (folder / "recipe.yaml").write_text(recipe.text(), encoding="utf-8")
    resolved = check(compose(folder / "recipe.yaml"), catalog())
    assert not resolved.warnings
    return resolved.config


def test_values_are_converted(tmp_path: Path) -> None:
    recipe = converted(tmp_path)
    config = checked(tmp_path, recipe)
    backbone = config["task"]["backbone"]
    assert (backbone["alpha"], backbone["fusion_kernel"], backbone["zero_init_last"]) == (4, 7, True)
    assert backbone["temporal_blocks"] is None
    assert (config["task"]["dropout"], config["task"]["mean"], config["task"]["std"]) == (0.5, [0.45] * 3, [0.225] * 3)
    clip, jitter, _ = config["data"]["train"]["transforms"]
    assert (clip["frames"], clip["stride"], clip["fps"]) == (32, 2, 30)
    assert (jitter["size"], jitter["scale"]) == (224, [256, 320])
    val, views = config["data"]["val"]
    assert val["transforms"][1] == {"name": "three_crop", "size": 256, "short_side": None, "interpolation": "bilinear"}
    assert (views["source"]["clips"], views["source"]["crops"]) == (10, 3)
    assert views["source"]["source"]["file"] == "path/to/kinetics/val.csv"
    assert config["data"]["batch_size"] == 64
    assert (config["optimizer"]["lr"], config["optimizer"]["nesterov"]) == (0.1, True)
    schedule = config["schedule"]
    assert (schedule["name"], schedule["warmup"], schedule["warmup_rule"]) == ("cosine", "34ep", "sliced")
    assert schedule["warmup_factor"] == pytest.approx(0.1)
    assert config["hooks"]["precise_bn"]["every"] == "10ep" and config["train"]["length"] == "196ep"
    reasons = {key.path: key.why for key in recipe.unconverted()}
    assert reasons["DATA.INPUT_CHANNEL_NUM"] == "follows from the data or the model"
    assert "no equivalent" not in reasons.values()


def test_multigrid(tmp_path: Path) -> None:
    config = checked(tmp_path, converted(tmp_path, SLOWFAST + MULTIGRID, STEPS))
    shapes = config["shapes"]
    assert (shapes["frames"], shapes["size"], shapes["milestones"]) == (32, 224, [94, 154, 196])
    assert shapes["long_cycle"][0] == pytest.approx([0.25, 0.5**0.5]) and len(shapes["short_cycle"]) == 2
    assert config["schedule"]["name"] == "constant" and shapes["evaluations"] == 3
    assert shapes["drop_empty"], "rows without an epoch after rounding are passed over"
    assert config["schedule"]["warmup_factor"] == pytest.approx(0.0125), "of the rate of the first shape, 8 times 0.1"
    plain = checked(tmp_path, converted(tmp_path, SLOWFAST, STEPS))
    assert plain["schedule"]["milestones"] == ["94ep", "154ep", "196ep"] and plain["shapes"] is None


def test_mvit(tmp_path: Path) -> None:
    config = checked(tmp_path, converted(tmp_path, SLOWFAST + with_strides(16, (1, 3, 14)), MVIT_CHANGES))
    assert config["task"]["backbone"]["model"] == "mvit_v2_s"
    assert config["task"]["loss"]["label_smoothing"] == 0.1
    names = [step["name"] for step in config["data"]["train"]["transforms"]]
    assert names == ["clip", "RandomResizedCrop", "clip_flip", "RandAugment", "RandomErasing"]
    assert config["data"]["train"]["transforms"][3]["magnitude"] == 21
    assert config["data"]["sampler"]["num_repeats"] == 2 and config["data"]["mix"][0]["name"] == "one_of"
    assert config["optimizer"]["name"] == "adamw" and config["train"]["step"]["clip_norm"] == 1.0
    assert config["param_groups"]["rules"][0]["kind"] == "1d" and config["schedule"]["warmup_rule"] == "after"
    assert config["data"]["val"][1]["source"]["crops"] == 1


IMAGES = {  # configs/ImageNet/RES_R50.yaml
    "DATASET: kinetics, BATCH_SIZE: 64, EVAL": "DATASET: imagenet, BATCH_SIZE: 256, EVAL",
    "ARCH: slowfast, MODEL_NAME: SlowFast": "ARCH: 2d, MODEL_NAME: ResNet",
    "TEST_CROP_SIZE: 256": "TEST_CROP_SIZE: 256\n  TRAIN_JITTER_SCALES_RELATIVE: [0.08, 1.0]",
}


def test_images_are_classified(tmp_path: Path) -> None:
    recipe = converted(tmp_path, SLOWFAST, IMAGES)
    config = checked(tmp_path, recipe)
    assert (config["task"]["name"], config["task"]["backbone"]["model"]) == ("classification", "resnet50")
    names = [step["name"] for step in config["data"]["train"]["transforms"]]
    assert names == ["RandomResizedCrop", "RandomHorizontalFlip", "pca_lighting"]
    assert config["data"]["train"]["source"]["root"] == "path/to/imagenet/train"
    assert any("PySlowFast resizes to 224 for 256" in note for note in recipe.notes)
    vit = {"PATCH_KERNEL": "[16, 16]", "PATCH_2D": "True", "USE_MEAN_POOLING": "True", "EMBED_DIM": "768"}
    text = SLOWFAST + "MVIT: {DEPTH: 12, " + ", ".join(f"{key}: {value}" for key, value in vit.items()) + "}\n"
    text += "AUG: {ENABLE: True, AA_TYPE: rand-m9-mstd0.5-inc1}\n"
    to_vit = {**IMAGES, "ARCH: slowfast, MODEL_NAME: SlowFast": "ARCH: mvit, MODEL_NAME: MViT"}
    config = checked(tmp_path, converted(tmp_path, text, to_vit))
    assert config["task"]["backbone"]["model"] == "vit_base_patch16_224"
    assert config["data"]["train"]["transforms"][2]["policy"] == "rand-m9-mstd0.5-inc1"


def test_mvits_of_other_sizes(tmp_path: Path) -> None:
    """MVITv2_B_32x3, and a ViT as in k400_VIT_B_16x4_FT; mixup with probability 0 is omitted."""
    stages = "[[2, 2.0], [5, 2.0], [21, 2.0]]"
    base = (
        with_strides(24, (2, 5, 21))
        .replace("[[1, 2.0], [3, 2.0], [14, 2.0]]", stages)
        .replace("DEPTH: 16", "DEPTH: 24")
    )
    base = base.replace("MIXUP: {ENABLE: True", "MIXUP: {ENABLE: True, PROB: 0.0").replace("-n4", "")
    config = checked(tmp_path, converted(tmp_path, SLOWFAST + base, MVIT_CHANGES))
    backbone = config["task"]["backbone"]
    assert (backbone["name"], backbone["blocks"], backbone["clip"]) == ("mvit", [2, 3, 16, 3], [16, 224, 224])
    assert (backbone["version"], backbone["expansion"], backbone["kv_stride"]) == (2, "attention", 8)
    assert config["data"]["mix"] == [] and config["data"]["train"]["transforms"][3]["num_ops"] == 2
    vit = """
MVIT: {PATCH_KERNEL: [2, 16, 16], PATCH_STRIDE: [2, 16, 16], EMBED_DIM: 768, NUM_HEADS: 12, DEPTH: 12,
       SEP_POS_EMBED: True, USE_MEAN_POOLING: True}
"""
    backbone = checked(tmp_path, converted(tmp_path, SLOWFAST + vit, MVIT_CHANGES))["task"]["backbone"]
    assert (backbone["version"], backbone["blocks"], backbone["pool_kernel"]) == (1, [12], None)
    assert (backbone["patch"], backbone["kv_stride"], backbone["pool"]) == ([2, 16, 16], 1, "mean")
    for old, new in {"DEPTH: 12": "MODE: max", "SEP_POS_EMBED: True": "SEP_POS_EMBED: False"}.items():
        with pytest.raises(ConfigError, match=rf"MVIT.{new.split(':')[0]}: .* is not supported"):
            converted(tmp_path, SLOWFAST + vit.replace(old, new), MVIT_CHANGES)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        (
            {"LOCATION: [[[], []], [[], []]": "LOCATION: [[[], []], [[1, 3], []]"},
            *("non_local", [[], [1, 3], [], []]),
        ),
        ({"ARCH: slowfast, MODEL_NAME: SlowFast": "ARCH: csn, MODEL_NAME: PTVCSN"}, "block", "depthwise"),
        ({"DEPTH: 50": "DEPTH: 101", "[6, 6]": "[6, 23]"}, "fast_temporal_blocks", [3, 4, 23, 3]),
        ({"ARCH: slowfast, MODEL_NAME: SlowFast": "ARCH: i3d, MODEL_NAME: ResNet"}, "name", "i3d"),
        ({"ARCH: slowfast, MODEL_NAME: SlowFast": "ARCH: slow, MODEL_NAME: PTVResNet"}, "name", "slow"),
        ({"ARCH: slowfast, MODEL_NAME: SlowFast": "ARCH: slow_c2d, MODEL_NAME: ResNet"}, "temporal_pool", False),
        ({"DEPTH: 50": "DEPTH: 101"}, "temporal_blocks", [3, 4, 6, 3]),
        ({"DEPTH: 50": "DEPTH: 101", "[6, 6]": "[23, 23]"}, "temporal_blocks", None),
    ],
    ids=["non-local", "csn", "101 50 101", "i3d", "slow", "c2d", "101 50", "101 101"],
)
def test_networks(changes: dict[str, str], key: str, value: Any, tmp_path: Path) -> None:
    assert checked(tmp_path, converted(tmp_path, SLOWFAST, changes))["task"]["backbone"][key] == value


def test_datasets_and_weights(tmp_path: Path) -> None:
    ssv2 = {"DATASET: kinetics, BATCH": "DATASET: ssv2, CHECKPOINT_FILE_PATH: k400.pyth, BATCH"}
    config = checked(tmp_path, converted(tmp_path, SLOWFAST, ssv2))
    source = config["data"]["train"]["source"]
    assert source["class_file"] == "path/to/ssv2/something-something-v2-labels.json"
    assert config["data"]["train"]["transforms"][0]["sampling"] == "uniform"
    assert (config["init"]["weights"], config["init"]["target_prefix"]) == ("k400.pyth", "backbone")
    charades = {
        "DATASET: kinetics, BATCH": "DATASET: charades, BATCH",
        "LOSS_FUNC: cross_entropy": "LOSS_FUNC: bce_logit",
    }
    config = checked(tmp_path, converted(tmp_path, SLOWFAST, charades))
    assert config["data"]["train"]["source"]["multi_label"] and config["task"]["loss"]["name"] == "binary_cross_entropy"


def test_the_last_of_repeated_keys_is_used_and_noted(tmp_path: Path) -> None:
    recipe = converted(tmp_path, SLOWFAST, {"BASE_LR: 0.1": "BASE_LR: 0.3\n  BASE_LR: 0.2"})
    assert recipe.config["optimizer"]["lr"] == 0.2
    assert any(
        "config.yaml:" in note and "BASE_LR" in note and "replaces the one in line" in note for note in recipe.notes
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"DATASET: kinetics, BATCH": "DATASET: ava, BATCH"}, "TRAIN.DATASET: 'ava' is not supported"),
        ({"[[[], []], [[], []], [[], []]": "[[[], []], [[], []], [[], [1, 3]]"}, "non-local blocks are for ResNets"),
        (
            {"MODEL_NAME: SlowFast": "MODEL_NAME: ContrastiveModel"},
            "contrastive pretraining on videos is not supported",
        ),
        ({"MODEL_NAME: SlowFast": "MODEL_NAME: PTVR2plus1D"}, "'slowfast' of 'PTVR2plus1D' is not supported"),
        ({"DILATIONS: [[1, 1], [1, 1], [1, 1], [1, 1]]": "DILATIONS: [[1, 1], [1, 1], [1, 1], [2, 2]]"}, "DILATIONS"),
        ({"BASE_LR: 0.1": "BASE_LR: fast"}, "SOLVER.BASE_LR: expected a number, got 'fast'"),
        ({"BASE_LR: 0.1": "BASE_LR: 0"}, "SOLVER.BASE_LR: must not be 0"),
        ({"cosine": "exponential"}, "SOLVER.LR_POLICY: 'exponential' is not supported"),
        ({"NUM_SHARDS: 1": "DETECTION: {ENABLE: True}"}, "spatio-temporal detection"),
    ],
    ids=["ava", "non-local", "contrastive", "r2plus1d", "dilation", "text", "zero", "policy", "detection"],
)
def test_unsupported_values_are_rejected(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        converted(tmp_path, SLOWFAST, changes)


@pytest.mark.slow
def test_all_configs_of_pyslowfast(tmp_path: Path) -> None:
    """The table in docs/coming_from/pyslowfast.md, of facebookresearch/SlowFast at 287ec00."""
    checkout = os.environ.get("OPABINIA_PYSLOWFAST")
    if checkout is None:
        pytest.skip("OPABINIA_PYSLOWFAST is not the folder of a checkout")
    files = sorted(Path(checkout).glob("configs/**/*.yaml"))
    accepted = Counter[str]()
    for file in files:
        try:
            recipe = convert("pyslowfast", file)
        except ConfigError:
            continue
        checked(tmp_path, recipe)
        accepted[file.relative_to(checkout).parts[1]] += 1
    assert len(files) == 109 and sum(accepted.values()) == 82, accepted
