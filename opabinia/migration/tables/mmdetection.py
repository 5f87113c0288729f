"""Tables for MMDetection: the equivalents of its names, its classes' defaults, and values that need no counterpart."""

from __future__ import annotations

from typing import Any

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS = read_tables("mmdetection", "DEFAULTS", "REASONS")

DETECTORS: dict[str, str] = {
    "FasterRCNN": "faster_rcnn",
    "MaskRCNN": "mask_rcnn",
    "CascadeRCNN": "cascade_rcnn",
    "RetinaNet": "retinanet",
    "FCOS": "fcos",
    "RPN": "rpn",
}

RESNETS: dict[tuple[int, int, int], str] = {
    (50, 32, 4): "resnext50_32x4d",
    (101, 32, 4): "resnext101_32x4d",
    (101, 32, 8): "resnext101_32x8d",
    (101, 64, 4): "resnext101_64x4d",
}
"""timm's ResNeXts by depth, groups and width per group."""

REGNETS: dict[str, str] = {
    f"regnetx_{size}": f"regnetx_{number}"
    for size, number in {
        **{"400mf": "004", "800mf": "008", "1.6gf": "016", "3.2gf": "032"},
        **{"4.0gf": "040", "6.4gf": "064", "8.0gf": "080", "12gf": "120"},
    }.items()
}

NORMS: dict[str, str] = {"BN": "batch", "SyncBN": "batch", "MMSyncBN": "batch", "GN": "group"}

HEADS: dict[str, dict[str, Any]] = {
    "Shared2FCBBoxHead": {"num_convs": 0, "num_fc": 2},
    "Shared4Conv1FCBBoxHead": {"num_convs": 4, "num_fc": 1},
    "BBoxHead": {"num_convs": 0, "num_fc": 0},
}
"""Box heads with their layers."""

BOX_LOSSES: dict[str, tuple[str, float]] = {
    "L1Loss": ("smooth_l1", 0.0),
    "SmoothL1Loss": ("smooth_l1", 1.0),
    "IoULoss": ("iou", 0.0),
    "GIoULoss": ("giou", 0.0),
    "DIoULoss": ("diou", 0.0),
    "CIoULoss": ("ciou", 0.0),
}
"""Losses of boxes with their names here and the default of ``beta``."""


ALLOWED: dict[str, tuple[Any, ...]] = {
    "type": (
        *("RPNHead", "AnchorGenerator", "DeltaXYWHBBoxCoder", "CrossEntropyLoss", "FocalLoss", "StandardRoIHead"),
        *("CascadeRoIHead", "SingleRoIExtractor", "RoIAlign", "FCNMaskHead", "MaxIoUAssigner", "RandomSampler"),
        *(
            "PseudoSampler",
            "nms",
            "FPN",
            "DetDataPreprocessor",
            "Normalize",
            "RetinaHead",
            "FCOSHead",
            "Pretrained",
            "BatchFixedSizePad",
        ),
    ),
    "in_channels": (),
    "num_classes": (),
    "roi_feat_size": (),
    "feat_channels": (256,),
    "out_channels": (),
    "target_means": ([0.0, 0.0, 0.0, 0.0],),
    "use_sigmoid": (),
    "use_mask": (True,),
    "num_outs": (5,),
    "num_stages": (3, 4),
    "out_indices": ([0, 1, 2, 3],),
    "strides": ([4, 8, 16, 32, 64], [8, 16, 32, 64, 128]),
    "featmap_strides": ([4, 8, 16, 32], [16]),
    "debug": (),
    "pos_weight": (-1,),
    "neg_pos_ub": (-1,),
    "ignore_iof_thr": (-1,),
    "match_low_quality": (),
    "gpu_assign_thr": (),
    "add_gt_as_proposals": (),
    "mask_thr_binary": (0.5,),
    "pad_size_divisor": (1, 32),
    "pad_mask": (),
    "batch_augments": (),
    "init_cfg": (),
    "checkpoint": (),
    "prefix": (),
    "std": (),
    "layer": (),
    "conv_bias": ("auto", True),
    "clip_border": (True,),
    "min_bbox_size": (0,),
    "with_cp": (),
    "pretrained": (),
    "dcn_on_last_conv": (False,),
    "requires_grad": (True,),
    "num_groups": (32,),
    "reduction": ("mean",),
    "deform_groups": (),
    "fallback_on_stride": (False,),
    "eps": (1e-5,),
}
"""Values by the last part of a key of the model that need no counterpart; an empty tuple: all."""

PIPELINE_NO_EFFECT = {
    *("LoadImageFromFile", "LoadAnnotations", "PackDetInputs", "Normalize", "Pad", "DefaultFormatBundle", "Collect"),
    *("FilterAnnotations", "ImageToTensor", "LoadProposals"),
}
"""Steps of a pipeline that sources, batches and tasks do."""
