"""Conversion of VISSL configs: methods, views, and learning rates as VISSL computes them."""

import math
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.contracts import Clock
from opabinia.migration.vissl import convert
from opabinia.optim import schedules
from opabinia.runtime.durations import Duration
from tests.migration.recipes import resolve, unconverted, write_files

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


def test_moco(tmp_path: Path) -> None:
    head = '[["mlp", {"dims": [2048, 2048], "use_relu": True}], ["mlp", {"dims": [2048, 64]}]]'
    text = config_of("{name: moco_loss, moco_loss: {queue_size: 4096, temperature: 0.3}}", head=head, more="  FOO: 3")
    recipe = convert_text(tmp_path, text)
    config = resolve(recipe, tmp_path)
    task = config["task"]
    assert (task["name"], task["queue"], task["temperature"], task["momentum"]) == ("moco", 4096, 0.3, 0.999)
    assert (task["hidden"], task["projection"], task["backbone"]["model"]) == (2048, 64, "resnet50")
    assert task["mean"] == [0.5] * 3 and config["data"]["batch_size"] == 256
    [view] = config["data"]["train"]["transforms"][0]["views"]
    crop, flip, jitter, grey, blur = view["transforms"]
    assert view["count"] == 2 and crop["size"] == 224 and flip["p"] == 0.5 and grey["p"] == 0.2
    assert jitter["transforms"][0]["brightness"] == 0.4 and jitter["transforms"][0]["hue"] == 0.1
    assert blur["probability"] == 0.5 and blur["sigma"] == [0.1, 2.0]
    assert (config["optimizer"]["lr"], config["optimizer"]["nesterov"]) == (0.03, True)
    assert [str(milestone) for milestone in config["schedule"]["milestones"]] == ["60ep"] and config["schedule"][
        "gamma"
    ] == 0.1
    skipped = unconverted(recipe)
    assert skipped["FOO"] == "no equivalent" and skipped["VERBOSE"] == "there are no levels of logging"
    assert skipped["DISTRIBUTED.RUN_ID"] == "opabinia train --nproc, --nnodes"


def test_swav_in_an_older_format_with_larc(tmp_path: Path) -> None:
    head = '[["swav_head", {"dims": [2048, 1024, 128], "use_bn": True, "num_clusters": [300, 300]}]]'
    loss = "{name: swav_loss, swav_loss: {epsilon: 0.03, queue: {queue_length: 3840, start_iter: 5}}}"
    text = config_of(loss, MULTI, head, "use_larc: True, larc_config: {trust_coefficient: 0.002}, " + STEPS)
    text = text.replace("RESNETS: {DEPTH: 50}", "TRUNK_PARAMS: {RESNETS: {DEPTH: 101}}").replace(
        "    HEAD:", "    TEMP_FROZEN_PARAMS_ITER_MAP: [['module.heads.0.prototypes0.weight', 313], [a, 3]]\n    HEAD:"
    )
    recipe = convert_text(tmp_path, text)
    config = resolve(recipe, tmp_path)
    task = config["task"]
    assert (task["hidden"], task["projection"], task["prototypes"]) == (1024, 128, [300, 300])
    assert (task["epsilon"], task["queue"]["length"], str(task["queue"]["start"])) == (0.03, 3840, "5it")
    assert (
        str(task["freeze"]) == "313it"
        and unconverted(recipe)["MODEL.TEMP_FROZEN_PARAMS_ITER_MAP"] == "see the hook freeze"
    )
    assert task["backbone"]["model"] == "resnet101"
    assert (config["optimizer"]["name"], config["optimizer"]["trust_coefficient"]) == ("lars", 0.002)
    assert not config["optimizer"]["exclude_1d"]
    first, second, small = config["data"]["train"]["transforms"][0]["views"]
    assert [view["count"] for view in (first, second, small)] == [1, 1, 1] and small["transforms"][0]["size"] == 96
    assert first["transforms"][-1]["probability"] == 1 and second["transforms"][-1]["name"] == "RandomSolarize"
    assert second["transforms"][-1]["p"] == 0.2 and second["transforms"][-2]["probability"] == 0.1


def test_dino_with_a_transformer_and_a_growing_weight_decay(tmp_path: Path) -> None:
    head = '[["dino_head", {"in_dim": 384, "num_clusters": [4096], "normalize_last_layer": false}]]'
    optimizer = (
        "name: adamw, regularize_bias: False, param_schedulers: {lr: {name: cosine, start_value: 0.002, "
        "end_value: 0.00001}, weight_decay: {name: cosine, start_value: 0.04, end_value: 0.4, update_interval: step}}"
    )
    text = config_of("{name: dino_loss, dino_loss: {teacher_temp_warmup_iters: 100}}", MULTI, head, optimizer)
    text = text.replace("name: sgd, ", "").replace("regularize_bn: True", "regularize_bn: False")
    trunk = (
        "TRUNK: {NAME: vision_transformer, VISION_TRANSFORMERS: {NUM_HEADS: 6, HIDDEN_DIM: 384, DROP_PATH_RATE: 0.1}}"
    )
    config = resolve(
        convert_text(tmp_path, text.replace("TRUNK: {NAME: resnet, RESNETS: {DEPTH: 50}}", trunk)), tmp_path
    )
    task = config["task"]
    assert (task["outputs"], task["norm_last_layer"], str(task["teacher_warmup"])) == (4096, False, "100it")
    assert task["backbone"]["model"] == "vit_small_patch16_224" and task["backbone"]["options"]["dynamic_img_size"]
    assert config["schedules"]["weight_decay"]["end"] == 10 and config["optimizer"]["weight_decay"] == 0.04
    assert (config["schedule"]["end"], config["schedule"]["interval"]) == (0.005, "epoch")
    assert [rule["kind"] for rule in config["param_groups"]["rules"]] == ["norm", "bias"]


@pytest.mark.parametrize(
    ("loss", "head", "steps", "expected"),
    [
        (
            "{name: simclr_info_nce_loss, simclr_info_nce_loss: {temperature: 0.2}}",
            '[["mlp", {"dims": [2048, 1024]}], ["mlp", {"dims": [1024, 128]}]]',
            TWO,
            {"name": "simclr", "temperature": 0.2, "hidden": 1024, "projection": 128, "layers": 2},
        ),
        (
            "{name: barlow_twins_loss, barlow_twins_loss: {lambda_: 0.01}}",
            '[["mlp", {"dims": [2048, 512]}], ["mlp", {"dims": [512, 512]}], ["mlp", {"dims": [512, 256]}]]',
            TWO,
            {"name": "barlow_twins", "off_diagonal": 0.01, "projection": 256, "layers": 3, "normalize": "joint"},
        ),
        (
            "{name: deepclusterv2_loss, deepclusterv2_loss: {num_clusters: [30], "
            "memory_params: {crops_for_mb: [0, 1]}}}",
            '[["mlp", {"dims": [2048, 2048, 128]}]]',
            MULTI,
            {"name": "deepcluster", "prototypes": [30], "assign": 2, "projection": 128},
        ),
        (
            "{name: nce_loss_with_memory, nce_loss_with_memory: {loss_type: cross_entropy, temperature: 0.1}}",
            '[["mlp", {"dims": [2048, 128]}]]',
            "{name: RandomResizedCrop, size: 224, interpolation: 3}",
            {"name": "npid", "loss": "info_nce", "negatives": 16000, "temperature": 0.1},
        ),
        (
            "{name: cross_entropy_multiple_output_single_target}",
            '[["mlp", {"dims": [2048, 4]}]]',
            "{name: ImgRotatePil}, {name: RandomResizedCrop, size: 224}",
            {"name": "rotation"},
        ),
    ],
    ids=["simclr", "barlow twins", "deepcluster", "npid", "rotation"],
)
def test_methods(loss: str, head: str, steps: str, expected: dict[str, Any], tmp_path: Path) -> None:
    config = resolve(convert_text(tmp_path, config_of(loss, steps, head)), tmp_path)
    assert {key: config["task"][key] for key in expected} == expected
    numbered = expected["name"] in ("deepcluster", "npid")
    assert config["data"]["train"]["source"]["name"] == ("indexed" if numbered else "image_folder")


def test_a_linear_classifier_on_frozen_layers(tmp_path: Path) -> None:
    evaluation = """    FEATURE_EVAL_SETTINGS:
      EVAL_MODE_ON: True
      FREEZE_TRUNK_ONLY: True
      LINEAR_EVAL_FEAT_POOL_OPS_MAP: [["conv1", [a]], ["res4", [a]], ["res5", [a]]]
    WEIGHTS_INIT: {PARAMS_FILE: "some/model.torch", STATE_DICT_KEY_NAME: classy_state_dict}
    HEAD:"""
    text = config_of("{name: cross_entropy_multiple_output_single_target}", "{name: RandomResizedCrop, size: 224}")
    test = """    TEST:
      BATCHSIZE_PER_REPLICA: 16
      TRANSFORMS: [{name: Resize, size: 256}, {name: CenterCrop, size: 224}, {name: ToTensor}]
  MODEL:"""
    text = text.replace("    HEAD:", evaluation).replace("TEST_MODEL: False", "TEST_MODEL: True")
    recipe = convert_text(tmp_path, text.replace("  MODEL:", test))
    config = resolve(recipe, tmp_path)
    assert config["hooks"]["freeze"]["pattern"] == "^backbone"
    assert (str(config["init"]["weights"]), config["init"]["target_prefix"]) == ("some/model.torch", "backbone")
    probe = config["evaluate"]["evaluators"]["layers"]
    assert probe["evaluator"]["layers"] == ["backbone.model.layer3", "backbone.model.layer4"]
    assert [step["name"] for step in config["data"]["val"]["transforms"]] == ["Resize", "CenterCrop"]
    assert config["evaluate"]["batch_size"] == 128
    assert unconverted(recipe)["MODEL.FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP"] == "no equivalent layer"


@pytest.mark.parametrize("scaling", ["rescaled", "fixed"])
def test_learning_rates_are_those_of_vissl(scaling: str, tmp_path: Path) -> None:
    """Peak: 0.3 of 256 for 256 samples a step. The warm-up begins with what one machine of two would have."""
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
        keys |= {key: Duration.parse(str(keys[key])) for key in ("warmup", "delay")}
        if "schedules" in keys:
            keys["schedules"] = [made(one) for one in keys["schedules"]]
        return lambda clock: getattr(schedules, section["name"])(clock, **keys)

    schedule = made(section)
    return lambda step: schedule(
        Clock(step=step, epoch=step // 10, epoch_step=step % 10, total_steps=1000, steps_per_epoch=10)
    )


def test_on_one_machine_there_is_no_warm_up(tmp_path: Path) -> None:
    text = config_of("{name: simclr_info_nce_loss}", optimizer=WARM.replace("SCALING", "fixed"))
    recipe = convert_text(tmp_path, text, "config.DISTRIBUTED.NUM_NODES=1", "+config.OPTIMIZER.num_epochs=50")
    assert recipe.config["schedule"] == {"name": "cosine", "end": 0.01, "interval": "step"}
    assert recipe.config["train"]["length"] == "50ep"
    assert any("skips the warm-up on a single machine" in note for note in recipe.notes)


def test_config_groups_defaults_and_references(tmp_path: Path) -> None:
    own = config_of("{name: simclr_info_nce_loss}", more="  WORKERS: 7").replace(
        "config:\n", "defaults:\n  - base\n  - optional models: none\n  - _self_\nconfig:\n", 1
    )
    own = own.replace("  DATA:\n", '  DATA:\n    NUM_DATALOADER_WORKERS: "${config.WORKERS}"\n')
    files = {
        "configs/config/pretrain/base.yaml": "config: {SEED_VALUE: 5, DATA: {TRAIN: {BATCHSIZE_PER_REPLICA: 1}}}",
        "configs/config/pretrain/models/r18.yaml": "config: {MODEL: {TRUNK: {RESNETS: {DEPTH: 18}}}}",
        "configs/config/pretrain/own.yaml": own,
    }
    recipe = convert(write_files(tmp_path, files), ["+config/pretrain/models=r18"])
    assert recipe.config["seed"] == 5 and recipe.config["data"]["batch_size"] == 256
    assert recipe.config["task"]["backbone"]["model"] == "resnet18" and recipe.config["data"]["num_workers"] == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            config_of("{name: swav_momentum_loss}"),
            "LOSS.name: 'swav_momentum_loss' is not supported; supported: simclr",
        ),
        (config_of("{name: CrossEntropyLoss}", "{name: ShuffleImgPatches}"), "Jigsaw and PIRL are not supported"),
        (config_of("{name: moco_loss}").replace("LOSS:", "CRITERION:"), "this file has CRITERION, a key of an older"),
        (
            config_of("{name: moco_loss}").replace("DEPTH: 50", "DEPTH: 50, WIDTH_MULTIPLIER: 2"),
            "no supported ResNet has",
        ),
        (config_of("{name: moco_loss}", "{size: 3}"), "TRANSFORMS: {size: 3} is not a transform"),
        (config_of("{name: moco_loss}", "{name: ImgReplicatePil, num_times: 1000000}"), "views from 1 to 100"),
        (
            config_of("{name: moco_loss}", optimizer="param_schedulers: {lr: {name: cyclic}}"),
            "'cyclic' is not supported",
        ),
        (config_of("{name: moco_loss}", optimizer="param_schedulers: {lr: {values: [a]}}"), "a list such as"),
    ],
)
def test_unsupported_values_are_rejected(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        convert_text(tmp_path, text)


def test_unsupported_transforms_are_reported(tmp_path: Path) -> None:
    recipe = convert_text(tmp_path, config_of("{name: moco_loss}", TWO + ", {name: AugLyAugmentation}"))
    assert [(key.value, key.why) for key in recipe.unconverted() if key.path == "DATA.TRAIN.TRANSFORMS"] == [
        ("AugLyAugmentation", "no equivalent transform")
    ]
