"""Tables for MMPretrain: timm's names of its networks, its classes' defaults, and values that need no counterpart."""

from __future__ import annotations

from typing import Any

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS = read_tables("mmpretrain", "DEFAULTS", "REASONS")

VIT_SIZES = {"s": "small", "b": "base", "l": "large", "h": "huge"}

NETWORKS: dict[str, str] = {
    **{f"ResNet {depth}": f"resnet{depth}" for depth in (18, 34, 50, 101, 152)},
    **{f"ResNetV1c {depth}": f"resnet{depth}c" for depth in (50, 101, 152)},
    **{f"ResNetV1d {depth}": f"resnet{depth}d" for depth in (50, 101, 152)},
    **{f"SEResNet {depth}": f"seresnet{depth}" for depth in (50, 101, 152)},
    **{f"ResNeXt {depth} 32 4": f"resnext{depth}_32x4d" for depth in (50, 101)},
    "ResNeXt 101 32 8": "resnext101_32x8d",
    "ResNeXt 101 64 4": "resnext101_64x4d",
    **{f"SEResNeXt {depth} 32 4": f"seresnext{depth}_32x4d" for depth in (50, 101)},
    **{
        f"VisionTransformer {size} {patch}": f"vit_{VIT_SIZES[size[0]]}_patch{patch}_224"
        for size in ("s", "b", "l", "small", "base", "large")
        for patch in (16, 32)
    },
    **{
        f"DeiT3 {size} 16": f"deit3_{VIT_SIZES[size[0]]}_patch16_224"
        for size in ("s", "b", "l", "small", "base", "large")
    },
    **{f"SwinTransformer {size}": f"swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base", "large")},
    **{f"MAEViT {size[0]} 16": f"vit_{size}_patch16_224" for size in ("base", "large")},
    "MAEViT h 14": "vit_huge_patch14_224",
    **{f"MoCoV3ViT {size} 16": f"vit_{size}_patch16_224" for size in ("base", "large")},
    "MoCoV3ViT mocov3-small 16": "vit_small_patch16_224",
    **{f"ConvNeXt {size}": f"convnext_{size}" for size in ("atto", "femto", "pico", "nano")},
    **{f"ConvNeXt {size}": f"convnext_{size}" for size in ("tiny", "small", "base", "large", "xlarge")},
    **{
        f"RegNet regnetx_{size}": f"regnetx_{number}"
        for size, number in {
            **{"400mf": "004", "800mf": "008", "1.6gf": "016", "3.2gf": "032"},
            **{"4.0gf": "040", "6.4gf": "064", "8.0gf": "080", "12gf": "120"},
        }.items()
    },
    **{f"EfficientNet {size}": f"tf_efficientnet_{size}" for size in (*(f"b{n}" for n in range(9)), "es", "em", "l2")},
    "MobileNetV3 large": "mobilenetv3_large_100",
    "MobileNetV3 small": "mobilenetv3_small_100",
    "MobileNetV3 small_075": "mobilenetv3_small_075",
    "MobileNetV3 small_050": "mobilenetv3_small_050",
    "MobileNetV2 1.0": "mobilenetv2_100",
    **{f"DenseNet {depth}": f"densenet{depth}" for depth in (121, 161, 169, 201)},
    **{
        f"Res2Net 50 {scales} {width} False False": f"res2net50_{width}w_{scales}s"
        for scales, width in ((4, 26), (6, 26), (8, 26), (8, 14), (2, 48))
    },
    "Res2Net 101 4 26 False False": "res2net101_26w_4s",
    **{f"Res2Net {depth} 4 26 True True": f"res2net{depth}d" for depth in (50, 101)},
}
"""timm's names by MMPretrain's class and the options in :data:`SIZE_KEYS`."""

SIZE_KEYS: dict[str, tuple[tuple[str, Any], ...]] = {
    **dict.fromkeys(("ResNet", "ResNetV1c", "ResNetV1d", "SEResNet"), (("depth", 50),)),
    **dict.fromkeys(("ResNeXt", "SEResNeXt"), (("depth", 50), ("groups", 32), ("width_per_group", 4))),
    **dict.fromkeys(("VisionTransformer", "DeiT3"), (("arch", "base"), ("patch_size", 16))),
    "MAEViT": (("arch", "b"), ("patch_size", 16)),
    "MoCoV3ViT": (("arch", "base"), ("patch_size", 16)),
    "SwinTransformer": (("arch", "tiny"),),
    "ConvNeXt": (("arch", "tiny"),),
    "RegNet": (("arch", ""),),
    "EfficientNet": (("arch", "b0"),),
    "MobileNetV3": (("arch", "small"),),
    "MobileNetV2": (("widen_factor", 1.0),),
    "DenseNet": (("arch", "121"),),
    "Res2Net": (("depth", 50), ("scales", 4), ("base_width", 26), ("deep_stem", True), ("avg_down", True)),
}
"""Options that choose the network, with their defaults."""

DROP_PATH: dict[str, float] = {"SwinTransformer": 0.1}
"""Default probability to skip a residual branch; 0 of all other networks."""

HEADS: dict[str, str] = {
    "LinearClsHead": "linear",
    "VisionTransformerClsHead": "linear",
    "MultiLabelLinearClsHead": "linear",
    "StackedLinearClsHead": "linear",
}


ALLOWED: dict[str, tuple[Any, ...]] = {
    "type": ("ImageClassifier", "GlobalAveragePooling", "Pretrained", "BN", "SyncBN", "ClsDataPreprocessor"),
    "num_classes": (),
    "in_channels": (),
    "mid_channels": (),
    "act_cfg": (),
    "topk": (),
    "cal_acc": (),
    "init_cfg": (),
    "num_stages": (4,),
    "out_indices": ([3], 3, 4, [4], 11, -1),
    "style": ("pytorch",),
    "requires_grad": (True,),
    "eps": (),
    "momentum": (),
    "checkpoint": (),
    "prefix": (),
    "use_soft": (),
    "gap_before_final_norm": (True,),
    "deep_stem": (False,),
    "avg_down": (False,),
    "with_cp": (),
    "pretrained": (),
    "pad_small_map": (False,),
    "norm_eval": (False,),
    "frozen_stages": (-1,),
    "se_ratio": (16,),
    "to_rgb": (),
    "final_norm": (True,),
    "out_type": ("cls_token",),
    "with_cls_token": (True,),
}
"""Values by the last part of a key of the model that need no counterpart; an empty tuple: all."""

PIPELINE_NO_EFFECT = {
    *("LoadImageFromFile", "PackInputs", "Normalize", "ImageToTensor", "ToTensor", "Collect", "PackClsInputs"),
}
