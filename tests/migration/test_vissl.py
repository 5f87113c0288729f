"""Conversion of VISSL configs: methods, views, and learning rates as VISSL computes them."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from opabinia.contracts import Clock
from opabinia.migration.vissl import convert
from opabinia.models.backbones.resnet import resnet
from opabinia.models.backbones.timm import timm
from opabinia.optim import schedules
from opabinia.runtime.durations import Duration
from tests.migration.recipes import resolve, write_files

NORMAL = "{name: ToTensor}, {name: Normalize, mean: [0.5, 0.5, 0.5], std: [0.2, 0.2, 0.2]}"
TWO = (
    "{name: ImgReplicatePil, num_times: 2}, {name: RandomResizedCrop, size: 224}, "
    "{name: RandomHorizontalFlip, p: 0.5}, {name: ImgPilColorDistortion, strength: 0.5}, "
    "{name: ImgPilGaussianBlur, p: 0.5, radius_min: 0.1, radius_max: 2.0}"
)
MULTI = (
    "{name: ImgPilToMultiCrop, total_num_crops: 3, size_crops: [224, 96], num_crops: [2, 1], "
    "crop_scales: [[0.4, 1], [0.05, 0.4]]}, {name: RandomHorizontalFlip}, {name: ImgPilMultiCropRandomApply, "
    "transforms: [{name: ImgPilGaussianBlur, p: 1.0, radius_min: 0.1, radius_max: 2.0}], prob: [1.0, 0.1, 0.5]}, "
    "{name: ImgPilMultiCropRandomApply, transforms: [{name: ImgPilRandomSolarize, p: 1.0}], prob: [0.0, 0.2, 0.0]}"
)
STEPS = "param_schedulers: {lr: {name: multistep, values: [0.03, 0.003], milestones: [60], update_interval: epoch}}"
WARM = (
    "param_schedulers: {lr: {auto_lr_scaling: {auto_scale: true, base_value: 0.3, base_lr_batch_size: 256}, "
    "name: composite, schedulers: [{name: linear, start_value: 0.6, end_value: 4.8}, "
    "{name: cosine, start_value: 4.8, end_value: 0.048}], update_interval: step, "
    "interval_scaling: [rescaled, SCALING], lengths: [0.1, 0.9]}}"
)


def config_of(loss: str, steps: str = TWO, head: str = "[]", optimizer: str = STEPS, more: str = "") -> str:
    return f"""
# @package _global_
config:
  VERBOSE: False
  TEST_MODEL: False
  DATA:
    TRAIN:
      DATA_SOURCES: [disk_folder]
      DATASET_NAMES: [imagenet1k_folder]
      BATCHSIZE_PER_REPLICA: 32
      LABEL_TYPE: sample_index
      TRANSFORMS: [{steps}, {NORMAL}]
  MODEL:
    TRUNK: {{NAME: resnet, RESNETS: {{DEPTH: 50}}}}
    HEAD: {{PARAMS: {head}}}
  LOSS: {loss}
  OPTIMIZER: {{name: sgd, num_epochs: 100, nesterov: True, regularize_bn: True, {optimizer}}}
  DISTRIBUTED: {{NUM_NODES: 2, NUM_PROC_PER_NODE: 4, RUN_ID: auto}}
{more}
"""


def convert_text(folder: Path, text: str, *overrides: str) -> Any:
    return convert(write_files(folder, {"configs/config/own.yaml": text}), overrides)


@pytest.mark.parametrize("scaling", ["rescaled", "fixed"])
def test_learning_rates_are_those_of_vissl(scaling: str, tmp_path: Path) -> None:
    """The peak is 0.3 for batches of 256. The warm-up begins with the learning rate of a single machine of two."""
    text = config_of("{name: simclr_info_nce_loss}", optimizer=WARM.replace("SCALING", scaling))
    config = resolve(convert_text(tmp_path, text), tmp_path)
    assert (config["optimizer"]["lr"], config["train"]["lr_batch_size"]) == (0.3, 256)
    value = value_of(config["schedule"])
    for step in (0, 40, 99, 100, 101, 550, 999):
        where = step / 1000
        along = where if scaling == "fixed" else (where - 0.1) / 0.9
        falling = 0.01 + 0.99 * (1 + math.cos(math.pi * along)) / 2
        assert value(step) == pytest.approx(0.5 + 0.5 * where / 0.1 if where < 0.1 else falling, abs=1e-5), step


def value_of(section: dict[str, Any]) -> Any:
    """A schedule as a function of the step, of 1,000 in 100 epochs."""

    def made(section: dict[str, Any]) -> Any:
        keys = {key: value for key, value in section.items() if key != "name"}
        keys |= {key: Duration.parse(str(keys[key])) for key in ("warmup", "delay", "cycle") if key in keys}
        if "schedules" in keys:
            keys["schedules"] = [made(part) for part in keys["schedules"]]
        return lambda clock: getattr(schedules, section["name"])(clock, **keys)

    schedule = made(section)
    return lambda step: schedule(
        Clock(step=step, epoch=step // 10, epoch_step=step % 10, total_steps=1000, steps_per_epoch=10)
    )


TRUNKS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet, RESNETS: {DEPTH: 50, WIDTH_MULTIPLIER: 4}": ("resnet50", {"name": "resnet", "width_multiplier": 4}),
    "resnet, RESNETS: {GROUPS: 32, WIDTH_PER_GROUP: 8}": (
        "resnet50",
        {"options": {"cardinality": 32, "base_width": 8}},
    ),
    "resnet, RESNETS: {DEPTH: 101, GROUPS: 32, WIDTH_PER_GROUP: 8}": ("resnext101_32x8d", {"options": None}),
    "xcit, XCIT: {PATCH_SIZE: 8, HIDDEN_DIM: 512, ETA: 0.00001}": (
        "xcit_small_12_p16_224",
        {"drop_path": 0.05, "options": {"patch_size": 8, "embed_dim": 512, "eta": 0.00001, "depth": 12}},
    ),
    "convit, VISION_TRANSFORMERS: {NUM_HEADS: 9, HIDDEN_DIM: 576}": (
        "convit_base",
        {"options": {"embed_dim": 64, "num_heads": 9, "local_up_to_layer": 10, "qkv_bias": False}},
    ),
    "swin_transformer, SWIN_TRANSFORMER: {EMBED_DIM: 128}": (
        "swin_tiny_patch4_window7_224",
        {"options": {"embed_dim": 128, "window_size": 7, "depths": [2, 2, 6, 2]}},
    ),
    "beit, BEIT: {QKV_BIAS: True, INIT_VALUES: 0.1}": (
        "beit_base_patch16_224",
        {"options": {"qkv_bias": True, "global_pool": "avg", "init_values": 0.1}},
    ),
    "convnext, CONVNEXT: {DEPTH: [3, 3, 9, 3]}": ("convnext_small", {"options": {"depths": [3, 3, 9, 3]}}),
    "regnet, REGNET: {name: regnet_y_400mf}": ("regnety_004", {}),
    "regnet, REGNET: {depth: 27, w_0: 456, w_a: 160.83, w_m: 2.52, group_width: 264}": ("regnety_1280", {}),
    "regnet, REGNET: {name: anynet, depths: [2, 4, 11, 1], widths: [224, 448, 1232, 3024], group_widths: "
    "[112, 112, 112, 112]}": ("regnety_160", {}),
    "mobilenetv3_tv": ("mobilenetv3_large_100", {}),
    "efficientnet, EFFICIENT_NETS: {model_version: B3}": ("efficientnet_b3", {}),
    "vision_transformer, VISION_TRANSFORMERS: {HIDDEN_DIM: 2560, NUM_HEADS: 32, MLP_DIM: 7_680, QKV_BIAS: True}": (
        "vit_base_patch16_224",
        {"options": {"embed_dim": 2560, "num_heads": 32, "mlp_ratio": 3.0, "patch_size": 16}},
    ),
    "vision_transformer, VISION_TRANSFORMERS: {CLASSIFIER: gap}": (
        "vit_base_patch16_224",
        {"options": {"qkv_bias": False, "global_pool": "avg", "img_size": 224}},
    ),
}


@pytest.mark.parametrize("trunk", TRUNKS)
def test_trunks_become_models_of_timm_of_the_same_size(trunk: str, tmp_path: Path) -> None:
    model, keys = TRUNKS[trunk]
    text = config_of("{name: simclr_info_nce_loss}").replace(
        "{NAME: resnet, RESNETS: {DEPTH: 50}}", f"{{NAME: {trunk}}}"
    )
    backbone = resolve(convert_text(tmp_path, text), tmp_path)["task"]["backbone"]
    assert backbone["model"] == model
    for key, value in keys.items():
        assert (value.items() <= backbone[key].items()) if isinstance(value, dict) else backbone[key] == value


@pytest.mark.slow
@pytest.mark.parametrize("trunk", TRUNKS)
def test_trunks_can_be_built(trunk: str, tmp_path: Path) -> None:
    text = config_of("{name: simclr_info_nce_loss}").replace("NAME: resnet, RESNETS: {DEPTH: 50}", f"NAME: {trunk}")
    keys = convert_text(tmp_path, text).config["task"]["backbone"]
    build = {"timm": timm, "resnet": resnet}[keys.pop("name")]
    with torch.device("meta"):
        assert build(3, **keys).out_channels > 0


def test_sharded_trunks_train_with_fsdp(tmp_path: Path) -> None:
    head = '[["dino_head_fsdp", {"num_clusters": [100]}]]'
    trunk = "vision_transformer_fsdp, VISION_TRANSFORMERS: {CHECKPOINT_BLOCK: True, HIDDEN_DIM: 384, NUM_HEADS: 6}"
    text = config_of("{name: dino_loss}", MULTI, head).replace("NAME: resnet, RESNETS: {DEPTH: 50}", f"NAME: {trunk}")
    config = resolve(convert_text(tmp_path, text), tmp_path)
    assert config["train"]["parallel"]["name"] == "fsdp" and config["train"]["activation_checkpointing"]
    assert config["task"]["outputs"] == 100 and config["task"]["backbone"]["options"]["dynamic_img_size"]


def test_regnets_of_other_sizes_are_those_of_timm(tmp_path: Path) -> None:
    text = config_of("{name: moco_loss}").replace(
        "NAME: resnet", "NAME: regnet, REGNET: {depth: 20, w_0: 240, w_a: 115.89, w_m: 2.53, group_width: 232}"
    )
    backbone = resolve(convert_text(tmp_path, text), tmp_path)["task"]["backbone"]
    assert backbone.pop("name") == "regnet" and backbone.pop("drop_path") == 0
    assert backbone == {
        **{"depth": 20, "initial_width": 240, "slope": 115.89, "multiplier": 2.53, "group_width": 232},
        **{"bottleneck_ratio": 1.0, "se_ratio": 0.25, "stem_width": 32},
    }


def test_restarts_are_those_of_vissl(tmp_path: Path) -> None:
    """Every 34 epochs a cosine starts at the value that the cosine of the whole training has at that epoch."""
    lr = "{name: cosine_warm_restart, start_value: 2.0, end_value: 0.02, WAVE, restart_interval_length: 0.34}"
    text = config_of("{name: simclr_info_nce_loss}", optimizer=f"param_schedulers: {{lr: {lr}}}")
    wave = "update_interval: step, wave_type: half, is_adaptive: True"
    config = resolve(convert_text(tmp_path, text.replace("WAVE", wave)), tmp_path)
    value = value_of(config["schedule"])
    assert config["optimizer"]["lr"] == 2.0
    for step in (0, 300, 339, 340, 500, 680, 999):
        where, begin = step / 1000, 0.34 * (step // 340)
        peak = 0.02 + 1.98 * (1 + math.cos(math.pi * begin)) / 2
        expected = 0.02 + (peak - 0.02) * (1 + math.cos(math.pi * (where - begin) / 0.34)) / 2
        assert 2 * value(step) == pytest.approx(expected, abs=1e-4), step
    decaying = convert_text(tmp_path, text.replace("WAVE", "wave_type: full, is_adaptive: False, lr_multiplier: 0.5"))
    schedule = resolve(decaying, tmp_path)["schedule"]
    assert (schedule["wave_type"], schedule["cycle_decay"], schedule["peaks"]) == ("full", 0.5, "decay")


def test_unsupported_transforms_are_reported(tmp_path: Path) -> None:
    recipe = convert_text(tmp_path, config_of("{name: moco_loss}", TWO + ", {name: AugLyAugmentation}"))
    assert [(key.value, key.why) for key in recipe.unconverted() if key.path == "DATA.TRAIN.TRANSFORMS"] == [
        ("AugLyAugmentation", "no equivalent transform")
    ]
