"""Tables for MMAction2: the defaults of its classes, supported values, and values without a counterpart."""

from __future__ import annotations

from typing import Any

_RESNET = {
    "in_channels": 3,
    "num_stages": 4,
    "out_indices": [3],
    "strides": [1, 2, 2, 2],
    "dilations": [1, 1, 1, 1],
    "style": "pytorch",
    "frozen_stages": -1,
    "norm_eval": False,
    "partial_bn": False,
}
_RESNET3D = {
    "depth": 50,
    "in_channels": 3,
    "num_stages": 4,
    "base_channels": 64,
    "out_indices": [3],
    "spatial_strides": [1, 2, 2, 2],
    "temporal_strides": [1, 1, 1, 1],
    "dilations": [1, 1, 1, 1],
    "conv1_kernel": [3, 7, 7],
    "conv1_stride_s": 2,
    "conv1_stride_t": 1,
    "pool1_stride_s": 2,
    "pool1_stride_t": 1,
    "with_pool1": True,
    "with_pool2": True,
    "style": "pytorch",
    "frozen_stages": -1,
    "inflate": [1, 1, 1, 1],
    "inflate_style": "3x1x1",
    "norm_eval": False,
    "non_local": [0, 0, 0, 0],
    "zero_init_residual": True,
}
_LATERAL = {
    **{"lateral_inv": False, "lateral_norm": False, "fusion_kernel": 5, "lateral_infl": 2},
    "lateral_activate": [1, 1, 1, 1],
}
_SLOW = {"conv1_kernel": [1, 7, 7], "inflate": [0, 0, 1, 1], "with_pool2": False, "lateral": False}

CLASSES: dict[str, dict[str, Any]] = {
    "ResNet": _RESNET,
    "C2D": _RESNET,
    "ResNetTSM": {
        **_RESNET,
        **{"is_shift": True, "non_local": [0, 0, 0, 0], "shift_div": 8, "shift_place": "blockres"},
        "temporal_pool": False,
    },
    "MobileNetV2TSM": {
        **{"is_shift": True, "shift_div": 8, "widen_factor": 1.0, "out_indices": [7], "frozen_stages": -1},
        "norm_eval": False,
    },
    "ResNet3d": _RESNET3D,
    "ResNet2Plus1d": _RESNET3D,
    "ResNet3dSlowOnly": {**_RESNET3D, **_LATERAL, **_SLOW, "speed_ratio": 8, "channel_ratio": 8},
    "ResNet3dSlowFast": {"resample_rate": 8, "speed_ratio": 8, "channel_ratio": 8},
    "X3D": {
        **{"gamma_w": 1.0, "gamma_b": 1.0, "gamma_d": 1.0, "in_channels": 3, "num_stages": 4, "frozen_stages": -1},
        **{"spatial_strides": [2, 2, 2, 2], "se_style": "half", "se_ratio": 1 / 16, "use_swish": True},
        **{"norm_eval": False, "zero_init_residual": True},
    },
    "SwinTransformer3D": {
        **{"patch_size": [2, 4, 4], "in_channels": 3, "window_size": [8, 7, 7], "mlp_ratio": 4.0, "qkv_bias": True},
        **{"qk_scale": None, "drop_rate": 0.0, "attn_drop_rate": 0.0, "drop_path_rate": 0.1, "patch_norm": True},
        **{"frozen_stages": -1, "out_indices": [3], "pretrained2d": True, "out_after_downsample": False},
    },
    "MViT": {
        **{"arch": "base", "spatial_size": 224, "temporal_size": 16, "in_channels": 3, "drop_path_rate": 0.0},
        **{"use_abs_pos_embed": False, "pool_kernel": [3, 3, 3], "dim_mul": 2, "head_mul": 2},
        **{"adaptive_kv_stride": [1, 8, 8], "rel_pos_embed": True, "residual_pooling": True},
        **{"dim_mul_in_attention": True, "with_cls_token": True, "output_cls_token": True, "mlp_ratio": 4.0},
        **{"qkv_bias": True, "out_scales": -1, "interpolate_mode": "trilinear", "rel_pos_zero_init": False},
    },
    "BaseHead": {"multi_class": False, "label_smooth_eps": 0.0, "average_clips": None},
    "TSNHead": {"spatial_type": "avg", "dropout_ratio": 0.4},
    "TSMHead": {"spatial_type": "avg", "dropout_ratio": 0.8, "is_shift": True, "temporal_pool": False},
    "I3DHead": {"spatial_type": "avg", "dropout_ratio": 0.5},
    "SlowFastHead": {"spatial_type": "avg", "dropout_ratio": 0.8},
    "X3DHead": {"spatial_type": "avg", "dropout_ratio": 0.5, "fc1_bias": False},
    "MViTHead": {"dropout_ratio": 0.5, "with_cls_token": True, "init_scale": 1.0},
    "MixupBlending": {"alpha": 0.2},
    "CutmixBlending": {"alpha": 0.2},
    "RandomBatchAugment": {"probs": None},
    "VideoDataset": {"multi_class": False, "start_index": 0, "modality": "RGB", "delimiter": " "},
    "RepeatAugDataset": {
        **{"num_repeats": 4, "sample_once": False, "multi_class": False, "start_index": 0, "modality": "RGB"},
    },
    "RawframeDataset": {
        **{"filename_tmpl": "img_{:05}.jpg", "with_offset": False, "multi_class": False, "start_index": 1},
        "modality": "RGB",
    },
    "SampleFrames": {
        **{"frame_interval": 1, "num_clips": 1, "temporal_jitter": False, "twice_sample": False},
        **{"out_of_bound_opt": "loop", "test_mode": False, "keep_tail_frames": False, "target_fps": None},
    },
    "DenseSampleFrames": {"sample_range": 64, "num_sample_positions": 10},
    "UniformSample": {"num_clips": 1, "test_mode": False},
    "Resize": {"keep_ratio": True, "interpolation": "bilinear", "lazy": False},
    "RandomRescale": {"interpolation": "bilinear"},
    "RandomCrop": {"lazy": False},
    "RandomResizedCrop": {"area_range": [0.08, 1.0], "aspect_ratio_range": [3 / 4, 4 / 3], "lazy": False},
    "MultiScaleCrop": {
        **{"scales": [1], "max_wh_scale_gap": 1, "random_crop": False, "num_fixed_crops": 5, "lazy": False},
    },
    "Flip": {"flip_ratio": 0.5, "direction": "horizontal", "flip_label_map": None, "lazy": False},
    "ColorJitter": {"brightness": 0.5, "contrast": 0.5, "saturation": 0.5, "hue": 0.1},
    "RandomErasing": {
        **{"erase_prob": 0.5, "min_area_ratio": 0.02, "max_area_ratio": 1 / 3, "aspect_range": [3 / 10, 10 / 3]},
        **{"mode": "const", "fill_color": [128, 128, 128], "fill_std": None},
    },
}
"""Defaults of the options that are converted or checked, by class."""

CLASSES["DenseSampleFrames"] |= CLASSES["SampleFrames"]

CHANGEABLE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("ResNet", "C2D"), ("depth",)),
    "ResNetTSM": ("depth", "is_shift"),
    "MobileNetV2TSM": ("is_shift",),
    "ResNet3d": ("conv1_kernel", "conv1_stride_t", "pool1_stride_t", "inflate", "non_local", "zero_init_residual"),
    "ResNet3dSlowOnly": ("depth", "non_local", "zero_init_residual"),
    "ResNet2Plus1d": ("depth", "temporal_strides", "zero_init_residual"),
    "ResNet3dSlowFast": ("resample_rate", "speed_ratio", "channel_ratio"),
    "X3D": ("gamma_w", "gamma_b", "gamma_d", "zero_init_residual"),
    "SwinTransformer3D": ("drop_path_rate", "pretrained2d"),
    "MViT": ("arch", "spatial_size", "temporal_size", "drop_path_rate"),
}
"""Options of backbones that may differ from their defaults."""

PATHWAY: dict[str, Any] = {
    **{key: value for key, value in _RESNET3D.items() if key not in ("depth", "base_channels", "conv1_kernel")},
    **_LATERAL,
}
"""Options of both pathways of SlowFast, with the supported values; ``with_pool2`` has no effect there."""

HEADS = ("TSNHead", "TSMHead", "I3DHead", "SlowFastHead", "X3DHead", "MViTHead")

SWINS = {"t": "t", "tiny": "t", "s": "s", "small": "s", "b": "b", "base": "b"}
"""The last letter of torchvision's names of Video Swin."""

SWIN_DROP_PATH = 0.1
"""Of torchvision's networks, which cannot be changed."""

MVITS: dict[str, dict[str, Any]] = {
    "tiny": {"blocks": [1, 2, 5, 2]},
    "small": {"blocks": [1, 2, 11, 2]},
    "base": {"blocks": [2, 3, 16, 3]},
    "large": {"blocks": [2, 6, 36, 4], "width": 144, "heads": 2},
}
"""Options of ``mvit`` by architecture."""

X3D_DEPTHS = {2.2: "M", 5.0: "L"}

I3D_INFLATE = [[1, 1, 1], [1, 0, 1, 0], [1, 0, 1, 0, 1, 0], [0, 1, 0]]

NO_EFFECT = {
    *("DecordInit", "DecordDecode", "PyAVInit", "PyAVDecode", "OpenCVInit", "OpenCVDecode", "RawFrameDecode"),
    *("FormatShape", "PackActionInputs", "Normalize", "Collect", "ToTensor", "Fuse"),
}
"""Steps of pipelines that need no counterpart."""

DEFAULTS: dict[str, Any] = {
    "data_preprocessor.mean": [0.0, 0.0, 0.0],
    "data_preprocessor.std": [1.0, 1.0, 1.0],
    "data_preprocessor.to_rgb": False,
}

ALLOWED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("num_classes", "in_channels", "init_std", "num_segments", "topk", "with_cp", "act_cfg"), ()),
    **dict.fromkeys(("norm_cfg", "conv_cfg", "init_cfg", "pretrained", "pretrained2d", "torchvision_pretrain"), ()),
    **dict.fromkeys(("format_shape", "test_cfg", "feature_shape", "use_scale", "sub_sample"), ()),
    "lateral": (True, False),
    "dim": (1,),
    "type": ("Recognizer2D", "Recognizer3D", "AvgConsensus", "resnet3d", "ActionDataPreprocessor"),
    "loss_weight": (1.0,),
    "to_float32": (True,),
}
"""Values by the last part of a key of the model that need no counterpart; an empty tuple: all."""

REASONS: dict[str, str] = {
    "data_preprocessor": "follows from the data",
    "train_dataloader.dataset": "see data.train",
    "val_dataloader.dataset": "see data.val",
}
