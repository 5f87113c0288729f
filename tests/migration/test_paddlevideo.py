"""Conversion of PaddleVideo configs, and the keys that are not converted."""

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from opabinia.cli import app
from opabinia.config import ConfigError, catalog, check, compose
from opabinia.migration.paddlevideo import convert

# The values of configs/recognition/slowfast/slowfast_multigrid.yaml, and an unknown key.
MULTIGRID = """
MODEL:
  framework: "Recognizer3D"
  backbone: {name: "ResNetSlowFast", depth: 50, alpha: 4, beta: 8, width_per_group: 64, fusion_kernel_sz: 7}
  head: {name: "SlowFastHead", num_classes: 400, num_frames: 32, crop_size: 224, dropout_rate: 0.5}
DATASET:
  batch_size: 8  # per GPU
  num_workers: 4
  train: {format: "SFVideoDataset", file_path: "./data/k400/train.csv"}
  valid: {format: "SFVideoDataset", file_path: "./data/k400/val.csv"}
  test: {format: "SFVideoDataset", file_path: "./data/k400/val.csv", num_ensemble_views: 10, num_spatial_crops: 3}
PIPELINE:
  train:
    decode_sampler: {name: "DecodeSampler", num_frames: 32, sampling_rate: 2}
    transform:
      - JitterScale: {min_size: 256, max_size: 320}
      - MultiCrop: {target_size: 224}
      - RandomFlip:
      - Image2Array: {transpose: False}
      - Normalization: {mean: [0.45, 0.45, 0.45], std: [0.225, 0.225, 0.225], tensor_shape: [1, 1, 1, 3]}
      - PackOutput: {alpha: 4}
OPTIMIZER:
  name: 'Momentum'
  momentum: 0.9
  learning_rate:
    name: 'CustomWarmupPiecewiseDecay'
    warmup_epochs: 34
    warmup_start_lr: 0.01
    step_base_lr: 0.1
    lrs: [1, 0.1, 0.01, 0.001, 0.0001, 0.00001]
    gamma: 0.1
    steps: [0, 94, 154, 196]
    max_epoch: 239
  weight_decay: {name: 'L2', value: 1e-4}
  use_nesterov: True
MULTIGRID:
  LONG_CYCLE: True
  SHORT_CYCLE: True
  default_batch_size: 0
  epoch_factor: 1.5
  bn_base_size: 8
  long_cycle_factors: [{value: [0.25, 0.7071]}, {value: [0.5, 0.7071]}, {value: [0.5, 1]}, {value: [1, 1]}]
  short_cycle_factors: [0.5, 0.7071]
PRECISEBN: {preciseBN_interval: 10, num_iters_preciseBN: 200}
val_interval: 10
epochs: 239
EMA: 0.999
"""


def write_config(folder: Path, text: str) -> Path:
    file = folder / "slowfast.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_batch_size_per_gpu_becomes_the_total(tmp_path: Path) -> None:
    recipe = convert(write_config(tmp_path, MULTIGRID), 8)
    assert recipe.config["data"]["batch_size"] == 64
    assert recipe.notes[0] == "data.batch_size: 8 samples per GPU on 8 GPUs are 64 in total"
    skipped = {key.path: (key.value, key.why) for key in recipe.unconverted()}
    assert skipped["EMA"] == (0.999, "no equivalent")
    assert skipped["MODEL.head.num_classes"] == (400, "follows from the data or the model")


def test_values_are_converted(tmp_path: Path) -> None:
    config = convert(write_config(tmp_path, MULTIGRID), 4).config
    assert config["task"] == {
        "name": "video",
        "backbone": {"name": "slowfast", "depth": 50, "alpha": 4, "beta": 8, "fusion_kernel": 7},
        "dropout": 0.5, "mean": [0.45] * 3, "std": [0.225] * 3,
    }  # fmt: skip
    assert config["data"]["train"]["transforms"] == [
        {"name": "clip", "frames": 32, "stride": 2},
        {"name": "scale_jitter", "size": 224, "scale": [256, 320]},
        {"name": "clip_flip"},
    ]
    assert config["data"]["val"][1]["source"]["clips"] == 10 and config["data"]["num_workers"] == 4
    optimizer = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
    assert config["optimizer"] == optimizer
    # 0.01 of 0.8, the learning rate of the first shape, whose batches are eight times as large.
    assert config["schedule"] == {"name": "constant", "warmup": "34ep", "warmup_factor": pytest.approx(0.0125)}
    assert config["shapes"]["milestones"] == [94, 154, 196] and config["shapes"]["long_cycle"][0] == [0.25, 0.7071]
    assert config["shapes"]["drop_empty"]
    assert config["hooks"]["precise_bn"] == {"name": "precise_bn", "every": "10ep", "batches": 200}
    assert (config["train"]["length"], config["evaluate"]["every"]) == ("239ep", "10ep")


def test_without_multigrid_the_learning_rate_has_steps_or_a_cosine(tmp_path: Path) -> None:
    plain = MULTIGRID.replace("LONG_CYCLE: True", "LONG_CYCLE: False").replace(
        "SHORT_CYCLE: True", "SHORT_CYCLE: False"
    )
    config = convert(write_config(tmp_path, plain), 8).config
    assert "shapes" not in config
    assert config["schedule"] == {
        "name": "multi_step", "milestones": ["94ep", "154ep", "196ep"], "gamma": 0.1,
        "warmup": "34ep", "warmup_factor": pytest.approx(0.1),
    }  # fmt: skip
    cosine = plain.replace("steps: [0, 94, 154, 196]", "").replace("step_base_lr", "cosine_base_lr")
    config = convert(write_config(tmp_path, cosine), 8).config
    assert config["schedule"]["name"] == "cosine" and config["optimizer"]["lr"] == 0.1


def test_the_command_prints_a_valid_config(tmp_path: Path) -> None:
    file = write_config(tmp_path, MULTIGRID)
    done = CliRunner().invoke(app, ["config", "import", "paddlevideo", str(file), "--gpus", "2"])
    assert done.exit_code == 0 and "8 samples per GPU on 2 GPUs are 16" in done.stderr
    tree = compose(write_config(tmp_path / "..", done.stdout))
    resolved = check(tree, catalog())
    assert not resolved.warnings
    assert resolved.config["data"]["batch_size"] == 16 and resolved.config["shapes"]["name"] == "multigrid"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("ResNetSlowFast", "MoViNet"), "MODEL.backbone.name: 'MoViNet' is not supported"),
        (("batch_size: 8 ", "batch_size: eight "), "DATASET.batch_size: expected a number, got 'eight'"),
        (("epochs: 239\nEMA", "EMA"), "epochs: expected a number, got null"),
        (("lrs: [1, 0.1", "lrs: [1, 0.5"), "OPTIMIZER.learning_rate.lrs: .* are not powers of gamma"),
        (("MODEL:", "MODEL: ["), "slowfast.yaml"),
    ],
    ids=["a model", "a word", "nothing", "rates", "no YAML"],
)
def test_unsupported_values_are_rejected(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(write_config(tmp_path, MULTIGRID.replace(*change)), 8)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done: Any = CliRunner().invoke(app, ["config", "import", "paddlevideo", str(tmp_path / "no.yaml")])
    assert done.exit_code == 2 and "there is no such file" in done.stderr


def test_the_factors_of_the_long_cycle_are_those_of_the_config(tmp_path: Path) -> None:
    config = convert(write_config(tmp_path, MULTIGRID.replace("{value: [0.5, 1]}", "{value: [0.5, 0.9]}")), 8).config
    assert config["shapes"]["long_cycle"] == [[0.25, 0.7071], [0.5, 0.7071], [0.5, 0.9], [1, 1]]


# The values of configs/recognition/tsm/tsm_k400_videos.yaml.
TSM = """
MODEL:
  framework: "Recognizer2D"
  backbone: {name: "ResNetTSM", pretrained: "data/ResNet50_pretrain.pdparams", num_seg: 8, depth: 50}
  head: {name: "TSMHead", num_classes: 400, in_channels: 2048, drop_ratio: 0.5, std: 0.001}
DATASET:
  batch_size: 16
  num_workers: 4
  train: {format: "VideoDataset", data_prefix: "data/k400/videos", file_path: "data/k400/train.list"}
  valid: {format: "VideoDataset", data_prefix: "data/k400/videos", file_path: "data/k400/val.list"}
  test: {format: "VideoDataset", data_prefix: "data/k400/videos", file_path: "data/k400/val.list"}
PIPELINE:
  train:
    decode: {name: "VideoDecoder", backend: "decord"}
    sample: {name: "Sampler", num_seg: 8, seg_len: 1, valid_mode: False, select_left: True}
    transform:
      - MultiScaleCrop: {target_size: 224, allow_duplication: True}
      - RandomFlip:
      - Image2Array:
      - Normalization: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
  valid:
    decode: {name: "VideoDecoder", backend: "decord"}
    sample: {name: "Sampler", num_seg: 8, seg_len: 1, valid_mode: True, select_left: True}
    transform:
      - Scale: {short_size: 256, fixed_ratio: False}
      - CenterCrop: {target_size: 224}
      - Image2Array:
OPTIMIZER:
  name: 'Momentum'
  momentum: 0.9
  learning_rate: {name: 'PiecewiseDecay', boundaries: [20, 40], values: [0.02, 0.002, 0.0002]}
  weight_decay: {name: 'L2', value: 0.0001}
  grad_clip: {name: 'ClipGradByGlobalNorm', value: 20.0}
METRIC: {name: 'CenterCropMetric'}
model_name: "TSM"
log_interval: 20
save_interval: 10
epochs: 50
"""

SWIN_CHANGES = {
    '{name: "ResNetTSM", pretrained: "data/ResNet50_pretrain.pdparams", num_seg: 8, depth: 50}': (
        '{name: "SwinTransformer3D", embed_dim: 96, depths: [2, 2, 18, 2], num_heads: [3, 6, 12, 24], '
        "patch_size: [2, 4, 4], window_size: [8, 7, 7], mlp_ratio: 4., qk_scale: None}"
    ),
    "num_seg: 8, seg_len: 1, valid_mode: False": "num_seg: 1, seg_len: 32, frame_interval: 2, valid_mode: False",
    "num_seg: 8, seg_len: 1, valid_mode: True": "num_seg: 1, seg_len: 32, frame_interval: 2, valid_mode: True",
    "- MultiScaleCrop: {target_size: 224, allow_duplication: True}": (
        "- Scale: {short_size: 256}\n      - RandomResizedCrop: {backend: cv2}\n      - Scale: {short_size: 224}"
    ),
    "[0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]": "[123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375]",
    "name: 'Momentum'\n  momentum: 0.9": (
        "name: AdamW\n  beta1: 0.9\n  beta2: 0.99\n  no_weight_decay_name: norm relative_position_bias_table"
    ),
    "{name: 'PiecewiseDecay', boundaries: [20, 40], values: [0.02, 0.002, 0.0002]}": (
        "{name: CustomWarmupCosineStepDecay, warmup_iters: 2.5, warmup_ratio: 0.1, "
        "min_lr: 0, base_lr: 1e-4, max_epoch: 30}"
    ),
    "{name: 'L2', value: 0.0001}": "0.02",
    "METRIC:": "GRADIENT_ACCUMULATION: {global_batch_size: 64}\nMETRIC:",
}


def checked(folder: Path, text: str) -> dict[str, Any]:
    recipe = convert(write_config(folder, text), 8)
    (folder / "recipe.yaml").write_text(recipe.text(), encoding="utf-8")
    resolved = check(compose(folder / "recipe.yaml"), catalog())
    assert not resolved.warnings
    return resolved.config


def test_tsm(tmp_path: Path) -> None:
    config = checked(tmp_path, TSM)
    backbone = config["task"]["backbone"]
    assert (backbone["shift"], backbone["backbone"]["model"], backbone["backbone"]["pretrained"]) == (
        "tsm",
        "resnet50",
        True,
    )
    clip, jitter, _ = config["data"]["train"]["transforms"]
    assert (clip["frames"], clip["sampling"], jitter["scale"]) == (8, "uniform", [224, 339])
    look = config["data"]["val"][0]["transforms"]
    assert (look[0]["position"], look[1]["size"], look[1]["short_side"]) == ("middle", 224, 256)
    assert config["data"]["batch_size"] == 128 and config["train"]["step"]["clip_norm"] == 20
    schedule = config["schedule"]
    assert (schedule["milestones"], schedule["gamma"], config["optimizer"]["lr"]) == (["20ep", "40ep"], 0.1, 0.02)


def test_tsn_with_a_changed_resnet_on_frames(tmp_path: Path) -> None:
    text = (
        TSM.replace("ResNetTSM", "ResNetTweaksTSN")
        .replace(", depth: 50", ", layers: 101")
        .replace("num_seg: 8, l", "l")
    )
    text = text.replace('"VideoDataset"', "FrameDataset, suffix: 'img_{:05}.jpg'").replace(
        "drop_ratio", "ls_eps: 0.1, drop_ratio"
    )
    config = checked(tmp_path, text + "MIX: {name: Mixup, alpha: 0.2}\n")
    assert config["task"]["backbone"]["backbone"]["model"] == "resnet101d"
    assert config["data"]["train"]["source"]["pattern"] == "img_{:05}.jpg"
    assert config["task"]["loss"]["label_smoothing"] == 0.1 and config["data"]["mix"][0]["alpha"] == 0.2


TIMESFORMER_CHANGES = {  # pptimesformer_k400_videos.yaml, with the schedule of timesformer_k400_videos.yaml
    '{name: "ResNetTSM", pretrained: "data/ResNet50_pretrain.pdparams", num_seg: 8, depth: 50}': (
        '{name: "VisionTransformer_tweaks", pretrained: "vit_miil", img_size: 224, patch_size: 16, embed_dim: 768, '
        "depth: 12, num_heads: 12, mlp_ratio: 4, qkv_bias: False, epsilon: 1e-6, num_seg: 8, "
        "attention_type: 'divided_space_time'}"
    ),
    "in_channels: 2048, drop_ratio: 0.5, std: 0.001": "in_channels: 768, std: 0.02, ls_eps: 0.1",
    "valid_mode: False, select_left: True": "valid_mode: False, linspace_sample: True",
    "- MultiScaleCrop: {target_size: 224, allow_duplication: True}": (
        "- JitterScale: {min_size: 256, max_size: 320}\n      - RandomCrop: {target_size: 224}"
    ),
    "{name: 'PiecewiseDecay', boundaries: [20, 40], values: [0.02, 0.002, 0.0002]}": (
        "{name: 'MultiStepDecay', milestones: [11, 14], gamma: 0.1, learning_rate: 0.005}"
    ),
    "METRIC:": "MIX: {name: VideoMix, cutmix_prob: 0.5, mixup_alpha: 0.2, cutmix_alpha: 1.0}\nMETRIC:",
}


def test_timesformer(tmp_path: Path) -> None:
    text = TSM
    for old, new in TIMESFORMER_CHANGES.items():
        assert old in text, old
        text = text.replace(old, new)
    config = checked(tmp_path, text)
    backbone = config["task"]["backbone"]
    assert (backbone["name"], backbone["model"]) == ("timesformer", "vit_base_patch16_224_miil")
    assert (backbone["options"], backbone["drop_path"]) == ({"img_size": 224, "qkv_bias": False}, 0.1)
    assert (backbone["frames"], backbone["pretrained"], config["task"]["dropout"]) == (8, True, 0)
    clip, jitter, _ = config["data"]["train"]["transforms"]
    assert (clip["frames"], clip["stride"], clip["fps"], jitter["scale"]) == (8, 32, 30, [256, 320])
    assert [mix["name"] for mix in config["data"]["mix"][0]["mixes"]] == ["mixup", "cutmix"]
    assert (config["optimizer"]["lr"], config["schedule"]["milestones"]) == (0.005, ["11ep", "14ep"])
    with pytest.raises(ConfigError, match="attention_type: 'space_only' is not 'divided_space_time'"):
        checked(tmp_path, text.replace("divided_space_time", "space_only"))


def test_tsm_on_a_mobilenet(tmp_path: Path) -> None:
    text = TSM.replace("ResNetTSM", "PPTSM_MobileNetV3").replace(", depth: 50", "")
    text = text.replace('"TSMHead", num_classes: 400, in_channels: 2048, drop_ratio: 0.5, std: 0.001', '"MoViNetHead"')
    task = checked(tmp_path, text)["task"]
    assert (task["backbone"]["backbone"]["model"], task["dropout"]) == ("mobilenetv3_large_100", 0.2)
    assert task["backbone"]["shift"] == "tsm"


def test_video_swin(tmp_path: Path) -> None:
    text = TSM
    for old, new in SWIN_CHANGES.items():
        assert old in text, old
        text = text.replace(old, new)
    config = checked(tmp_path, text)
    assert config["task"]["backbone"]["model"] == "swin3d_s"
    assert config["task"]["mean"] == pytest.approx([0.485, 0.456, 0.406])
    clip, crop, _ = config["data"]["train"]["transforms"]
    assert (clip["frames"], clip["stride"], crop["size"]) == (32, 2, 224)
    assert (config["data"]["batch_size"], config["train"]["micro_batch_size"]) == (64, 16)
    assert (config["optimizer"]["betas"], config["optimizer"]["weight_decay"]) == ([0.9, 0.99], 0.02)
    schedule = config["schedule"]
    assert (schedule["warmup"], schedule["warmup_factor"]) == ("2.5ep", pytest.approx(0.1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("num_seg: 8, depth", "num_seg: 16, depth"), "tsm shifts an eighth"),
        (("num_seg: 8, seg_len: 1", "num_seg: 8, seg_len: 4"), "8 segments of 4 frames are not supported"),
        (("0.002, 0.0002]", "0.002, 0.0001]"), "have no common factor"),
        (("ClipGradByGlobalNorm", "ClipGradByValue"), "'ClipGradByValue' is not supported"),
    ],
    ids=["shift", "segments", "rates", "clipping"],
)
def test_unsupported_values_of_tsm_are_rejected(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(write_config(tmp_path, TSM.replace(*change)), 8)


@pytest.mark.slow
def test_all_configs_of_paddlevideo(tmp_path: Path) -> None:
    """The table in docs/coming_from/paddlevideo.md, of PaddlePaddle/PaddleVideo at ed245e9."""
    checkout = os.environ.get("OPABINIA_PADDLEVIDEO")
    if checkout is None:
        pytest.skip("OPABINIA_PADDLEVIDEO is not the folder of a checkout")
    files = sorted(Path(checkout).glob("configs/recognition/**/*.y*ml"))
    accepted = []
    for file in files:
        try:
            convert(file, 8)
        except ConfigError:
            continue
        checked(tmp_path, file.read_text(encoding="utf-8"))
        accepted.append(file)
    assert (len(files), len(accepted)) == (47, 23), accepted
