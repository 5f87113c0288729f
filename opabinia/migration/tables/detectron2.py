"""Tables for detectron2: its defaults, the reasons why keys are not converted, and the equivalents of its names."""

from __future__ import annotations

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS, UNSUPPORTED_VALUES = read_tables("detectron2", "DEFAULTS", "REASONS", "UNSUPPORTED_VALUES")


DEPTHS = (18, 34, 50, 101, 152)
"""Depths of ResNets."""

RESNETS = {
    (50, 32, 4): "resnext50_32x4d",
    (101, 32, 4): "resnext101_32x4d",
    (101, 32, 8): "resnext101_32x8d",
    (101, 64, 4): "resnext101_64x4d",
}
"""timm's names of ResNeXts by depth, number of groups and width per group."""

NECKS = {
    "build_resnet_fpn_backbone": "fpn",
    "build_retinanet_resnet_fpn_backbone": "fpn_p3_p7",
    "build_resnet_backbone": "no_neck",
}

NORMS = {"": "none", "GN": "group", "BN": "batch", "SyncBN": "batch", "nnSyncBN": "batch", "naiveSyncBN": "batch"}

LOSSES = {name: name for name in ("smooth_l1", "giou", "diou", "ciou")}

METRICS = {
    "bbox": "",
    "segm": "mask_",
    "keypoints": "keypoint_",
    "box_proposals": "",
    "sem_seg": "",
    "panoptic_seg": "",
}


HEADS = {
    "MODEL.RPN": "GeneralizedRCNN PanopticFPN ProposalNetwork",
    "MODEL.ROI_HEADS": "GeneralizedRCNN PanopticFPN",
    "MODEL.ROI_BOX_HEAD": "GeneralizedRCNN PanopticFPN",
    "MODEL.RETINANET": "RetinaNet",
}
"""Sections that only these architectures read."""
