"""Conversion of the self-supervised methods of MMPretrain."""

from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.migration import convert
from opabinia.migration.recipe import Recipe
from tests.migration.recipes import resolve, unconverted, write_files

BASE = """data_preprocessor = dict(type='SelfSupDataPreprocessor', mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375], to_rgb=True)
view = [dict(type='RandomResizedCrop', scale=224, crop_ratio_range=(0.2, 1.), backend='pillow'),
    dict(type='RandomApply', transforms=[dict(type='ColorJitter', brightness=0.4, hue=0.1)], prob=0.8),
    dict(type='RandomGrayscale', prob=0.2, keep_channels=True, channel_weights=(0.114, 0.587, 0.2989)),
    dict(type='GaussianBlur', magnitude_range=(0.1, 2.0), magnitude_std='inf', prob=0.5),
    dict(type='Solarize', thr=128, prob=0.), dict(type='RandomFlip', prob=0.5)]
other = [dict(type='RandomResizedCrop', scale=96), dict(type='Solarize', thr=128, prob=0.2)]
pipeline = [dict(type='LoadImageFromFile'), dict(type='MultiView', num_views=[2, 6], transforms=[view, other]),
    dict(type='PackInputs')]
train_dataloader = dict(batch_size=32, num_workers=8, dataset=dict(type='ImageNet', data_root='data/imagenet/',
    split='train', pipeline=pipeline))
optim_wrapper = dict(optimizer=dict(type='LARS', lr=4.8, momentum=0.9, weight_decay=1e-6),
    paramwise_cfg=dict(custom_keys={'bn': dict(decay_mult=0, lr_mult=0.024, lars_exclude=True),
        'bias': dict(decay_mult=0, lr_mult=0.024, lars_exclude=True),
        'downsample.1': dict(decay_mult=0, lr_mult=0.024, lars_exclude=True)}))
param_scheduler = [dict(type='CosineAnnealingLR', T_max=200, by_epoch=True, begin=0, end=200)]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=200)
auto_scale_lr = dict(base_batch_size=256)
"""
RESNET = "backbone=dict(type='ResNet', depth=50, norm_cfg=dict(type='SyncBN'), zero_init_residual=True)"
LINEAR = "in_channels=2048, hid_channels=2048, out_channels=128"
FIXED = "with_last_bn_affine=False"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "moco": (
        f"type='MoCo', queue_len=4096, {RESNET}, neck=dict(type='MoCoV2Neck', {LINEAR}), "
        "head=dict(type='ContrastiveHead', temperature=0.2)",
        {"hidden": 2048, "projection": 128, "queue": 4096, "momentum": 0.999, "temperature": 0.2},
    ),
    "simclr": (
        f"type='SimCLR', {RESNET}, neck=dict(type='NonLinearNeck', {LINEAR}), head=dict(type='ContrastiveHead')",
        {"hidden": 2048, "projection": 128, "layers": 2, "temperature": 0.1},
    ),
    "byol": (
        f"type='BYOL', {RESNET}, neck=dict(type='NonLinearNeck', {LINEAR}, with_last_bn=False), "
        f"head=dict(type='LatentPredictHead', predictor=dict(type='NonLinearNeck', {LINEAR}, with_last_bn=False))",
        {"hidden": 2048, "projection": 128, "momentum": 0.996},
    ),
    "simsiam": (
        f"type='SimSiam', {RESNET}, neck=dict(type='NonLinearNeck', hid_channels=64, out_channels=64, num_layers=3, "
        f"{FIXED}), head=dict(type='LatentPredictHead', predictor=dict(type='NonLinearNeck', hid_channels=16, "
        "out_channels=64, with_last_bn=False, with_last_bias=True))",
        {"hidden": 16, "projection": 64, "layers": 3},
    ),
    "barlow_twins": (
        f"type='BarlowTwins', {RESNET}, neck=dict(type='NonLinearNeck', {LINEAR}, num_layers=3, with_last_bn=False), "
        "head=dict(type='LatentCrossCorrelationHead', in_channels=128, loss=dict(type='CrossCorrelationLoss'))",
        {"layers": 3, "off_diagonal": 0.0051, "scale": 1.0},
    ),
    "swav": (
        f"type='SwAV', {RESNET}, neck=dict(type='SwAVNeck', {LINEAR}), head=dict(type='SwAVHead', "
        "loss=dict(type='SwAVLoss', feat_dim=128, num_crops=[2, 6])))\ncustom_hooks = [dict(type='SwAVHook', "
        "queue_length=3840, frozen_layers_cfg=dict(prototypes=5005))",
        {"prototypes": [3000], "assign": 2, "epsilon": 0.05, "iterations": 3},
    ),
    "moco_v3": (
        "type='MoCoV3', backbone=dict(type='MoCoV3ViT', arch='mocov3-small', stop_grad_conv1=True), "
        f"neck=dict(type='NonLinearNeck', {LINEAR}, num_layers=3, {FIXED}), head=dict(type='MoCoV3Head', "
        f"temperature=0.2, loss=dict(type='CrossEntropyLoss', loss_weight=0.4), "
        f"predictor=dict(type='NonLinearNeck', {LINEAR}))",
        {"layers": 3, "momentum": 0.99, "temperature": 0.2},
    ),
    "mae": (
        "type='MAE', backbone=dict(type='MAEViT', arch='b', patch_size=16, mask_ratio=0.6), "
        "neck=dict(type='MAEPretrainDecoder', embed_dim=768), head=dict(type='MAEPretrainHead', norm_pix=True, "
        "loss=dict(type='PixelReconstructionLoss', criterion='L2'))",
        {"decoder_width": 512, "decoder_depth": 8, "decoder_heads": 16, "norm_pixels": True},
    ),
}


def imported(folder: Path, task: str, *overrides: str) -> Recipe:
    text = f"{METHODS[task][0]}"
    end = "]" if "custom_hooks" in text else ")"
    return convert("mmpretrain", write_files(folder, {"own.py": f"{BASE}model = dict({text}{end}\n"}), None, overrides)


def test_methods(tmp_path: Path) -> None:
    for task, (_, expected) in METHODS.items():
        recipe = imported(tmp_path, task)
        config = resolve(recipe, tmp_path)
        assert config["task"]["name"] == task
        assert {key: config["task"][key] for key in expected} == expected
        assert config["train"]["sync_batch_norm"] is (task not in ("moco_v3", "mae"))
        [rule] = config["param_groups"]["rules"]
        assert (rule["kind"], rule["weight_decay"], rule["lr_factor"]) == ("1d", 0, 0.024)
        assert config["optimizer"]["exclude_1d"] and config["schedule"]["interval"] == "epoch"
        transforms = config["data"]["train"]["transforms"]
        first, second = transforms[0]["views"]
        assert (first["count"], second["count"], second["transforms"][0]["size"]) == (2, 6, 96)
        names = [step["name"] for step in first["transforms"]]
        assert names[1:] == ["RandomApply", "RandomGrayscale", "random_gaussian_blur", "RandomHorizontalFlip"]
        if task == "mae":
            assert transforms[-1]["mask_ratio"] == 0.6
        if task == "moco_v3":
            assert config["task"]["backbone"]["options"] == {"num_heads": 12}
            reason = unconverted(recipe)["model.head.predictor.with_last_bn"]
            assert reason == "the last layer has it here: false"
        if task == "swav":
            assert str(config["task"]["freeze"]) == "5005it"
            assert (config["task"]["queue"]["length"], str(config["task"]["queue"]["start"])) == (3840, "15ep")


def test_others_are_rejected(tmp_path: Path) -> None:
    for task, override, message in (
        ("moco", "model.type=DenseCL", "supported: ImageClassifier, MoCo, SimCLR"),
        ("moco", "model.neck.type=DenseCLNeck", "supported: MoCoV2Neck"),
        ("byol", "model.neck.num_layers=3", "num_layers: is not supported"),
        ("byol", "model.head.predictor.hid_channels=64", "supported: 2048"),
        ("moco_v3", "model.head.temperature=1.0", "only twice the temperature"),
        ("mae", "model.backbone.type=MAEHiViT", "supported: MAEViT"),
        ("simclr", "model.novel=1", "model.novel: 1 is not supported"),
    ):
        with pytest.raises(ConfigError, match=message):
            imported(tmp_path, task, override)
