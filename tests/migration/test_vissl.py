"""Conversion of VISSL configs: methods, views, and learning rates as VISSL computes them."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from opabinia.config import ConfigError
from opabinia.contracts import Clock
from opabinia.migration.vissl import convert
from opabinia.models.backbones.resnet import resnet
from opabinia.models.backbones.timm import timm
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


def test_an_unknown_trunk_is_a_required_variable(tmp_path: Path) -> None:
    text = config_of("{name: simclr_info_nce_loss}").replace("NAME: resnet", "NAME: own_trunk")
    recipe = convert_text(tmp_path, text)
    assert recipe.config["vars"]["model"] is None and "'own_trunk' is not known" in "".join(recipe.notes)
    with pytest.raises(ConfigError, match=r"task\.backbone\.model: "):
        resolve(recipe, tmp_path)


def test_sharded_trunks_train_with_fsdp(tmp_path: Path) -> None:
    head = '[["dino_head_fsdp", {"num_clusters": [100]}]]'
    trunk = "vision_transformer_fsdp, VISION_TRANSFORMERS: {CHECKPOINT_BLOCK: True, HIDDEN_DIM: 384, NUM_HEADS: 6}"
    text = config_of("{name: dino_loss}", MULTI, head).replace("NAME: resnet, RESNETS: {DEPTH: 50}", f"NAME: {trunk}")
    config = resolve(convert_text(tmp_path, text), tmp_path)
    assert config["train"]["parallel"]["name"] == "fsdp" and config["train"]["activation_checkpointing"]
    assert config["task"]["outputs"] == 100 and config["task"]["backbone"]["options"]["dynamic_img_size"]


def test_ibot(tmp_path: Path) -> None:
    head = '[["ibot_head", {"out_dim": 64, "shared_head": True, "normalize_last_layer": False}]]'
    steps = MULTI + ", {name: MaskedImageModeling, pred_ratio_mean: [0.0, 0.3], pred_ratio_var: [0.0, 0.2]}"
    text = config_of("{name: ibot_loss, ibot_loss: {lambda2: 2.0}}", steps, head)
    trunk = "NAME: vision_transformer, VISION_TRANSFORMERS: {MASKED_IMAGE_MODELING: {NAME: ibot}}"
    recipe = convert_text(tmp_path, text.replace("NAME: resnet, RESNETS: {DEPTH: 50}", trunk))
    config = resolve(recipe, tmp_path)
    task = config["task"]
    assert (task["outputs"], task["patch_outputs"], task["separate_heads"]) == (64, 64, False)
    assert (task["teacher_temperature"], task["patch_temperature"], task["patch_weight"]) == (0.04, 0.07, 2)
    masks = [view["transforms"][-1] for view in config["data"]["train"]["transforms"][0]["views"]]
    assert [mask["name"] for mask in masks] == ["block_patch_mask", "block_patch_mask", "random_gaussian_blur"]
    assert (masks[0]["mask_ratio"], masks[0]["no_mask_probability"]) == ([0.1, 0.5], 0.5)
    assert "MODEL.TRUNK.VISION_TRANSFORMERS.MASKED_IMAGE_MODELING.NAME" not in {key.path for key in recipe.dropped()}


def test_deit_has_its_augmentations(tmp_path: Path) -> None:
    steps = "{name: RandomResizedCrop, size: 224}, {name: ToTensor}, {name: RandomErasing, p: 0.25}"
    collator = """    COLLATE_FUNCTION: cutmixup_collator
      COLLATE_FUNCTION_PARAMS: {mixup_alpha: 0.8, cutmix_alpha: 1.0, prob: 0.9, switch_prob: 0.3, mode: elem,
        label_smoothing: 0.1, num_classes: 1000}
      TRANSFORMS:"""
    text = config_of("{name: cross_entropy_multiple_output_single_target}", steps)
    recipe = convert_text(tmp_path, text.replace("    TRANSFORMS:", collator, 1))
    config = resolve(recipe, tmp_path)
    assert config["data"]["train"]["transforms"][-1]["p"] == 0.25 and config["task"]["loss"]["label_smoothing"] == 0.1
    [mix] = config["data"]["mix"]
    assert (mix["probability"], mix["weights"], mix["mixes"][0]["alpha"]) == (0.9, [0.7, 0.3], 0.8)
    assert [(part["name"], part["per"]) for part in mix["mixes"]] == [("mixup", "sample"), ("cutmix", "sample")]
    assert recipe.dropped() == []


def test_a_balanced_subset_has_equal_classes(tmp_path: Path) -> None:
    limit = "DATA_LIMIT: 100, DATA_LIMIT_SAMPLING: {IS_BALANCED: True, SEED: 3}"
    text = config_of("{name: cross_entropy_multiple_output_single_target}", "{name: RandomResizedCrop, size: 224}")
    text = text.replace(
        "      LABEL_TYPE", f"      {limit.replace(', DATA_LIMIT_S', chr(10) + '      DATA_LIMIT_S')}\n      LABEL_TYPE"
    )
    sampler = resolve(convert_text(tmp_path, text), tmp_path)["data"]["sampler"]
    assert (sampler["num_samples"], sampler["equal_classes"], sampler["subset_seed"]) == (100, True, 3)


def test_distillation(tmp_path: Path) -> None:
    loss = "{name: distillation_loss, distillation_loss: {soft_target_alpha: 0.3, temperature: 10.0}}"
    teacher = "  DISTILLATION: {TEACHER_MODEL: {TRUNK: {NAME: regnet, REGNET: {name: regnet_y_16gf}}}}"
    text = config_of(loss, "{name: RandomResizedCrop, size: 224}", '[["mlp", {"dims": [2048, 1000]}]]', more=teacher)
    config = resolve(convert_text(tmp_path, text), tmp_path)
    distill = config["distill"]
    assert distill["backbone"]["model"] == "regnety_160" and config["task"]["backbone"]["model"] == "resnet50"
    assert (distill["task_weight"], distill["logits_weight"], distill["temperature"]) == (0.7, 0.3, 10)
    assert config["data"]["train"]["source"]["name"] == "image_folder"
    features = text.replace('[["mlp", {"dims": [2048, 1000]}]]', "[[identity, {}]]").replace(
        "0.3,", "1.0, loss_type: mse,"
    )
    distill = resolve(convert_text(tmp_path, features), tmp_path)["distill"]
    assert (distill["features_weight"], distill["logits_weight"], distill["features_loss"]) == (1, 0, "mse")


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


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("{name: dino_distillation_loss, dino_distillation_loss: {teacher_num_crops: 3}}", (3, 1.0, 0.0)),
        ("{name: ibot_distillation_loss, ibot_distillation_loss: {lambda1: 0.5, lambda2: 2}}", (2, 0.5, 2.0)),
        ("{name: swav_distillation_loss, swav_distillation_loss: {use_two_crops_for_teacher: false}}", (1, 1.0, 0.0)),
    ],
)
def test_distillation_of_projections_becomes_that_of_features(tmp_path: Path, loss: str, expected: Any) -> None:
    teacher = "  DISTILLATION: {TEACHER_MODEL: {TRUNK: {NAME: regnet, REGNET: {name: regnet_y_16gf}}}}"
    recipe = convert_text(tmp_path, config_of(loss, MULTI, more=teacher))
    task = resolve(recipe, tmp_path)["task"]
    assert (task["teacher_views"], task["pooled_weight"], task["dense_weight"]) == expected
    assert task["teacher"]["backbone"]["model"] == "regnety_160" and task["loss"] == "cosine"
    assert recipe.dropped()[0].path == "LOSS.name" and "not assignments to prototypes" in recipe.dropped()[0].why


def test_jigsaw_and_pirl(tmp_path: Path) -> None:
    head = "[[mlp, {dims: [2048, 500]}], [siamese_concat_view, {num_towers: 9}], [mlp, {dims: [4500, 100]}]]"
    patches = "{name: RandomCrop, size: 255}, {name: ImgPatchesFromTensor, patch_jitter: 15}, {name: ShuffleImgPatches}"
    recipe = convert_text(tmp_path, config_of("{name: CrossEntropyLoss}", patches, head))
    task = resolve(recipe, tmp_path)["task"]
    assert (task["name"], task["permutations"], task["hidden"], task["gap"]) == ("jigsaw", 100, 500, 0.1765)
    head = "[[[mlp, {dims: [2048, 64]}], [mlp, {dims: [576, 64]}]], [[mlp, {dims: [2048, 64]}]]]"
    settings = "{loss_weights: [0.3, 0.7], memory_params: {embedding_dim: 64}}"
    loss = f"{{name: nce_loss_with_memory, nce_loss_with_memory: {settings}}}"
    text = config_of(loss, "{name: ImgPilToPatchesAndImage, crop_size_image: 128}, {name: RandomHorizontalFlip}", head)
    config = resolve(convert_text(tmp_path, text), tmp_path)
    assert (config["task"]["name"], config["task"]["projection"]) == ("pirl", 64)
    assert (config["task"]["transformed_weight"], config["task"]["negatives"]) == (0.3, 16000)
    [views] = config["data"]["train"]["transforms"]
    assert [view["transforms"][0]["size"] for view in views["views"]] == [128, 255]
    assert config["data"]["train"]["source"]["name"] == "indexed"


TOOL = """
ENGINE
config:
  DATA:
    TRAIN: {LABEL_SOURCES: [disk_folder], TRANSFORMS: [{name: Resize, size: 256}, {name: CenterCrop, size: 224}]}
    TEST: {LABEL_SOURCES: [disk_folder], TRANSFORMS: [{name: Resize, size: 256}, {name: CenterCrop, size: 224}]}
  MODEL:
    WEIGHTS_INIT: {PARAMS_FILE: some.torch}
    FEATURE_EVAL_SETTINGS:
      EVAL_MODE_ON: True
      LINEAR_EVAL_FEAT_POOL_OPS_MAP: [[res4, [AvgPool2d, [8, 8]]], [res5, [AvgPool2d, [6, 6]]]]
  SECTION
"""


@pytest.mark.parametrize(
    ("section", "evaluator", "options"),
    [
        ("NEAREST_NEIGHBOR: {TOPK: 20}", "knn", {"k": 20, "temperature": 0.1, "normalize": False}),
        (
            "SVM: {costs: {costs_list: [1.0], base: 2.0, power_range: [0, 2]}}",
            "linear_svm",
            {"costs": [1, 1, 2], "folds": 3, "layer": "backbone.model.layer4"},
        ),
        (
            "LOW_SHOT_BENCHMARK: {LOGISTIC_REGRESSION: {LAMBDA: [1.0, 0.1]}}",
            "low_shot",
            {"regularization": 1},
        ),
        ("CLUSTERFIT: {NUM_CLUSTERS: 7}", "clustering", {"k": 7}),
    ],
)
def test_benchmarks_of_features(section: str, evaluator: str, options: dict[str, Any], tmp_path: Path) -> None:
    recipe = convert_text(tmp_path, TOOL.replace("ENGINE", "").replace("SECTION", section))
    config = resolve(recipe, tmp_path)
    assert config["task"]["name"] == "classification" and config["hooks"]["freeze"]["pattern"] == "^backbone"
    assert {key: config["evaluate"]["evaluators"][evaluator]["evaluator"][key] for key in options} == options
    assert config["init"]["target_prefix"] == "backbone" and any("--weights" in note for note in recipe.notes)


def test_extraction_and_tools_without_an_equivalent(tmp_path: Path) -> None:
    text = TOOL.replace("SECTION", "EXTRACT_FEATURES: {OUTPUT_DIR: x}")
    recipe = convert_text(tmp_path, text.replace("ENGINE", "engine_name: extract_features"))
    assert resolve(recipe, tmp_path)["task"]["name"] == "classification"
    assert any("opabinia extract" in note for note in recipe.notes) and recipe.dropped() == []
    with pytest.raises(ConfigError, match="'extract_cluster' is not supported: images are not assigned"):
        convert_text(tmp_path, text.replace("ENGINE", "engine_name: extract_cluster"))
    with pytest.raises(ConfigError, match="GEO_LOCALIZATION: 'GEO_LOCALIZATION' is not supported"):
        convert_text(tmp_path, TOOL.replace("ENGINE", "").replace("SECTION", "GEO_LOCALIZATION: {A: 1}"))


def test_instance_retrieval(tmp_path: Path) -> None:
    section = "IMG_RETRIEVAL: {FEATS_PROCESSING_TYPE: rmac, N_PCA: 64, RESIZE_IMG: 224, EVAL_DATASET_NAME: copydays}"
    text = TOOL.replace("ENGINE", "").replace("SECTION", section)
    config = resolve(convert_text(tmp_path, text), tmp_path)
    assert (config["task"]["pooling"]["name"], config["task"]["neck"]) == ("rmac", None)
    assert config["task"]["evaluator"] == {"name": "instance_retrieval", "components": 64}
    assert (
        config["data"]["val"]["source"]["split"] == "test" and config["data"]["val"]["transforms"][0]["max_size"] == 224
    )


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (config_of("{name: msn_loss}"), "LOSS.name: 'msn_loss' is not supported: VISSL's is a stub"),
        (config_of("{name: own_loss}"), "LOSS.name: 'own_loss' is not supported; supported: simclr"),
        (
            config_of("{name: moco_loss}", "{name: ImgPilToPatchesAndImage}"),
            "LOSS.name: 'moco_loss' is not supported with transforms of pirl",
        ),
        (config_of("{name: CrossEntropyLoss}", "{name: ImgPatchesFromTensor, num_patches: 4}"), "supported: 9"),
        (config_of("{name: CrossEntropyLoss}", "{name: ImgPatchesFromTensor}", "[[mlp, 3]]"), "an mlp of two widths"),
        (config_of("{name: CrossEntropyLoss}", "{name: ImgPatchesFromTensor, patch_jitter: x}"), "pixels below 85"),
        (config_of("{name: nce_loss_with_memory}", "{name: ImgPilToPatchesAndImage}"), "two weights with the sum 1"),
        (config_of("{name: moco_loss}").replace("LOSS:", "CRITERION:"), "CRITERION: this key is of an older VISSL"),
        (config_of("{name: moco_loss}").replace("DEPTH: 50", "DEPTH: 51"), r"51 is not supported; supported: \(18, 34"),
        (config_of("{name: moco_loss}").replace("DEPTH: 50", "NORM: LayerNorm"), "'LayerNorm' is not supported"),
        (config_of("{name: moco_loss}").replace("NAME: resnet", "NAME: alexnet_bvlc"), "timm has no AlexNet"),
        (config_of("{name: moco_loss}").replace("TRUNK:", "INPUT_TYPE: lab\n    TRUNK:"), "'lab' is not supported"),
        (
            config_of("{name: swav_loss}", MULTI).replace("NAME: resnet", "NAME: convit"),
            "timm's ConViT takes views of one size",
        ),
        (
            config_of("{name: moco_loss}").replace("NAME: resnet", "NAME: regnet, REGNET: {depth: 3, w_0: 24}"),
            "a RegNet is defined by depth, w_0, w_a, w_m, group_width, or by its name",
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
