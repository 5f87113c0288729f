"""Conversion of MMAction2's configs; see test_own_configs.py for its own ones."""

from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.migration import convert
from opabinia.migration.recipe import Recipe
from tests.migration.recipes import resolve, unconverted, write_files

BASE = """sample = dict(type='SampleFrames', clip_len=32, frame_interval=2, num_clips=1)
train_pipeline = [dict(type='DecordInit'), sample, dict(type='DecordDecode'),
    dict(type='Resize', scale=(-1, 256)), dict(type='RandomResizedCrop'),
    dict(type='Resize', scale=(224, 224), keep_ratio=False), dict(type='Flip', flip_ratio=0.5),
    dict(type='FormatShape', input_format='NCTHW'), dict(type='PackActionInputs')]
val_pipeline = [dict(type='SampleFrames', clip_len=32, frame_interval=2, num_clips=1, test_mode=True),
    dict(type='Resize', scale=(-1, 256)), dict(type='CenterCrop', crop_size=224)]
test_pipeline = [dict(type='SampleFrames', clip_len=32, frame_interval=2, num_clips=10, test_mode=True),
    dict(type='Resize', scale=(-1, 256)), dict(type='ThreeCrop', crop_size=256)]
preprocessor = dict(type='ActionDataPreprocessor', mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375],
    format_shape='NCTHW')
train_dataloader = dict(batch_size=8, num_workers=8, dataset=dict(type='VideoDataset', ann_file='train.txt',
    data_prefix=dict(video='data/train'), pipeline=train_pipeline))
val_dataloader = dict(batch_size=8, dataset=dict(type='VideoDataset', ann_file='val.txt',
    data_prefix=dict(video='data/val'), pipeline=val_pipeline, test_mode=True))
test_dataloader = dict(batch_size=1, dataset=dict(type='VideoDataset', ann_file='val.txt',
    data_prefix=dict(video='data/val'), pipeline=test_pipeline, test_mode=True))
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=100, val_begin=1, val_interval=1)
param_scheduler = [dict(type='MultiStepLR', begin=0, end=100, by_epoch=True, milestones=[40, 80], gamma=0.1)]
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.0001),
    clip_grad=dict(max_norm=40, norm_type=2))
default_hooks = dict(checkpoint=dict(type='CheckpointHook', interval=5, max_keep_ckpts=3, save_best='auto'))
default_scope = 'mmaction'
auto_scale_lr = dict(enable=False, base_batch_size=64)
load_from = None
"""
I3D = """model = dict(type='Recognizer3D', data_preprocessor=preprocessor,
    backbone=dict(type='ResNet3d', pretrained2d=True, pretrained='torchvision://resnet50', depth=50,
        conv1_kernel=(5, 7, 7), conv1_stride_t=2, pool1_stride_t=2, conv_cfg=dict(type='Conv3d'), norm_eval=False,
        inflate=((1, 1, 1), (1, 0, 1, 0), (1, 0, 1, 0, 1, 0), (0, 1, 0)), zero_init_residual=False),
    cls_head=dict(type='I3DHead', num_classes=400, in_channels=2048, spatial_type='avg', average_clips='prob'))
"""


def imported(folder: Path, body: str, *overrides: str, gpus: int | None = None) -> Recipe:
    return convert("mmaction", write_files(folder, {"own.py": BASE + body}), gpus, overrides)


def model(backbone: str, head: str, *, recognizer: str = "3D") -> str:
    head = f"dict(type='{head}', num_classes=400, in_channels=2048)"
    parts = f"data_preprocessor=preprocessor, backbone={backbone}, cls_head={head}"
    return f"model = dict(type='Recognizer{recognizer}', {parts})\n"


def test_an_i3d(tmp_path: Path) -> None:
    recipe = imported(tmp_path, I3D)
    config = resolve(recipe, tmp_path)
    backbone = config["task"]["backbone"]
    assert (backbone["name"], backbone["frame_stride"], backbone["zero_init_last"]) == ("i3d", 4, False)
    assert config["task"]["mean"] == [0.485, 0.456, 0.406] and config["task"]["dropout"] == 0.5
    assert (config["init"]["weights"], config["init"]["target_prefix"]) == ("path/to/resnet50", "backbone")
    train, (val, views) = config["data"]["train"], config["data"]["val"]
    assert (train["source"]["file"], train["source"]["root"]) == ("train.txt", "data/train")
    clip, crop, flip = train["transforms"]
    assert (clip["frames"], clip["stride"], clip["sampling"], clip["short_side"]) == (32, 2, "dense", 256)
    assert (crop["name"], crop["size"], flip["probability"]) == ("RandomResizedCrop", 224, 0.5)
    assert val["transforms"][0]["position"] == "middle"
    assert (val["transforms"][1]["size"], val["transforms"][1]["short_side"]) == (224, 256)
    assert (views["source"]["clips"], views["source"]["crops"], views["transforms"][1]["size"]) == (10, 3, 256)
    assert config["data"]["batch_size"] == 64 and config["train"]["step"]["clip_norm"] == 40
    assert (str(config["train"]["length"]), str(config["checkpoint"]["every"])) == ("100ep", "5ep")
    assert recipe.dropped() == []


def test_the_first_generation_gives_the_same_recipe(tmp_path: Path) -> None:
    old = """norm = dict(type='Normalize', mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_bgr=False)
data = dict(videos_per_gpu=8, workers_per_gpu=8,
    train=dict(type='VideoDataset', ann_file='train.txt', data_prefix='data/train', pipeline=train_pipeline+[norm]),
    val=dict(type='VideoDataset', ann_file='val.txt', data_prefix='data/val', pipeline=val_pipeline),
    test=dict(type='VideoDataset', ann_file='val.txt', data_prefix='data/val', pipeline=test_pipeline))
optimizer = dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.0001)
optimizer_config = dict(grad_clip=dict(max_norm=40, norm_type=2))
lr_config = dict(policy='step', step=[40, 80])
total_epochs = 100
checkpoint_config = dict(interval=5, max_keep_ckpts=3)
"""
    sections = BASE.split("preprocessor = ")[0]
    new_model = I3D.replace("data_preprocessor=preprocessor,", "").replace(", average_clips='prob'", "")
    file = write_files(tmp_path, {"old.py": sections + new_model + old})
    new, first = imported(tmp_path, I3D).config, convert("mmaction", file).config
    assert {key: first[key] for key in new} == new


SEGMENTS = """train_pipeline = [dict(type='SampleFrames', clip_len=1, num_clips=8), dict(type='DecordDecode'),
    dict(type='Resize', scale=(-1, 256)),
    dict(type='MultiScaleCrop', input_size=224, scales=(1, 0.875, 0.75, 0.66), random_crop=False, max_wh_scale_gap=1,
         num_fixed_crops=13),
    dict(type='Resize', scale=(224, 224), keep_ratio=False),
    dict(type='Flip', flip_ratio=0.5, flip_label_map={86: 87, 87: 86}), dict(type='ColorJitter')]
param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=True, begin=0, end=5),
    dict(type='MultiStepLR', begin=0, end=100, by_epoch=True, milestones=[40, 80], gamma=0.1)]
test_pipeline = [dict(type='SampleFrames', clip_len=1, num_clips=8, twice_sample=True, test_mode=True),
    dict(type='Resize', scale=(-1, 256)), dict(type='ThreeCrop', crop_size=256)]
train_dataloader = dict(batch_size=16, num_workers=8, dataset=dict(type='RawframeDataset', ann_file='train.txt',
    data_prefix=dict(img='data/train'), pipeline=train_pipeline))
test_dataloader = dict(dataset=dict(type='RawframeDataset', ann_file='val.txt', pipeline=test_pipeline))
optim_wrapper = dict(constructor='TSMOptimWrapperConstructor', paramwise_cfg=dict(fc_lr5=True),
    optimizer=dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.0005))
"""


def test_sampling_and_crops_of_segments(tmp_path: Path) -> None:
    recipe = imported(tmp_path, SEGMENTS + model("dict(type='ResNetTSM', depth=50)", "TSMHead", recognizer="2D"))
    config = resolve(recipe, tmp_path)
    backbone = config["task"]["backbone"]
    assert (backbone["name"], backbone["shift"], backbone["backbone"]["model"]) == ("tsn", "tsm", "resnet50")
    assert config["task"]["dropout"] == 0.8, "the default of TSMHead"
    train = config["data"]["train"]
    clip, crop, _, color = train["transforms"]
    assert ((clip["frames"], clip["sampling"]) == (8, "uniform") and color["hue"] == [-0.1, 0.1]) or color["hue"] == 0.1
    assert (crop["name"], crop["positions"], crop["size"]) == ("multi_scale_crop", "grid", 224)
    source = train["source"]
    assert (source["pattern"], source["flip_sensitive_classes"]) == ("img_{:05}.jpg", ["86", "87"])
    assert (config["data"]["val"][1]["source"]["clips"], config["data"]["val"][1]["source"]["crops"]) == (2, 3)
    # The warm-up changes at the beginning of an epoch, and the fifth has the full rate (mmengine).
    assert (str(config["schedule"]["warmup"]), config["schedule"]["interval"]) == ("4ep", "epoch")
    rules = {rule["pattern"]: rule["lr_factor"] for rule in config["param_groups"]["rules"]}
    assert rules == {None: 1.0, "^head.*weight$": 5, "^head.*bias$": 10}


def test_repeated_videos_and_mixes(tmp_path: Path) -> None:
    body = """preprocessor = dict(mean=[114.75] * 3, std=[57.375] * 3, blending=dict(type='RandomBatchAugment',
    augments=[dict(type='MixupBlending', alpha=0.8, num_classes=400), dict(type='CutmixBlending', num_classes=400)]))
train_dataloader = dict(batch_size=8, num_workers=8, dataset=dict(type='RepeatAugDataset', num_repeats=2,
    sample_once=True, ann_file='train.txt', multi_class=True, num_classes=400, pipeline=[
    dict(type='UniformSample', clip_len=16), dict(type='RandomResizedCrop'),
    dict(type='Resize', scale=(224, 224), keep_ratio=False),
    dict(type='PytorchVideoWrapper', op='RandAugment', magnitude=7, num_layers=4),
    dict(type='RandomErasing', erase_prob=0.25, mode='rand')]))
param_scheduler = [dict(type='LinearLR', start_factor=0.01, by_epoch=True, end=30, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=100, eta_min=1e-4, by_epoch=True, begin=30, convert_to_iter_based=True)]
"""
    backbone = "dict(type='MViT', arch='small', drop_path_rate=0.2)"
    recipe = imported(tmp_path, body + model(backbone, "MViTHead"))
    config = resolve(recipe, tmp_path)
    data, [mix] = config["data"], config["data"]["mix"]
    assert config["task"]["backbone"]["model"] == "mvit_v2_s" and data["train"]["source"]["multi_label"]
    assert [(entry["name"], entry["alpha"]) for entry in mix["mixes"]] == [("mixup", 0.8), ("cutmix", 0.2)]
    # Every video counts twice in a batch, and the learning rate is for 64 videos.
    assert (data["batch_size"], data["sampler"]["num_repeats"], data["sampler"]["extend_epoch"]) == (128, 2, True)
    # The training ends at epoch 100, the curve would at 130.
    schedule = config["schedule"]
    assert (schedule["name"], str(schedule["cycle"]), str(schedule["warmup"])) == ("cosine_restarts", "100ep", "30ep")


NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "dict(type='ResNet', depth=101)": ("TSNHead", {"name": "tsn"}),
    "dict(type='MobileNetV2TSM')": ("TSMHead", {"name": "tsn", "shift": "tsm"}),
    "dict(type='MViT', arch='large', spatial_size=312, temporal_size=40, drop_path_rate=0.75)": (
        "MViTHead",
        {"name": "mvit", "blocks": [2, 6, 36, 4], "clip": [40, 312, 312], "width": 144, "drop_path": 0.75},
    ),
    "dict(type='C2D', depth=50)": ("I3DHead", {"name": "c2d", "depth": 50}),
    "dict(type='ResNet3dSlowOnly', depth=50, lateral=False, pretrained='a.pth', non_local=((0,), (0, 1), (0,), (0,)), "
    "non_local_cfg=dict(sub_sample=True, use_scale=False, mode='dot_product'))": (
        "I3DHead",
        {"name": "slow", "non_local": [[], [1], [], []], "non_local_type": "dot_product"},
    ),
    "dict(type='ResNet3dSlowFast', resample_rate=4, speed_ratio=4, slow_pathway=dict(type='resnet3d', depth=50, "
    "lateral=True, fusion_kernel=7, lateral_norm=True), fast_pathway=dict(type='resnet3d', depth=50))": (
        "SlowFastHead",
        {"name": "slowfast", "alpha": 4, "fusion_kernel": 7, "fusion_norm": True, "slow_frames": "strided"},
    ),
    "dict(type='ResNet2Plus1d', depth=34, temporal_strides=(1, 2, 2, 2))": (
        "I3DHead",
        {"name": "resnet3d", "conv_type": "2+1d", "blocks": [3, 4, 6, 3], "temporal_strides": [1, 2, 2, 2]},
    ),
    "dict(type='X3D', gamma_w=1, gamma_b=2.25, gamma_d=2.2)": ("X3DHead", {"name": "x3d", "size": "M"}),
    "dict(type='SwinTransformer3D', arch='base', pretrained='a')": ("I3DHead", {"model": "swin3d_b"}),
    "dict(type='timm.swin_base_patch4_window7_224', pretrained=True)": ("TSNHead", {"name": "tsn"}),
    "dict(type='mmpretrain.MobileOne', arch='s4')": ("TSNHead", {"name": "tsn"}),
    "dict(type='mmpretrain.Res2Net', depth=50)": ("TSNHead", {"name": "tsn"}),
}


def test_networks(tmp_path: Path) -> None:
    for backbone, (head, expected) in NETWORKS.items():
        recipe = imported(tmp_path, model(backbone, head))
        config = resolve(recipe, tmp_path)["task"]["backbone"]
        assert {key: config[key] for key in expected} == expected, backbone
        if "pretrained=True" in backbone:
            assert config["backbone"] | {"pretrained": True} == config["backbone"]
        if "non_local" in backbone:
            assert recipe.config["init"]["partial"]
        if "Swin" in backbone and "3D" in backbone:
            assert "not inflated" in unconverted(recipe)["model.backbone.pretrained"]
        if "Res2Net" in backbone:  # whose default is the deep stem
            assert config["backbone"]["model"] == "res2net50d"
        if "MobileOne" in backbone:
            assert recipe.config["vars"]["model"] == "MobileOne"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.type=RecognizerOmni", "supported: Recognizer2D"),
        ("model.backbone.type=TimeSformer", "'TimeSformer' is not supported; supported: ResNet, "),
        ("model.backbone.conv1_kernel=(3, 7, 7)", "conv1_kernel: "),
        ("model.backbone.inflate_style='3x3x3'", "inflate_style: '3x3x3' is not supported"),
        ("model.backbone.novel=1", "model.backbone.novel: 1 is not supported"),
        ("model.cls_head.type=TRNHead", "'TRNHead' is not supported"),
        ("model.cls_head.loss_cls.type=HVULoss", "'HVULoss' is not supported"),
        ("model.cls_head.loss_cls.loss_weight=2.0", "loss_weight: 2.0 is not supported"),
        ("train_dataloader.dataset.type=AudioDataset", "'AudioDataset' is not supported"),
        ("train_dataloader.dataset.modality=Flow", "'Flow' is not supported"),
        ("data_preprocessor.to_rgb=True", "networks for BGR frames"),
        ("optim_wrapper.constructor=Novel", "'Novel' is not supported"),
    ],
)
def test_others_are_rejected(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        imported(tmp_path, I3D, override)


def test_unknown_steps_are_rejected(tmp_path: Path) -> None:
    for step, message in {"type='Imgaug'": "Imgaug is not supported here", "size=1": "KeyError: 'type'"}.items():
        dataset = f"dict(type='VideoDataset', ann_file='a.txt', pipeline=[sample, dict({step})])"
        body = f"train_dataloader = dict(batch_size=8, dataset={dataset})\n"
        with pytest.raises(ConfigError, match=message):
            imported(tmp_path, I3D + body)
